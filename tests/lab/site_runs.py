"""Runs over the hosts of a lab, as tests drive them, and what a run may have left there."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conftest import LabHosts

from runs import mpi_folder, wait_for
from shanty.runtime import platform
from shanty.runtime.rundir import RunDir, read_json, read_lines

# In step with each other. Whoever waits sleeps: a call that blocks would keep a core busy.
UP = """
from mpi4py import MPI
import time
world = MPI.COMM_WORLD
print("up", world.rank, MPI.Get_processor_name(), flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    barrier = world.Ibarrier()
    while not barrier.Test():
        time.sleep(0.02)
    time.sleep(0.02)
"""


@dataclass
class Site:
    """A lab, a workspace, and runs that go there."""

    lab: LabHosts
    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        mpis = self.lab.shanty.home / "mpi"
        if mpi_folder().exists() and not mpis.is_symlink():
            mpis.symlink_to(mpi_folder())

    def write(self, name: str, text: str) -> None:
        """Put a file into the workspace."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def start(self, *words: str | Path, **options: Any) -> subprocess.Popen[str]:
        """Start `shanty WORDS…` in the workspace."""
        return self.lab.shanty.start(*words, cwd=self.folder, **options)

    def __call__(
        self, *words: str | Path, stdin: str | None = None, timeout: float = 90
    ) -> subprocess.CompletedProcess[str]:
        """Run `shanty WORDS…` to its end."""
        source = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        process = self.start(*words, stdin=source)
        try:
            out, err = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"hangs: {words}\n{out}\n{err}") from None
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    @property
    def last(self) -> RunDir:
        """The newest run."""
        return RunDir(sorted((self.lab.shanty.home / "runs").iterdir())[-1])

    def status(self) -> dict[str, Any]:
        """What the newest run's status file says."""
        return read_json(self.last.status) or {}

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The newest run's events of that kind."""
        return [event for event in read_lines(self.last.events) if event["event"] == kind]

    @contextmanager
    def running(self, mpi: str, ranks: int = 3) -> Iterator[subprocess.Popen[str]]:
        """A run with one rank a host that goes on until something happens to it."""
        before = set((self.lab.shanty.home / "runs").glob("*"))
        self.write("up.py", UP)
        process = self.start(
            *("run", "-q", "--on", self.lab.name, "--mpi", mpi, "-n", str(ranks)),
            *("--ranks-per-host", "1", "up.py"),
        )
        try:
            wait_for(lambda: set((self.lab.shanty.home / "runs").glob("*")) - before, 20, "no run")
            wait_for(
                lambda: self.status().get("state") == "running" or process.poll() is not None,
                120,  # the first run of an MPI takes it to the hosts
                "it never ran",
            )
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=30)

    def remains(self, run: str) -> list[str]:
        """What is left of a run on any host: processes, files in /tmp and /dev/shm."""
        found = [f"process {entry.pid}" for entry in platform.marked("SHANTY_RUN_ID", run)]
        for path in Path("/proc").iterdir():
            if path.name.isdecimal():
                try:
                    words = (path / "cmdline").read_bytes()
                except OSError:
                    continue
                if run.encode() in words:
                    found.append(f"process {path.name} {words[:200]!r}")
        return found

    def files(self, host: str) -> set[str]:
        """What lies in /tmp and /dev/shm of a host."""
        done = self.lab.exec(host, "sh", "-c", "ls -dA /tmp/* /dev/shm/* 2>/dev/null; true")
        return set(done.stdout.split())
