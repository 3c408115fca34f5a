"""Finds runs by id, prefix, name or `last`, and keeps an SQLite index over their directories.

The directories are the truth. The index only spares reading those of ended runs again; it is
made again when it is missing or damaged, and held in memory where it cannot be written.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from shanty.launch import run_query
from shanty.launch.run_query import Found, Query
from shanty.launch.targets.registry import LOCAL, Targets
from shanty.runtime.errors import NotFoundError, StorageError, UsageError
from shanty.runtime.rundir import RunDir, is_run_id, make_removable, read_json, storage_errors
from shanty.runtime.spec import JobSpec, Status
from shanty.runtime.suggestions import nearest

T = TypeVar("T")
# The columns after `status` are made of those before, for `run_query`.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, name TEXT, tags TEXT NOT NULL, command TEXT NOT NULL,
    workspace TEXT NOT NULL, target TEXT NOT NULL, place TEXT NOT NULL,
    machine_type TEXT NOT NULL, owner TEXT NOT NULL, status TEXT NOT NULL,
    state TEXT NOT NULL, created REAL NOT NULL, ended REAL, took REAL, ranks REAL,
    text TEXT NOT NULL
) STRICT
"""
_SCHEMA_ON = "CREATE INDEX IF NOT EXISTS runs_on ON runs (id) WHERE ended IS NULL"
_COLUMNS = "id, name, tags, command, workspace, target, place, machine_type, owner, status"
_BATCH = 500  # runs that are read and written down at a time


@dataclass(frozen=True, slots=True)
class Entry:
    """Holds one run as `ps` shows it.

    `target` is where it went ("local", "ssh", "slurm", "k8s" or another package's), `on` the hosts
    as they were typed. `owner` is who started it by the dashboard, "" for the account itself.
    """

    id: str
    name: str | None
    tags: tuple[str, ...]
    command: tuple[str, ...]
    workspace: str
    status: Status
    target: str = LOCAL
    on: str = ""
    machine_type: str = ""
    owner: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the entry as plain JSON, the status' values beside the others."""
        keys = ("id", "name", "tags", "command", "workspace", "target", "on", "owner")
        own = {key: getattr(self, key) for key in keys}
        return {**own, **self.status.to_json()}


@dataclass(frozen=True, slots=True)
class Changes:
    """Holds the runs that are new or stand elsewhere than at the last look, and those gone."""

    entries: list[Entry]
    gone: list[str]


