"""Launches of the worker scripts of the torch tests: each once, however many tests look at it.

Starting PyTorch takes longer than most checks do, so a script holds many; it prints `ok NAME` for
each, and every test looks for its own.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import runs
from runs import FLAVOURS, mpi_folder

WORKERS = Path(__file__).parent / "mpi" / "workers"
SOURCE = Path(__file__).parents[1] / "src"

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

TENSORFLOW_WORDS = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
"""Environment in which TensorFlow says nothing of itself."""

LONG = pytest.mark.skipif(not runs.LONG, reason="takes minutes: SHANTY_TEST_LONG=1 runs it")
Done = subprocess.CompletedProcess[str]


def environment(**extra: str) -> dict[str, str]:
    """This process's, without what an outer launcher may have put there."""
    outer = {k: v for k, v in os.environ.items() if k not in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
    return {**outer, **ENVIRONMENT, **extra}


def bare(ranks: int, script: str, *arguments: str, **extra: str) -> Done:
    """Run a worker script on so many ranks, under the mpirun that came with shanty, without it."""
    mpirun = Path(sys.executable).parent / "mpirun"
    placement = ["--oversubscribe", "--bind-to", "none"]
    command = [mpirun, "-n", str(ranks), *placement, sys.executable, WORKERS / script, *arguments]
    with TemporaryDirectory(prefix="torch-") as folder:
        return _run([str(word) for word in command], environment(TMPDIR=folder, **extra))


def launch(ranks: int, script: str, *arguments: str, **extra: str) -> Done:
    """Run a worker script with `shanty run`, on Open MPI 5 and in a home of its own."""
    with TemporaryDirectory(prefix="torch-") as home:
        return run(Path(home), "openmpi5", ranks, script, *arguments, **extra)


def run(
    home: Path,
    flavour: str,
    ranks: int,
    script: str,
    *arguments: str,
    python: str | Path = "",
    options: Sequence[str] = (),
    **extra: str,
) -> Done:
    """Run a worker script with `shanty run` on that MPI; `home` is shanty's, `options` its own,
    `python` the script's interpreter where it is another one.
    """
    if flavour != "openmpi5" and not (mpi_folder() / flavour).exists():
        pytest.skip(f"{flavour} is not installed in {mpi_folder()}")
    link = home / "mpi"
    if mpi_folder().exists() and not link.exists():
        link.symlink_to(mpi_folder())
    words = ["-q", "--mpi", flavour, "-n", str(ranks), "--oversubscribe", *options]
    words += ["--python", str(python)] if python else []
    command = [sys.executable, "-m", "shanty", "run", *words, str(WORKERS / script), *arguments]
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "SHANTY_"))}
    return _run(command, {**outer, "SHANTY_HOME": str(home), **extra})


def _run(command: list[str], env: dict[str, str]) -> Done:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, env=env, stdout=pipe, stderr=pipe, text=True, errors="replace"
    )
    try:
        out, err = process.communicate(timeout=560)
    finally:
        if process.poll() is None:  # whoever is killed cannot end the ranks
            process.terminate()
            process.communicate(timeout=30)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def checks(script: str) -> list[str]:
    """The names of the checks in a worker script, read without importing it."""
    tree = ast.parse((WORKERS / script).read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    ]


class Launches:
    """Runs made once each, in a home and a scratch folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.scratch = folder
        self.home.mkdir()
        self.once = cache(self._once)

    def _once(
        self,
        flavour: str,
        ranks: int,
        script: str,
        *arguments: str,
        python: str | Path = "",
        **extra: str,
    ) -> Done:
        return run(self.home, flavour, ranks, script, *arguments, python=python, **extra)


def passed(done: Done, name: str) -> None:
    """The check `name` was passed; shows all output where it was not."""
    if not re.search(rf"\bok {name}\b", done.stdout):
        pytest.fail(f"{done.stdout}\n{done.stderr}")


__all__ = [
    "FLAVOURS",
    "LONG",
    "TENSORFLOW_WORDS",
    "WORKERS",
    "Launches",
    "bare",
    "checks",
    "environment",
    "launch",
    "passed",
    "run",
]
