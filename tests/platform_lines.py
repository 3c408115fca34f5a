"""Lines of the platforms' own pages, and the repository that they name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shanty.runtime.rundir import RunDir

WHERE = """
import os, sys
import shanty
from mpi4py import MPI
world = MPI.COMM_WORLD
assert world.allreduce(1) == world.size
print("rank", world.rank, "of", world.size, "on", os.uname().nodename, os.environ.get("EPOCHS"))
shanty.log({"loss": 1.0 / (1 + world.rank)})
place = sys.argv[1] if sys.argv[1:] else os.environ["SHANTY_RUN_DIR"] + "/artifacts"
if world.rank == 0:
    with open(f"{place}/model.txt", "w") as file:
        file.write("saved")
"""
# The line of commands.md, but for its images, for -np and for where the repository is.
LINE = (
    "mpirun --allow-run-as-root -np {} --hostfile {} -bind-to none -map-by slot "
    "-x NCCL_DEBUG=INFO -mca pml ob1 -mca btl ^openib python {}"
)


# The rest of the commands on the platforms' pages, for three machines; types are not in them.
GRADIENT = (
    *("experiments", "create", "multinode", "--name", "mpi-test", "--experimentType", "MPI"),
    *("--workerCount", "2", "--masterCount", "1", "--experimentEnv", '{"EPOCHS": 5}'),
    *("--masterCommand", LINE.format(3, "/generated/hostfile", "examples/where.py")),
    *("--apiKey", "XXXX", "--vpc"),
)
CLUSTERONE = (
    *("create", "job", "distributed", "--project", "ann/tutorials", "--name", "horovod-job"),
    *("--worker-replicas", "2", "--ps-replicas", "1", "--time-limit", "1h"),
    *("--command", LINE.format(3, "/kube-openmpi/generated/hostfile", "openmpi/horovod/main.py")),
)


@pytest.fixture
def repository(tmp_path: Path) -> str:
    """The URL of a git repository with examples/where.py."""
    return make_repository(tmp_path / "horovod.git")


def make_repository(folder: Path, settings: str = "") -> str:
    """Make one, with a shanty.toml where there are settings; its URL."""
    (folder / "examples").mkdir(parents=True)
    (folder / "examples" / "where.py").write_text(WHERE)
    if settings:
        (folder / "shanty.toml").write_text(settings)
    who = ["-c", "user.name=ann", "-c", "user.email=ann@desk"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "1"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return f"file://{folder}"


def created(done: subprocess.CompletedProcess[str], home: Path) -> RunDir:
    """The run of which a platform's `create` has told."""
    assert done.returncode == 0, done.stderr
    word = done.stdout.split()[-1]
    assert done.stdout == f"New {done.stdout.split()[1]} created with ID: {word}\n"
    return RunDir(home / "runs" / word)
