"""A training that is killed, and run again, goes on from its last commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from runs import flavour
from torch_runs import Done, run

__all__ = ["flavour"]

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.sampled, pytest.mark.timeout(600)]

SCRIPT = "hvd_elastic.py"


def train(home: Path, mpi: str, kill_at: int, fail_at: int = 0, **extra: str) -> Done:
    """Train for 700 steps on 2 ranks; the same command, whatever `extra` says."""
    return run(home, mpi, 2, SCRIPT, "700", str(kill_at), str(fail_at), **extra)


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
    killed = train(tmp_path, flavour, 500)
    assert killed.returncode == 137, killed.stderr
    assert began(killed) == [0]
    assert len(commits(tmp_path)) == 1

    again = train(tmp_path, flavour, 500, UNHARMED="1")
    assert ended(again) == unharmed
    assert len(began(again)) == 1
    assert began(again)[0] in range(50, 501, 50)  # a commit that takes long may be left out
    assert again.stderr.count("goes on from the commit of") == 1
    assert str(commits(tmp_path) or tmp_path / "commits") in again.stderr
    assert list((tmp_path / "commits").iterdir()) == []


def test_it_starts_afresh(tmp_path: Path, unharmed: str) -> None:
    assert train(tmp_path, "openmpi5", 100).returncode == 137
    assert len(commits(tmp_path)) == 1
    again = train(tmp_path, "openmpi5", 100, UNHARMED="1", SHANTY_RESUME="0")
    assert began(again) == [0]
    assert ended(again) == unharmed
    assert "goes on from" not in again.stderr
    assert list((tmp_path / "commits").iterdir()) == []


def test_a_collective_that_fails(tmp_path: Path, flavour: str, unharmed: str) -> None:
    done = train(tmp_path, flavour, 0, 333)
    assert ended(done) == unharmed
    assert began(done) == [0, 300]
    assert done.stderr.count("goes back to its last commit: as if a collective had failed") == 1


def test_another_number_of_ranks_takes_it_up(tmp_path: Path) -> None:
    assert train(tmp_path, "openmpi5", 100).returncode == 137
    done = run(tmp_path, "openmpi5", 3, SCRIPT, "700", "100", "0", UNHARMED="1")
    assert ended(done)
    assert began(done)[0] in (50, 100)
