"""The Role that runs need."""

from __future__ import annotations

from shanty.launch.kubernetes import role


def test_who_gets_it() -> None:
    given, binding = role.manifests("team", account="runner")
    assert {rule["resources"][0] for rule in given["rules"]} >= {"jobs", "pods/exec"}
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "runner", "namespace": "team"}
    ]


def test_what_an_operators_objects_need_more() -> None:
    (given,) = role.manifests("team", operator=True)
    resources = [rule["resources"][0] for rule in given["rules"]]
    assert {"jobs", "mpijobs", "trainjobs", "pods/log"} <= set(resources)
    assert resources.count("pods") == resources.count("configmaps") == 1
