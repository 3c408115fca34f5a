"""What containers are kept from: cores, each other's memory; and what crashed runs leave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import engines
from engines import PYTHON, ContainedShanty, Engine, long_only
from runs import wait_for
from shanty.runtime.rpc import containers

SRC = Path(__file__).parents[2] / "src"
DENIED = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [
        {
            "names": ["process_vm_readv", "process_vm_writev"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": 1,
        }
    ],
}


def test_slots_are_counted_with_the_quota_of_a_container(docker: Engine) -> None:
    program = (
        "import sys; sys.path.insert(0, '/src'); from shanty.runtime import platform; "
        "print(platform.usable_cores())"
    )
    words = ("run", "--rm", "--volume", f"{SRC}:/src:ro", "--network", "none")
    done = docker.run(*words, "--cpus", "1", docker.image, "python3", "-B", "-c", program)
    assert done.stdout.strip() == "1"


def test_a_container_that_nobody_holds_is_found_and_removed(
    docker: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    for name, value in docker.environ.items():
        monkeypatch.setenv(name, value)
    labels = {"shanty-left": f"{tmp_path}/runs/x", "shanty-of-others": "/home/eve/.shanty/runs/x"}
    for name, label in labels.items():
        docker.run(
            "run", "--detach", "--rm", "--network", "none", "--name", name, "--label",
            f"shanty.run={label}", docker.image, "sleep", "600",
        )  # fmt: skip
    try:
        assert containers.left() == []  # no run has used docker, which is not even asked
        containers.note_use("docker")
        assert [name for name, _ in containers.left()] == ["shanty-left"]
        assert containers.sweep() == ["shanty-left"]
        wait_for(lambda: docker.containers() == ["shanty-of-others"], 15, "the sweep")
    finally:
        docker.run("rm", "--force", "shanty-of-others", "shanty-left", check=False)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A docker whose containers may not copy from each other's memory."""
    folder = tmp_path_factory.mktemp("strict")
    profile = tmp_path_factory.mktemp("profile") / "seccomp.json"
    profile.write_text(json.dumps(DENIED))
    with engines.dockerd(folder, "--seccomp-profile", str(profile)) as found:
        found.load(PYTHON)
        yield found


@long_only
def test_ranks_do_without_each_others_memory_where_they_must(
    strict: Engine, flavour: str, kept_home: Path, tmp_path: Path
) -> None:
    """MPICH would hang, and Open MPI 4.1 print a line for each message."""
    shanty = ContainedShanty(kept_home, tmp_path)
    shanty.engine = strict
    shanty.passes_large_messages(flavour)
