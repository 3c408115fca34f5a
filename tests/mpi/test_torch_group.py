"""The `mpi` backend of torch.distributed under real mpirun, on 2 and 3 ranks.

One launch runs many checks, since starting PyTorch takes longer than they do; the scripts in
workers/ say `ok NAME` for each, and every test here looks for its own.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.mpi

WORKERS = Path(__file__).parent / "workers"
SOURCE = Path(__file__).parents[2] / "src"
RANKS = (2, 3)

ENVIRONMENT = {
    "PYTHONPATH": str(SOURCE),
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_odls_base_max_threads": "0",
}


def environment(**extra: str) -> dict[str, str]:
    """This process's, without what an outer launcher may have put there."""
    outer = {k: v for k, v in os.environ.items() if k not in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
    return {**outer, **ENVIRONMENT, **extra}


def launch(ranks: int, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a worker script on so many ranks."""
    mpirun = Path(sys.executable).parent / "mpirun"
    placement = ["--oversubscribe", "--bind-to", "none"]
    command = [mpirun, "-n", str(ranks), *placement, sys.executable, WORKERS / script, *arguments]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=180, check=False
    )


def checks(script: str) -> list[str]:
    """The names of the checks in a worker script, read without importing it."""
    tree = ast.parse((WORKERS / script).read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    ]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Call with a script and a number of ranks: its run, made once."""

    @cache
    def run(script: str, ranks: int) -> subprocess.CompletedProcess[str]:
        return launch(ranks, script, str(tmp_path_factory.mktemp("gloo") / "store"))

    return run


def cases() -> list[object]:
    scripts = ("torch_collectives.py", "torch_work.py", "torch_ddp.py")
    return [
        pytest.param(script, name, ranks, id=f"{name.removeprefix('check_')}-{ranks}")
        for script in scripts
        for ranks in RANKS
        for name in checks(script)
    ]


@pytest.mark.parametrize(("script", "name", "ranks"), cases())
def test_check(report, script: str, name: str, ranks: int) -> None:
    done = report(script, ranks)
    if f"ok {name}\n" not in done.stdout:
        pytest.fail(f"{done.stdout}\n{done.stderr}")


@pytest.mark.parametrize("script", ["torch_collectives.py", "torch_work.py", "torch_ddp.py"])
@pytest.mark.parametrize("ranks", RANKS)
def test_ends_well(report, script: str, ranks: int) -> None:
    done = report(script, ranks)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("left", ["nothing", "barrier"])
def test_exit_without_destroy(left: str) -> None:
    done = launch(2, "torch_exit.py", left)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("end of script") == 2


def test_exit_amid_communication_ends_the_run() -> None:
    done = launch(2, "torch_exit.py", "never")
    assert done.returncode != 0
    assert "rank 0 exits, but barrier on group 0, rank 0 of 2 is still under way" in done.stderr


def alone(code: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a line of Python as one plain process."""
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment(**extra), capture_output=True, text=True, timeout=60, check=False
    )


INIT = "import torch.distributed as d, shanty.torch; d.init_process_group('mpi'); "


def test_world_of_one() -> None:
    done = alone(INIT + "import torch; t = torch.ones(2); d.all_reduce(t); print(t.sum())")
    assert (done.returncode, done.stdout) == (0, "tensor(2.)\n"), done.stderr


def test_contradicting_world_size() -> None:
    done = alone(INIT, WORLD_SIZE="2", RANK="0")
    assert done.returncode != 0
    assert "MPI reports a world of 1, but WORLD_SIZE=2" in done.stderr
    assert "shanty run" in done.stderr
    assert alone(INIT, WORLD_SIZE="1", RANK="0").returncode == 0


def test_too_low_thread_level() -> None:
    done = alone("import mpi4py; mpi4py.rc.thread_level = 'single'; " + INIT)
    assert done.returncode != 0
    assert "MPI_THREAD_MULTIPLE" in done.stderr


def test_detail_does_not_crash() -> None:
    code = INIT + (
        "import torch; m = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1)); "
        "m(torch.ones(1, 2)).sum().backward(); print('trained')"
    )
    done = alone(code, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "lowers it to INFO" in done.stderr


def test_import_does_not_start_mpi() -> None:
    done = alone("import sys, shanty.torch; print('mpi4py.MPI' in sys.modules)")
    assert done.stdout == "False\n", done.stderr
