"""What is written for containers: mounts, and options that need an image."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.launch.containers.options import image, mount, refuse_outside
from shanty.launch.doctor.facts import need_of
from shanty.launch.settings import Settings
from shanty.launch.surroundings import Surroundings
from shanty.launch.targets.registry import Targets
from shanty.runtime.errors import UsageError
from shanty.runtime.rundir import RunDir
from shanty.runtime.site import Host
from shanty.runtime.spec import JobSpec, Program

HERE = Path("/home/ann/digits")
NAMES = st.text("abc._- ", min_size=1).filter(lambda text: text.strip(". "))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/data:/data", ("/data", "/data", "rw")),
        ("/data:/data:ro", ("/data", "/data", "ro")),
        ("data:/in:rw", ("/home/ann/digits/data", "/in", "rw")),
        ("../x:/in/./y", ("/home/ann/x", "/in/y", "rw")),
        ("run:/in", ("/home/ann/digits/run", "/in", "rw")),
        ("run:artifacts:/artifacts", ("run:artifacts", "/artifacts", "rw")),
    ],
)
def test_a_mount(text: str, found: tuple[str, str, str]) -> None:
    assert mount(text, HERE) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x.sif", "/home/ann/digits/x.sif"),
        ("../x.sif", "/home/ann/x.sif"),
        ("./root", "/home/ann/digits/root"),
        ("/shared/x.sif", "/shared/x.sif"),
        ("~/x.sif", "/home/ann/x.sif"),
        ("~nobody-knows/x.sif", "/home/ann/digits/~nobody-knows/x.sif"),
        ("python:3.12-slim", "python:3.12-slim"),
        ("docker.io/me/x", "docker.io/me/x"),
    ],
)
def test_the_path_of_an_image_file(monkeypatch: pytest.MonkeyPatch, text: str, found: str) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert image(text, HERE) == found


@pytest.mark.parametrize(
    "text", ["", ":", "/data", "/data:", ":/data", "/a:b", "/a:/b:/c", "/a:ro", "run:logs:/logs"]
)
def test_what_is_no_mount(text: str) -> None:
    with pytest.raises(UsageError):
        mount(text, HERE)


@given(NAMES, NAMES, st.sampled_from(["", ":ro", ":rw"]))
def test_any_mount_is_absolute(source: str, target: str, mode: str) -> None:
    found = mount(f"/{source}:/{target}{mode}", HERE)
    assert found[0].startswith("/")
    assert found[1].startswith("/")
    assert found[2] == (mode[1:] or "rw")


def test_options_of_containers_need_an_image(tmp_path: Path) -> None:
    targets, run = Targets(Surroundings(tmp_path, {}, Settings())), RunDir(tmp_path / "run")
    program = Program(("true",))
    for job in (
        JobSpec(program, mounts=(("/a", "/b", "rw"),)),
        JobSpec(program, runtime="docker"),
        JobSpec(program, gpus="none"),
        JobSpec(program, master_image="x"),
        JobSpec(program, registry_user="me"),
        JobSpec(program, registry_password="env:WORD"),
        JobSpec(program, mpi="image"),
    ):
        with pytest.raises(UsageError, match="--image"):
            targets.plan(job, run)
    refuse_outside(JobSpec(program))
    refuse_outside(JobSpec(program, image="x", mpi="image", runtime="docker"))


def test_an_old_host_with_a_new_image_will_do() -> None:
    """The C library, and /dev/shm, are those of the container."""
    surveys = {"old": {"gpus": [], "cores": 2}}
    job = JobSpec(Program(("true",)), ranks=2, on="old")
    assert not need_of(job, [Host("old")], surveys).contained
    contained = JobSpec(Program(("true",)), ranks=2, on="old", image="x")
    assert need_of(contained, [Host("old")], surveys).contained
