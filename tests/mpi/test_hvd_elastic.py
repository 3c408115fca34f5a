"""A training that is killed, and run again, goes on from its last commit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from launches import Done, run
from runs import flavour

__all__ = ["flavour"]

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.sampled(6), pytest.mark.timeout(600)]

SCRIPT = "hvd_elastic.py"


def train(home: Path, mpi: str, kill_at: int, fail_at: int = 0, **extra: str) -> Done:
    """Train for 300 steps on 2 ranks; the same command, whatever `extra` says."""
    return run(home, mpi, 2, SCRIPT, "300", str(kill_at), str(fail_at), **extra)


def began(done: Done) -> list[int]:
    """The steps at which the training began, each time that it did."""
    return [int(line.split()[-1]) for line in done.stdout.splitlines() if "begins at" in line]


def ended(done: Done) -> str:
    """The hash of the parameters at the end of a training that went well."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.rpartition("ends with ")[2].strip()


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a training comes to that nothing happens to; with two ranks, on any MPI."""
    done = train(tmp_path_factory.mktemp("unharmed"), "openmpi5", 0)
    assert began(done) == [0]
    return ended(done)


def commits(home: Path) -> list[Path]:
    return sorted((home / "commits").glob("*.pt"))


def test_killed_and_run_again(tmp_path: Path, flavour: str, unharmed: str) -> None:
    """On the same number of ranks it comes to the same; on another one it goes on, too."""
    killed = train(tmp_path, flavour, 200)
    assert killed.returncode == 137, killed.stderr
    assert began(killed) == [0]
    assert len(commits(tmp_path)) == 1

    more = tmp_path / "more"
    shutil.copytree(tmp_path / "commits", more / "commits")
    taken_up = run(more, flavour, 3, SCRIPT, "300", "200", "0", UNHARMED="1")
    assert ended(taken_up)
    assert began(taken_up)[0] in range(50, 201, 50)

    again = train(tmp_path, flavour, 200, UNHARMED="1")
    assert ended(again) == unharmed
    assert len(began(again)) == 1
    assert began(again)[0] in range(50, 201, 50)  # a commit that takes long may be left out
    assert again.stderr.count("goes on from the commit of") == 1
    assert str(commits(tmp_path) or tmp_path / "commits") in again.stderr
    assert list((tmp_path / "commits").iterdir()) == []


def test_a_collective_that_fails(tmp_path: Path, flavour: str, unharmed: str) -> None:
    done = train(tmp_path, flavour, 0, 133)
    assert ended(done) == unharmed
    assert began(done) == [0, 100]
    assert done.stderr.count("goes back to its last commit: as if a collective had failed") == 1


def test_another_attempt_goes_on_from_memory(tmp_path: Path, flavour: str, unharmed: str) -> None:
    """A rank is killed; the file on disk is taken away, and the one in memory is there."""
    more = ["--retries", "1", "--warm"]
    done = run(tmp_path, flavour, 2, SCRIPT, "300", "220", "0", options=more, FORGET="disk")
    assert ended(done) == unharmed
    assert "attempt 2 of 2 on" in done.stderr
    assert "forgotten" in done.stdout
    assert len(began(done)) == 2
    assert began(done)[1] in range(50, 201, 50)  # a commit that takes long may be left out
    folder = done.stderr.rpartition("goes on from the commit of")[2].split(", ")[1]
    assert folder.startswith("/dev/shm/shanty-")
    assert not Path(folder).parent.exists()
    assert commits(tmp_path) == []
