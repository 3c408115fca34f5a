"""A lab for the benchmarks, in a shanty home of its own that is gone afterwards."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SHANTY = str(Path(sys.executable).parent / "shanty")
_FOREIGN = ("OMPI_", "PRTE_", "PMIX_", "HYDRA_", "I_MPI_", "SHANTY_")
_UP = 120  # seconds for a lab to come up or to go


@dataclass(frozen=True)
class Home:
    """A folder for shanty's files and an empty workspace, and the environment to use them in."""

    path: Path
    workspace: Path

    @property
    def environ(self) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
        return {**clean, "SHANTY_HOME": str(self.path), "OMP_NUM_THREADS": "1"}

    def shanty(self, *words: str, timeout: float = _UP) -> str:
        """What shanty prints; ends the benchmark where it fails."""
        done = subprocess.run(
            [SHANTY, *words],
            env=self.environ,
            cwd=self.workspace,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if done.returncode:
            raise SystemExit(f"shanty {' '.join(words)}: {done.returncode}\n{done.stderr}")
        return done.stdout

    def files(self, lab: str, host: str) -> Path:
        """The home of a lab's host, as it is seen from outside."""
        return self.path / "lab" / lab / "hosts" / host / "home"


@contextlib.contextmanager
def home(mpis: Path | None = None) -> Iterator[Home]:
    """A home that is used for nothing else; `mpis` is a folder of MPIs (`~/.shanty/mpi`)."""
    with tempfile.TemporaryDirectory(prefix="shanty-bench-") as folder:
        made = Home(Path(folder, "home"), Path(folder, "workspace"))
        made.path.mkdir()
        made.workspace.mkdir()
        if mpis is not None and mpis.is_dir():
            (made.path / "mpi").symlink_to(mpis.resolve())
        yield made


@contextlib.contextmanager
def lab(where: Home, count: int, *words: str) -> Iterator[str]:
    """A lab of so many hosts, one slot each, made with the further `words`; its name."""
    name = f"bench{count}x"  # a lab's name ends with a letter
    where.shanty("lab", "up", str(count), "--name", name, "--slots", "1", *words)
    try:
        yield name
    finally:
        where.shanty("lab", "down", name)
