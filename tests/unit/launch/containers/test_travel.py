"""Images that are sent: for which processors they are."""

from __future__ import annotations

import pytest

from shanty.launch.containers import travel
from shanty.runtime.containers.engines import ENGINES, LAYERED


@pytest.mark.parametrize(
    ("architecture", "machine"),
    [("amd64", "x86_64"), ("arm64", "aarch64"), ("arm", "armv7l"), ("riscv64", "riscv64")],
)
def test_the_processor_of_an_image(architecture: str, machine: str) -> None:
    assert travel.machine_of(architecture) == machine
    assert travel._runs(architecture, machine)
    assert not travel._runs(architecture, "s390x")


def test_engines_whose_images_are_of_layers() -> None:
    assert LAYERED == ("docker", "podman")
    assert set(LAYERED) < set(ENGINES)
