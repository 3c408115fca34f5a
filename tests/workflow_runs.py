"""Workflow engines in environments of their own, and programs that use them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from environments import DAGSTER, PREFECT, Recipe, environment
from runs import WORKERS, interruptible, mpi_folder

ROOT = Path(__file__).parents[1]
RECIPES: dict[str, Recipe] = {"prefect": PREFECT, "dagster": DAGSTER}


def python(engine: str) -> Path:
    """The interpreter of an environment with an engine, and with what the tests have beside it."""
    return environment(engine, RECIPES[engine], beside=sys.executable)


def environ(engine: str, home: Path) -> dict[str, str]:
    """What a program of that engine finds; all that it keeps is in the home, as shanty's is."""
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "SHANTY_"))}
    if mpi_folder().exists() and not (home / "mpi").exists():
        (home / "mpi").symlink_to(mpi_folder())
    kept = home / engine
    kept.mkdir(exist_ok=True)
    own = {
        "prefect": {
            "PREFECT_HOME": str(kept),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
            "DO_NOT_TRACK": "1",
        },
        "dagster": {"DAGSTER_HOME": str(kept), "DAGSTER_DISABLE_TELEMETRY": "true"},
    }
    path = os.pathsep.join([str(ROOT / "src"), str(WORKERS)])
    return {**outer, **own[engine], "SHANTY_HOME": str(home), "PYTHONPATH": path}


@dataclass
class Program:
    """A program of an engine; it writes into a file: Prefect's server may keep a pipe open."""

    process: subprocess.Popen[bytes]
    file: Path

    @property
    def said(self) -> str:
        return self.file.read_text(errors="replace")

    def wait(self, seconds: float) -> str:
        """Wait for its end; returns what it has said."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not over within {seconds} s:\n{self.said}") from None
        return self.said


@contextmanager
def started(engine: str, home: Path, folder: Path, *words: str | Path) -> Iterator[Program]:
    """Start Python of an engine with these words; it is ended at the end of the block."""
    file = home / "said"
    with file.open("wb") as out:
        process = subprocess.Popen(
            [str(python(engine)), *map(str, words)],
            cwd=folder,
            env=environ(engine, home),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=interruptible,
        )
    try:
        yield Program(process, file)
    finally:
        with suppress(ProcessLookupError):  # the server may be left; it is of this group
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def checks_of(engine: str, module: str) -> str:
    """Make all checks of a worker module; returns what it says."""
    with TemporaryDirectory(prefix=f"{engine}-") as folder:
        home, work = Path(folder, "home"), Path(folder, "work")
        home.mkdir()
        work.mkdir()
        call = f"import {module}; {module}.main()"
        with started(engine, home, work, "-c", call, work) as program:
            return program.wait(500)


def example(engine: str) -> str:
    """The whole example of an engine's page."""
    text = (ROOT / "docs" / "how-to" / f"{engine}.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found, "the page has no example"
    return found[1]
