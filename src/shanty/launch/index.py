"""Finds runs by id, prefix, name or `last`, and keeps an SQLite index over their directories.

The directories are the truth. The index only spares reading those of ended runs again; it is
made anew when it is missing or damaged.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shanty.launch.targets.registry import Targets
from shanty.runtime.errors import NotFoundError, StorageError, UsageError
from shanty.runtime.rundir import RunDir, is_run_id, read_json, storage_errors
from shanty.runtime.spec import JobSpec, Status

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, name TEXT, tags TEXT NOT NULL, command TEXT NOT NULL,
    workspace TEXT NOT NULL, status TEXT NOT NULL
) STRICT
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """Holds one run as `ps` shows it."""

    id: str
    name: str | None
    tags: tuple[str, ...]
    command: tuple[str, ...]
    workspace: str
    status: Status

    def to_json(self) -> dict[str, Any]:
        """Return the entry as plain JSON, the status' values beside the others."""
        own = {key: getattr(self, key) for key in ("id", "name", "tags", "command", "workspace")}
        return {**own, **self.status.to_json()}


class Runs:
    """Finds, lists and deletes the runs under one home."""

    def __init__(self, home: Path, targets: Targets) -> None:
        self.folder = home / "runs"
        self._file = home / "index.sqlite"
        self._targets = targets

    def ids(self) -> list[str]:
        """List all runs, the newest last."""
        with contextlib.suppress(OSError):
            return sorted(path.name for path in self.folder.iterdir() if is_run_id(path.name))
        return []

    def directory(self, run_id: str) -> RunDir:
        """Return the directory of the run with that very id."""
        return RunDir(self.folder / run_id)

    def find(self, reference: str) -> RunDir:
        """Find the run meant by an id, a name, the beginning of an id, or `last`.

        Of several with that name the newest that is on, else the newest.
        """
        ids = self.ids()
        if reference == "last" and ids:
            return self.directory(ids[-1])
        if reference in ids:
            return self.directory(reference)
        named = [entry for entry in self.entries() if reference and entry.name == reference]
        if named:
            on = [entry for entry in named if not entry.status.state.final]
            return self.directory((on or named)[-1].id)
        matches = [run for run in ids if reference and run.startswith(reference)]
        if len(matches) == 1:
            return self.directory(matches[0])
        if matches:
            raise UsageError(
                f"{reference!r} fits {len(matches)} runs",
                ", ".join(matches[-5:]),
                "give more of the id",
            )
        fix = "`shanty ps --all` lists the runs" if ids else "there are no runs yet"
        near = _similar(reference, [entry.name for entry in self.entries() if entry.name])
        raise NotFoundError(f"there is no run {reference!r}", fix=near + fix)

    def status(self, run: RunDir) -> Status:
        """Ask where the run stands now."""
        return self._targets.describe([run])[run]

    def active(self) -> list[RunDir]:
        """List the runs that have not ended; one that is LOST may be on where nobody sees it."""
        return [self.directory(each.id) for each in self.entries() if each.status.ended is None]

    def entries(self) -> list[Entry]:
        """List all runs with their present status, the oldest first."""
        try:
            return self._entries()
        except (sqlite3.DatabaseError, ValueError, TypeError):
            # Damaged, or of an older form: what is in it can be read from the directories.
            for path in self.folder.parent.glob("index.sqlite*"):
                with contextlib.suppress(OSError):
                    path.unlink()
            return self._entries()

    def _entries(self) -> list[Entry]:
        ids = self.ids()
        with self._open() as index:
            rows = index.execute("SELECT id, name, tags, command, workspace, status FROM runs")
            known = {row[0]: _from_row(*row) for row in rows}
            # Nothing is locked while runs are asked: hosts that do not answer take their time.
            new = self.read(
                [
                    self.directory(run_id)
                    for run_id in ids
                    if run_id not in known or known[run_id].status.ended is None
                ]
            )
            if gone := set(known) - set(ids):
                index.executemany("DELETE FROM runs WHERE id = ?", [(run,) for run in gone])
            changed = [_row(entry) for entry in new if known.get(entry.id) != entry]
            if changed:
                index.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)", changed)
        known.update((entry.id, entry) for entry in new)
        return [known[run_id] for run_id in ids]

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the index, or one in memory where the folder cannot be written."""
        try:
            connection = sqlite3.connect(self._file, timeout=5)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(_SCHEMA)
        except sqlite3.OperationalError:
            connection = sqlite3.connect(":memory:")
            connection.execute(_SCHEMA)
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    def read(self, runs: Sequence[RunDir]) -> list[Entry]:
        """Read runs from their directories; a damaged job file leaves the command empty."""
        entries = []
        for run, status in self._targets.describe(runs).items():
            job = read_job(run)
            if job is None:
                entries.append(Entry(run.id, None, (), (), "", status))
            else:
                words = (job.name, tuple(job.tags), tuple(job.words()), job.workdir)
                entries.append(Entry(run.id, *words, status))
        return entries

    def forget(self, run: RunDir) -> None:
        """Have the run read from its directory again, where its job was changed."""
        with contextlib.suppress(sqlite3.DatabaseError), self._open() as index:
            index.execute("DELETE FROM runs WHERE id = ?", (run.id,))

    def remove(self, run: RunDir, *, force: bool = False) -> None:
        """Delete a run with all its files; UsageError while it is on, unless `force`."""
        if not force and not self.status(run).state.final:
            raise UsageError(
                f"run {run.id} is still on", fix=f"stop it first: shanty stop {run.id}"
            )
        _delete(run)

    def prune(self, keep: int) -> list[str]:
        """Delete the oldest ended runs beyond `keep`; returns their ids."""
        ids = self.ids()
        oldest = [self.directory(run_id) for run_id in ids[: max(0, len(ids) - keep)]]
        removed = []
        for run, status in self._targets.describe(oldest).items():
            with contextlib.suppress(StorageError):
                if status.ended is not None:  # a run that is LOST may yet be found again
                    _delete(run)
                    removed.append(run.id)
        return removed


def _similar(reference: str, names: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(reference, names, 1)
    return f"did you mean {near[0]}? " if near else ""


def _delete(run: RunDir) -> None:
    with storage_errors(run.path):
        shutil.rmtree(run.path)


def _row(entry: Entry) -> tuple[str | None, ...]:
    lists = (json.dumps(entry.tags), json.dumps(entry.command))
    return (entry.id, entry.name, *lists, entry.workspace, json.dumps(entry.status.to_json()))


def _from_row(run: str, name: str, tags: str, command: str, folder: str, status: str) -> Entry:
    lists = (tuple(json.loads(tags)), tuple(json.loads(command)))
    return Entry(run, name, *lists, folder, Status.from_json(json.loads(status)))


def read_job(run: RunDir) -> JobSpec | None:
    """Read what was asked for; None when the file is missing or damaged."""
    values = read_json(run.job)
    try:
        return JobSpec.from_json(values) if values is not None else None
    except (KeyError, TypeError, ValueError):
        return None
