"""Launches of worker scripts: each one once, however many tests read its output.

A framework takes longer to start than most checks take to run, so a worker script holds many
checks. It prints `ok NAME` for each, and every test looks for its own.
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
from typing import Any

import pytest

import runs
from rotation import due, today
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
_TOLD = re.compile(r"rank (\d): ([\d.]+) s: (\w+): (.*)")


def environment(**extra: str) -> dict[str, str]:
    """This process's, without what an outer launcher may have put there."""
    outer = {k: v for k, v in os.environ.items() if k not in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
    return {**outer, **ENVIRONMENT, **extra}


def bare(ranks: int, script: str, *arguments: str, **extra: str) -> Done:
    """Run a worker script on so many ranks, under the mpirun that came with shanty, without it."""
    mpirun = Path(sys.executable).parent / "mpirun"
    placement = ["--oversubscribe", "--bind-to", "none"]
    command = [mpirun, "-n", str(ranks), *placement, sys.executable, WORKERS / script, *arguments]
    with TemporaryDirectory(prefix="launch-") as folder:
        return _run([str(word) for word in command], environment(TMPDIR=folder, **extra))


def alone(code: str, python: str | Path = sys.executable, **extra: str) -> Done:
    """Run some Python as one plain process."""
    # Open MPI 5 leaves a segment of shared memory behind where no launcher has started it.
    return _run([str(python), "-c", code], environment(OMPI_MCA_btl="self", **extra))


def launch(ranks: int, script: str, *arguments: str, **extra: str) -> Done:
    """Run a worker script with `shanty run`, on Open MPI 5 and in a home of its own."""
    with TemporaryDirectory(prefix="launch-") as home:
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
    own = {"SHANTY_HOME": str(home), "SHANTY_TEST_DAY": str(today())}
    return _run(command, {**outer, **own, **extra})


def _run(command: list[str], env: dict[str, str]) -> Done:
    runs.STARTED["run"] += 1
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
    """Runs that are made once each; they share a home and a scratch folder."""

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

    def check(
        self, flavour: str, ranks: int, framework: str, *modules: str, share: int = 1, **more: Any
    ) -> Done:
        """Launch these modules of checks once (see workers/run_checks.py): all of them passed.
        `arguments` are the modules' own. share: one check in so many runs, others each day.
        """
        names = due([name for each in modules for name in checks(f"{each}.py")], share)
        chosen = {"CHECKS": ",".join(names)} if share > 1 else {}
        words = (framework, ",".join(modules), *more.pop("arguments", ()))
        done = self.once(flavour, ranks, "run_checks.py", *words, **chosen, **more)
        for name in names:
            passed(done, name)
        assert done.returncode == 0, done.stderr
        return done


def passed(done: Done, name: str) -> None:
    """The check `name` passed; shows all output where it did not."""
    if not re.search(rf"\bok {name}\b", done.stdout):
        pytest.fail(f"{done.stdout}\n{done.stderr}")


def told(
    done: Done, ranks: Sequence[int], *words: str, kind: str = "", bound: float = 60.0
) -> None:
    """These ranks, and no others, have told an error (see `tell` in workers/checks.py), in time: of
    this kind, with all of these patterns in its message; and the run has failed.
    """
    output = done.stdout + done.stderr
    found = {int(match[1]): match for match in map(_TOLD.search, output.splitlines()) if match}
    assert sorted(found) == [*ranks], output
    for match in found.values():
        assert float(match[2]) < bound, match[0]
        assert kind in match[3], match[0]
        assert all(re.search(word, match[4]) for word in words), match[0]
    assert done.returncode != 0


def all_passed(done: Done, *scripts: str) -> None:
    """Every check of these worker scripts passed, and the run ended well."""
    for script in scripts:
        for name in checks(script):
            passed(done, name)
    assert done.returncode == 0, done.stderr


__all__ = [
    "FLAVOURS",
    "LONG",
    "TENSORFLOW_WORDS",
    "WORKERS",
    "Launches",
    "all_passed",
    "alone",
    "bare",
    "checks",
    "environment",
    "launch",
    "passed",
    "run",
    "told",
]
