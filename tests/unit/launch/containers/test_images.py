"""The image of a run on a host, and the container that is made of it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shanty.launch.containers import images
from shanty.launch.provision import containers
from shanty.runtime.containers.container import ANY_GPUS
from shanty.runtime.errors import NotFoundError
from shanty.runtime.site import Host
from shanty.runtime.spec import JobSpec, Program

FOUND = {
    "engine": "apptainer",
    "program": "/usr/bin/apptainer",
    "image": {"id": "/images/x.sif", "state": "1"},
    "container": {
        "user": "", "groups": [], "mounts": [], "unpack": False, "variables": [],
        "environment": {"SHANTY_HOME": "/home/ann/.shanty"},
    },
}  # fmt: skip


def image(**job: Any) -> images.Image:
    """The image as a host has it that answers with FOUND."""
    spec = JobSpec(Program(("true",)), image="/images/x.sif", **job)
    return images.get(lambda *_, **__: FOUND, spec, "/images/x.sif", {}, lambda _: None)


@pytest.mark.parametrize(
    ("asked", "found"), [(None, ANY_GPUS), ("none", ""), ("all", "all"), ("0,1", "0,1")]
)
def test_the_gpus_that_are_wanted(asked: str | None, found: str) -> None:
    assert image(gpus=asked).container.gpus == found


class Recorded:
    """A connection that starts nothing."""

    def __init__(self) -> None:
        self.host = Host("here")
        self.words: list[str] = []

    def start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        self.words = list(argv)
        return None  # type: ignore[return-value]

    def close(self) -> None: ...


@pytest.mark.parametrize("asked", [None, "all", "0"])
def test_no_gpus_are_needed_to_prepare(asked: str | None) -> None:
    """A login node has none, and its nodes have."""
    outside = Recorded()
    found = image(gpus=asked).container
    containers._ContainerConnection(outside.host, outside, found).start(["true"])
    assert "--nv" not in outside.words
    docker = found._replace(engine="docker")
    containers._ContainerConnection(outside.host, outside, docker).start(["true"])
    assert "--gpus" not in outside.words


def test_the_variables_of_this_machine_do_not_go_to_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:password@proxy")
    outside = Recorded()
    found = image().container._replace(variables=("http_proxy",))
    containers._ContainerConnection(outside.host, outside, found).start(["true"])
    assert outside.words[:2] == ["env", "APPTAINERENV_SHANTY_HOME=/home/ann/.shanty"]
    assert outside.words[2] == "/usr/bin/apptainer"
    assert not [word for word in outside.words if "password" in word]


@pytest.mark.parametrize(
    ("verb", "lacks", "has"),
    [
        ("image-have", {"image": None}, {"image": {"id": "1"}}),
        ("image-file-have", {"have": False}, {"have": True}),
    ],
)
def test_who_only_looks_brings_nothing(
    verb: str, lacks: dict[str, Any], has: dict[str, Any]
) -> None:
    asked = []

    def ask(verb: str, **_args: Any) -> dict[str, Any]:
        asked.append(verb)
        return answers[verb]

    answers = {verb: lacks, "container-engine": FOUND}
    look = images.looking(ask, "x:1")
    for verbs in ("image-pull", verb):
        with pytest.raises(NotFoundError, match="x:1 is not there yet"):
            look(verbs)
    assert look("container-engine") == FOUND
    answers[verb] = has
    assert look(verb) == has
    assert "image-pull" not in asked


@pytest.mark.parametrize(
    ("architecture", "machine"),
    [("amd64", "x86_64"), ("arm64", "aarch64"), ("arm", "armv7l"), ("riscv64", "riscv64")],
)
def test_the_processor_of_an_image(architecture: str, machine: str) -> None:
    assert images.machine_of(architecture) == machine


def test_an_image_for_another_processor_is_not_sent() -> None:
    def ask(verb: str, **_args: Any) -> dict[str, Any]:
        assert verb == "image-have"
        return {"machine": {"architecture": "riscv64"}, "image": None, "missing": ["sha256:2"]}

    here = images.ImagesHere(JobSpec(Program(("true",))), Path("/nowhere"), {})
    own = images.LocalImage("x:1", "docker", "docker", "sha256:1", "amd64", ("sha256:2",), "", 1)
    assert here._sent(own, ask, {**FOUND, "image": None}, lambda _: None) is None
