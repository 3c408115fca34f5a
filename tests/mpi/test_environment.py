"""Environments with too little in them, and frameworks that look for the others in variables:
TensorFlow, Accelerate, Trainer.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

import environments
from environments import TRANSFORMERS, environment
from launches import LONG
from runs import FLAVOURS, WORKERS, Shanty

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.xdist_group("environment")]

JOIN = """import os
from mpi4py import MPI
values = [os.environ.get(name) for name in ("HOME", "GIVEN")]
print(MPI.COMM_WORLD.allreduce(1), *values, bool(os.environ["PATH"]), flush=True)
"""


def test_an_environment_without_home_and_path(shanty: Shanty, flavour: str) -> None:
    """As a service manager may start a program: no MPI fails for what is missing."""
    script = shanty.script(JOIN)
    home = pwd.getpwuid(os.getuid()).pw_dir
    given = {"SHANTY_HOME": str(shanty.home), "GIVEN": flavour}
    given.update(
        {"HOME": "", "PATH": ""} if FLAVOURS.index(flavour) % 2 else {}
    )  # empty, or not set at all
    done = subprocess.run(
        [sys.executable, "-m", "shanty", "run", "-q", "--mpi", flavour, "-n", "2", script],
        cwd=shanty.folder, env=given, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wanted = [f"[{rank}] 2 {home} {flavour} True" for rank in range(2)]
    assert sorted(done.stdout.splitlines()) == wanted


def test_a_home_that_the_user_has_chosen(shanty: Shanty) -> None:
    script = shanty.script(JOIN)
    words = ["-e", "HOME=/given", "-e", "LD_PRELOAD=/nowhere/lib.so"]
    done = shanty("run", "-q", "-n", 2, *words, script, env={"GIVEN": "x"})
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] 2 /given x True" for rank in range(2)]
    assert done.stderr.count("shanty: LD_PRELOAD: not found on this host") == 1
    assert "/nowhere/lib.so" in done.stderr


PLACE = """
import os
for names in (
    ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
):
    print(*(os.environ.get(name) for name in names))
print(os.environ.get("TF_CONFIG"))
try:
    from mpi4py import MPI
    print(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
    os.environ["SLURM_PROCID"]
except KeyError:
    MPI.COMM_WORLD.barrier()
    raise
"""


def test_the_variables_of_all_launchers(shanty: Shanty, flavour: str) -> None:
    """A script for one MPI finds its rank under every other, and MPI itself is not misled.

    TensorFlow finds the cluster.
    """
    done = shanty("run", "-q", "--mpi", flavour, "-n", 2, shanty.script(PLACE))
    clusters = []
    for rank in range(2):
        lines = [line[4:] for line in done.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        cluster = json.loads(lines.pop(4))
        assert lines == [f"{rank} {rank} {rank}", "2 2 2"] * 2 + [f"{rank} 2"]
        assert cluster["task"] == {"type": "worker", "index": rank}
        clusters.append(cluster["cluster"])
    assert clusters[0] == clusters[1]
    workers = clusters[0]["worker"]
    assert len(set(workers)) == 2
    assert all(worker.startswith("127.0.0.1:") for worker in workers)
    assert done.returncode == 1
    assert "fix: SLURM_PROCID is not set here; RANK, WORLD_SIZE and LOCAL_RANK are" in done.stderr


def test_the_user_s_own_cluster_of_tensorflow(shanty: Shanty) -> None:
    script = shanty.script("import os\nprint(os.environ.get('TF_CONFIG'), flush=True)\n")
    given = shanty("run", "-q", "-n", 2, "-e", "TF_CONFIG={}", script)
    inherited = shanty("run", "-q", "-n", 2, script, env={"TF_CONFIG": "{}"})
    alone = shanty("run", "-q", "-n", 1, script)
    assert sorted(given.stdout.splitlines()) == ["[0] {}", "[1] {}"]
    assert sorted(inherited.stdout.splitlines()) == ["[0] {}", "[1] {}"]
    assert alone.stdout == "None\n"


@LONG
def test_tensorflow(shanty: Shanty, flavour: str) -> None:
    python = environments.tensorflow()
    done = shanty(
        "run", "-q", "--mpi", flavour, "-n", 2, "--python", python,
        WORKERS / "tensorflow_training.py", timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"[0] ok 0 of 2", "[1] ok 1 of 2"} <= set(done.stdout.splitlines())


@LONG
def test_mpi_that_is_up_before_tensorflow(shanty: Shanty, flavour: str) -> None:
    """TensorFlow's own hwloc is not taken for that of MPI, which calls some of it at the end."""
    script = shanty.script("from mpi4py import MPI\nimport tensorflow\nMPI.COMM_WORLD.barrier()\n")
    words = ["--mpi", flavour, "-n", 2, "--python", environments.tensorflow(), "--alone", "ok"]
    done = shanty("run", "-q", *words, script, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def transformers() -> list[str | Path]:
    """What runs a script with transformers and Accelerate, and the PyTorch of the tests."""
    torch = pytest.importorskip("torch")
    python = environment("transformers", TRANSFORMERS)
    path = Path(torch.__file__).parents[1]
    return ["--python", python, "-e", f"PYTHONPATH={path}"]


@LONG
@pytest.mark.parametrize("what", [[], ["state"]])
def test_accelerate(
    shanty: Shanty, transformers: list[str | Path], flavour: str, what: list[str]
) -> None:
    words = ["--mpi", flavour, "-n", "2", *transformers]
    done = shanty("run", "-q", *words, WORKERS / "accelerate_training.py", *what, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"[0] ok 0 of 2", "[1] ok 1 of 2"} <= set(done.stdout.splitlines())


@LONG
def test_accelerate_that_is_told_not_to(shanty: Shanty, transformers: list[str | Path]) -> None:
    words = ["-n", 2, *transformers, "-e", "ACCELERATE_USE_CPU=false"]
    done = shanty("run", "-q", *words, WORKERS / "accelerate_training.py", "state", timeout=200)
    assert {"[0] ok 0 of 1", "[1] ok 0 of 1"} <= set(done.stdout.splitlines()), done.stderr


@LONG
def test_trainer(shanty: Shanty, transformers: list[str | Path]) -> None:
    learned = {}
    for ranks in (1, 2):
        done = shanty(
            "run", "-q", "-n", ranks, *transformers, WORKERS / "trainer_training.py", timeout=200
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said = f"{ranks} ranks learned "
        lines = [line.partition(said)[2] for line in done.stdout.splitlines() if said in line]
        assert len(lines) == ranks
        learned[ranks] = set(lines)
    assert learned[1] == learned[2]