class Runs:
    """Finds, lists and deletes the runs under one home."""

    def __init__(self, home: Path, targets: Targets) -> None:
        self.folder = home / "runs"
        self._file = home / "index.sqlite"
        self._memory: sqlite3.Connection | None = None  # has the index, where the folder cannot
        self._targets = targets

    def ids(self) -> list[str]:
        """List all runs, the newest last."""
        with contextlib.suppress(OSError), os.scandir(self.folder) as found:
            return sorted(entry.name for entry in found if is_run_id(entry.name))
        return []

    def directory(self, run_id: str) -> RunDir:
        """Return the directory of the run with that very id."""
        return RunDir(self.folder / run_id)

    def find(self, reference: str) -> RunDir:
        """Find the run meant by an id, a name, the beginning of an id, or `last`.

        If several runs have that name, it is the newest that is on, else the newest.
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
                f"{reference!r} matches {len(matches)} runs",
                ", ".join(matches[-5:]),
                "give a longer part of the id",
            )
        if not ids:
            raise NotFoundError(f"run {reference!r} not found: nothing has been run yet")
        near = nearest(reference, [entry.name for entry in self.entries() if entry.name])
        fix = f"{near} `shanty ps --all` lists the runs".lstrip()
        raise NotFoundError(f"run {reference!r} not found", fix=fix)

    def status(self, run: RunDir) -> Status:
        """Ask where the run stands now."""
        return self._targets.describe([run])[run]

    def entries(self) -> list[Entry]:
        """List all runs with their present status, the oldest first."""
        return self._mended(self._entries)

    def _entries(self) -> list[Entry]:
        new = self._refresh(lambda _folder: True, 0).entries
        with self._open() as index:
            rows = index.execute(f"SELECT {_COLUMNS} FROM runs").fetchall()
        known = {row[0]: _from_row(*row) for row in rows}
        known.update((entry.id, entry) for entry in new)
        return [known[run_id] for run_id in sorted(known)]

    def _mended(self, look: Callable[[], T]) -> T:
        """Return what `look` does, with a new index where the old one cannot be used."""
        try:
            return look()
        except (sqlite3.DatabaseError, ValueError, TypeError):
            # Damaged, or of an older form: what is in it can be read from the directories.
            for path in self.folder.parent.glob("index.sqlite*"):
                with contextlib.suppress(OSError):
                    path.unlink()
        try:
            return look()
        except sqlite3.OperationalError:  # it cannot be written
            self._hold()
            return look()

    def refresh(
        self, wanted: Callable[[Path], bool] = lambda _folder: True, batch: int = 0
    ) -> Changes:
        """Bring the index up to date: new runs are read, those that go on are asked again.

        Only runs whose folder is `wanted` are. With a `batch` no more than that many new ones are,
        the newest first; call it again while it returns as many.
        """
        return self._mended(lambda: self._refresh(wanted, batch))

    def _refresh(self, wanted: Callable[[Path], bool], batch: int) -> Changes:
        with self._open() as index:
            rows = index.execute("SELECT id, ended IS NULL FROM runs").fetchall()
            ids = self.ids()  # after that, or a run that comes between them would seem gone
            on = {run_id for run_id, still in rows if still}
            known = {run_id for run_id, _ in rows}
            gone = sorted(known - set(ids))
            for run_id in gone:
                index.execute("DELETE FROM runs WHERE id = ?", (run_id,))
        new = (run_id for run_id in reversed(ids) if run_id not in known)
        chosen = [run_id for run_id in ids if run_id in on and wanted(self.folder / run_id)]
        chosen += islice((i for i in new if wanted(self.folder / i)), batch or None)
        runs = [self.directory(run_id) for run_id in chosen]
        changed: list[Entry] = []
        for start in range(0, len(runs), _BATCH):
            changed += self.reread(runs[start : start + _BATCH])
        return Changes(changed, gone)

    def reread(self, runs: Sequence[RunDir]) -> list[Entry]:
        """Read runs again, write down in the index what has changed, and return that."""
        found = self.read(runs)  # nothing is locked meanwhile: hosts may take their time
        with self._open() as index:
            marks = ", ".join("?" * len(found))
            rows = index.execute(
                f"SELECT {_COLUMNS} FROM runs WHERE id IN ({marks})", [each.id for each in found]
            )
            known = {row[0]: _from_row(*row) for row in rows}
            changed = [entry for entry in found if _is_news(entry, known.get(entry.id))]
            marks = ", ".join("?" * (_COLUMNS.count(",") + 7))
            index.executemany(
                f"INSERT OR REPLACE INTO runs VALUES ({marks})", [_row(each) for each in changed]
            )
        return changed

    def on(self) -> list[RunDir]:
        """Return the runs that had not ended at the last `refresh`."""
        with self._open() as index:
            rows = index.execute("SELECT id FROM runs WHERE ended IS NULL").fetchall()
        return [self.directory(run_id) for (run_id,) in rows]

    def page(self, query: Query) -> tuple[list[Entry], Found]:
        """Return the entries of one page as they were at the last `refresh`."""

        def look() -> tuple[list[Entry], Found]:
            with self._open() as index:
                found = run_query.find(index, query)
                return _of_ids(index, found.ids), found

        return self._mended(look)

    def known(self, ids: Sequence[str]) -> list[Entry]:
        """Return the entries of these runs as they were at the last `refresh`, in that order."""
        with self._open() as index:
            return _of_ids(index, ids)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the index, or the one in memory where the folder cannot be written."""
        connection = self._connect()
        try:
            with connection:
                connection.execute(_SCHEMA_ON)  # it fails on a table of an older form
                yield connection
        finally:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        if self._memory is None:
            try:
                connection = sqlite3.connect(self._file, timeout=5)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute(_SCHEMA)
            except sqlite3.OperationalError:
                self._hold()
            else:
                return connection
        return self._in_memory()

    def _hold(self) -> None:
        """Have the index in memory from now on."""
        self._memory = self._in_memory()
        self._memory.execute(_SCHEMA)

    def _in_memory(self) -> sqlite3.Connection:
        """Connect to the index in memory, which is there as long as one connection to it is."""
        name = f"file:runs-{id(self)}?mode=memory&cache=shared"
        connection = sqlite3.connect(name, uri=True, timeout=5, check_same_thread=False)
        connection.execute("PRAGMA read_uncommitted = on")  # who reads waits for nobody
        return connection

    def read(self, runs: Sequence[RunDir]) -> list[Entry]:
        """Read runs from their directories; a damaged job file leaves the command empty."""
        entries = []
        for run, status in self._targets.describe(runs).items():
            job = read_job(run)
            target, owner = self._targets.scheme(run), read_owner(run)
            if job is None:
                entry = Entry(run.id, None, (), (), "", status, target, owner=owner)
            else:
                name = None if job.name is None else _text(job.name)
                words = (name, tuple(job.tags), tuple(job.words()), _text(job.workdir))
                kind = job.machines[-1][0] if job.machines else ""  # the workers', not the master's
                entry = Entry(run.id, *words, status, target, _text(job.on or ""), kind, owner)
            entries.append(entry)
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

    def prune(self, keep: int, unread: float = 0.0) -> list[str]:
        """Delete the oldest ended runs beyond `keep`; returns their ids.

        A task may be waited for, so its run stays for `unread` seconds after its end.
        """
        ids = self.ids()
        oldest = [self.directory(run_id) for run_id in ids[: max(0, len(ids) - keep)]]
        removed = []
        for run, status in self._targets.describe(oldest).items():
            with contextlib.suppress(StorageError):
                if status.ended is None:  # a run that is LOST may yet be found again
                    continue
                if not run.results.is_dir() or time.time() >= status.ended + unread:
                    _delete(run)
                    removed.append(run.id)
        return removed


