"""A target of another package, with options of its own: this machine, once it may be had.

It is what such a package has to write: what it declares, a queue with three methods, and a process
that waits and starts the run. `package` makes it one that is installed, by its entry point.

    toy/<run>/reason    why it waits        granted     is there when it may have the host
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from shanty.launch.options.declared import Declared
from shanty.launch.options.option import choice, number, switch, texts
from shanty.launch.targets.base import Surroundings
from shanty.launch.targets.queued import Entry, QueuedTarget
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec

SLOTS = 4


class ToyQueue:
    """The queue: a folder a run, and a process that waits until the run may have the host."""

    scheme: ClassVar[str] = "toy"

    def __init__(self, home: Path) -> None:
        self.folder = home / "toy"

    def enqueue(self, run: RunDir, job: JobSpec, start: Sequence[str]) -> str:
        entry = self.folder / run.id
        entry.mkdir(parents=True)
        colour = job.options.get("toy_colour", "any")
        (entry / "reason").write_text(f"waits for a host: {colour} ones are taken")
        if job.options.get("toy_now"):
            (entry / "granted").touch()
        slots = str(job.options.get("toy_room", SLOTS))
        words = [sys.executable, __file__, str(entry), str(run.path), slots, *start]
        with (entry / "log").open("wb") as log:
            subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return run.id

    def look(self, names: Collection[str], age: float = 0.0) -> Mapping[str, Entry]:
        found = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                reason = (self.folder / name / "reason").read_text()
                found[name] = Entry(not (self.folder / name / "granted").exists(), reason)
        return found

    def dequeue(self, name: str) -> None:
        shutil.rmtree(self.folder / name)


def make(here: Surroundings) -> QueuedTarget:
    return QueuedTarget(here, ToyQueue(here.home))


# What the entry point names.
TOY = Declared(
    "toy",
    "Toy",
    (
        choice("toy_colour", "--toy-colour", "The colour of hosts.", "COLOUR", ("red", "blue")),
        number("toy_room", "--toy-room", "Ranks on the host.", toml=(int,)),
        texts("toy_names", "--toy-name", "A name to call it.", "NAME"),
        switch("toy_now", "--toy-now", "Do not wait."),
    ),
    late=True,
    make=make,
)


def package(folder: Path) -> list[str]:
    """Make a package whose target this is; returns what has to be on sys.path."""
    info = folder / "toy-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[shanty.targets]\ntoy = toy_target:TOY\n")
    return [str(folder), str(Path(__file__).parent)]


def main(entry: Path, run: Path, slots: str, *start: str) -> None:
    """Wait until the host may be had, and start the run; forget it after its end."""
    while not (entry / "granted").exists():
        if not entry.exists():
            return  # taken out
        time.sleep(0.02)
    given = [{"name": os.uname().nodename, "slots": int(slots)}]
    (run / "hosts.json").write_text(json.dumps(given))
    subprocess.run(start)
    shutil.rmtree(entry, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
