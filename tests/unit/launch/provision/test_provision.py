"""What hosts are told of their Python environments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from shanty.launch.content import environment
from shanty.launch.content.environment import Differences
from shanty.launch.provision import provision
from shanty.runtime.site import Host


def test_another_mpi4py_than_on_the_lead_host_is_noted(monkeypatch: Any) -> None:
    """Ranks could not read each other's objects; a host without any gets none, and no note."""
    versions = {"a": "3.1.4", "b": "4.1.2", "c": "3.1.4", "d": ""}
    monkeypatch.setattr(environment, "mpi4py_version", lambda there: versions[there])
    clients: Any = [SimpleNamespace(host=Host(name), notes=[]) for name in versions]
    there: Any = {name: Differences(name, {}, ()) for name in versions}  # type: ignore[arg-type]
    provision._note_mpi4py(clients, there)
    noted = {each.host.name: [what for what, _fix in each.notes] for each in clients}
    assert noted == {
        "a": [],
        "b": ["mpi4py is 4.1.2 here and 3.1.4 on a, so ranks may not read each other's objects"],
        "c": [],
        "d": [],
    }