def _delete(run: RunDir) -> None:
    with storage_errors(run.path):
        try:
            shutil.rmtree(run.path)
        except PermissionError:  # perhaps of a read-only folder that ranks have made there
            make_removable(run.path)
            shutil.rmtree(run.path)


def _is_news(entry: Entry, known: Entry | None) -> bool:
    """Return whether to write it down: not what somebody read before the run had ended."""
    if known is not None and known.status.ended is not None and entry.status.ended is None:
        return False
    return entry != known


def _row(entry: Entry) -> tuple[str | float | None, ...]:
    lists = (json.dumps(entry.tags), json.dumps(entry.command))
    status, failure = entry.status, entry.status.failure
    words = (
        entry.id, entry.name or "", entry.workspace, *entry.command, *entry.tags, entry.on,
        entry.machine_type, entry.owner, status.state.value, failure.what if failure else "",
    )  # fmt: skip
    ended = None if status.ended is None else _real(status.ended)
    return (
        entry.id, entry.name, *lists, entry.workspace, entry.target, entry.on, entry.machine_type,
        entry.owner, json.dumps(status.to_json()), status.state.value, _real(status.created), ended,
        None if ended is None else _real(status.took()),
        None if status.ranks is None else _real(status.ranks),
        _text("\n".join(map(str, words))).lower(),
    )  # fmt: skip


def _text(value: object) -> str:
    """Return a text as SQLite takes it: a folder's name may be of bytes that are none."""
    return str(value).encode("utf-8", "replace").decode()


def _real(value: float | None) -> float:
    """Return a number as SQLite takes it; 0 for a number that no file of ours should have."""
    try:
        found = float(value or 0.0)
    except (OverflowError, TypeError, ValueError):
        return 0.0
    return found if math.isfinite(found) else 0.0


def _from_row(
    run: str, name: str, tags: str, command: str, folder: str, target: str, on: str,
    machine_type: str, owner: str, status: str,
) -> Entry:  # fmt: skip
    lists = (tuple(json.loads(tags)), tuple(json.loads(command)))
    known = Status.from_json(json.loads(status))
    return Entry(run, name, *lists, folder, known, target, on, machine_type, owner)


def _of_ids(index: sqlite3.Connection, ids: Sequence[str]) -> list[Entry]:
    marks = ", ".join("?" * len(ids))
    rows = index.execute(f"SELECT {_COLUMNS} FROM runs WHERE id IN ({marks})", list(ids))
    known = {row[0]: _from_row(*row) for row in rows}
    return [known[run_id] for run_id in ids if run_id in known]


def read_owner(run: RunDir) -> str:
    """Return who started the run by the dashboard; "" for one of the account's own."""
    try:
        return run.owner.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def read_job(run: RunDir) -> JobSpec | None:
    """Read what was asked for; None when the file is missing or damaged."""
    values = read_json(run.job)
    try:
        return JobSpec.from_json(values) if values is not None else None
    except (KeyError, TypeError, ValueError):
        return None
