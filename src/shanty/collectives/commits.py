"""The files of commits: on disk for a later run, in memory for a later attempt of the same run.

One file on disk for a call of `hvd.elastic.run`, written by rank 0, named by a hash over the
folder, the script, its arguments, the function and how many calls of `run` there were before: the
same command finds it. It is removed when the training has ended well. SHANTY_COMMITS is the folder
of such files, by default `commits` in shanty's home; SHANTY_RESUME=0 starts afresh.

Where another attempt may follow (`--retries`), rank 0 writes its commits into its host's memory as
well, and a rank of another host has a copy in that host's: rank 0 sends it each time. The next
attempt begins with the newest that any host has. The agents remove these files with the run. The
age of a file, in nanoseconds by the clock of rank 0, is the commit's number.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from shanty.collectives import confirmation, process_sets, regrowth
from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.exchange import exchange, wait
from shanty.runtime.rundir import ATTEMPT_DIR, CONTINUES, RUN_ID, home, memory_of

FOLDER, RESUME = "SHANTY_COMMITS", "SHANTY_RESUME"
_JOB = "SHANTY_JOB"  # set by a run: stands for its name and the folder in which it was started
_SHORT = 0.05  # seconds; a commit that is written so fast costs nothing worth saving
_SHARE = 10  # writing takes at most one part in this many of the time
_WARNING = "SHANTY_WARNING"  # the signal with which a queue warns of an end that is near
_MOST, _MADE = "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT"  # set by a run
_USABLE = "SHANTY_MEMORY"  # set by a run: the bytes that this host's processes may use
_PART = 8  # a commit takes at most one part in this many of the memory
_PIECE = 64 << 20  # bytes of a message
_WAITS = "state.commit(), which all ranks must call, waits for another rank"
_SHARED = "/dev/shm"
_FIRST, _NUMBER, _CONTENT = 11, 12, 13  # tags, beside those of `exchange`
_calls: Counter[str] = Counter()
_warned: list[int] = []  # then every commit is written


def say(text: str) -> None:
    """Print a message for the user on standard error."""
    print(f"shanty: {text}", file=sys.stderr, flush=True)


def command_key(name: str) -> str:
    """Return a key for this command, and for its next call of `run` with the function `name`."""
    here = Path.cwd()
    script = os.path.relpath(sys.argv[0] or ".", here)
    place = os.environ.get(_JOB) or str(here)
    text = json.dumps([place, script, sys.argv[1:], name, _calls[name]])
    _calls[name] += 1
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def heed_warning() -> None:
    """Handle the queue's warning signal, unless the script handles it."""
    text = os.environ.get(_WARNING, "")
    if not text.isdigit() or threading.current_thread() is not threading.main_thread():
        return
    number = int(text)
    if signal.getsignal(number) is signal.SIG_DFL:
        signal.signal(number, lambda *_: _warned.append(number))


class Format(NamedTuple):
    """The format of a commit's file: a framework's own. load: of a path; save: to an open file."""

    load: Callable[[Path], Any]
    save: Callable[[Any, BinaryIO], object]


class _Place:
    """A file that is replaced in one step; by `disk` it outlives its host's power as well."""

    def __init__(self, path: Path, *, disk: bool) -> None:
        self.path, self.disk, self.usable = path, disk, True
        self.next = 0.0  # when the next one may be written

    @property
    def stamp(self) -> int:
        """The number of the commit that is there; 0 where there is none."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    @property
    def size(self) -> int:
        """The bytes of the commit that is there; 0 where there is none."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def fits(self, size: int) -> bool:
        """Whether a commit of this size leaves enough memory to others."""
        if self.disk:
            return True
        try:
            room = os.statvfs(_SHARED)
        except OSError:
            return False
        free = room.f_bavail * room.f_frsize + self.size
        return size * _PART <= min(free, int(os.environ.get(_USABLE, "0")))

    @property
    def is_due(self) -> bool:
        """Whether it may be written now."""
        return self.usable and (time.monotonic() >= self.next or bool(_warned))

    def put(self, fill: Callable[[BinaryIO], object], stamp: int) -> None:
        """Replace the file by what `fill` writes; where that fails, it is not usable any more."""
        began = time.monotonic()
        temporary = self.path.with_suffix(".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with temporary.open("wb") as file:
                fill(file)
                file.flush()
                if self.disk:
                    os.fsync(file.fileno())
            os.utime(temporary, ns=(stamp, stamp))
            confirmation.confirm_place()  # a host that was frozen may find that it is left behind
            temporary.replace(self.path)
        except Exception as error:  # noqa: BLE001  pickle raises whatever an object does
            self.usable = False
            with contextlib.suppress(OSError):
                temporary.unlink()
            if self.disk:
                say(f"commits stay in memory from now on: {type(error).__name__}: {error}")
        took = time.monotonic() - began
        self.next = began + took * _SHARE if took > _SHORT else 0.0

    def copy(self, file: BinaryIO) -> None:
        """Write its content to another file."""
        with self.path.open("rb") as source:
            shutil.copyfileobj(source, file)

    def remove(self) -> None:
        """Remove the file, and what a process left that was killed while it wrote."""
        for suffix in (self.path.suffix, ".new"):
            self.path.with_suffix(suffix).unlink(missing_ok=True)


class Store:
    """The commit of one call of `run`. All of it is rank 0's."""

    def __init__(self, path: Path, form: Format) -> None:
        self.path = path
        self._format = form
        self._lock: BinaryIO | None = None
        self._disk = _Place(path, disk=True)
        self._memory = _place_in_memory(path)
        self._held = self._hold()
        self._disk.usable = self._held
        self._stamp = max(self._disk.stamp, self._memory.stamp if self._memory else 0)
        self._other: int | None = None  # the rank that has the copy

    def _hold(self) -> bool:
        """Lock the file for as long as this process lives; returns whether that worked."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = self.path.with_suffix(".lock").open("ab")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("the same training is under way already: this one's commits stay in memory")
            return False
        except OSError as error:
            say(f"commits stay in memory: {error}")
            return False
        return True

    def resume(self, take_up: Callable[[Any], None]) -> None:
        """Pass what was left to `take_up`, by an earlier run or by the attempt before.

        RuntimeError where it does not fit.
        """
        if not self._held:
            return
        places = [self._disk] if self._memory is None else [self._memory, self._disk]
        if os.environ.get(RESUME) == "0" and not os.environ.keys() & {ATTEMPT_DIR, CONTINUES}:
            for place in places:
                place.remove()
            return
        newest = max(places, key=lambda place: place.stamp)
        if not newest.stamp:
            return
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(newest.stamp / 1e9))
        try:
            take_up(self._format.load(newest.path))
        except Exception as error:
            raise RuntimeError(
                f"the commit of {at} in {newest.path} cannot be taken up "
                f"({type(error).__name__}: {error}). SHANTY_RESUME=0 starts afresh, without it."
            ) from error
        say(f"goes on from the commit of {at}, {newest.path}; SHANTY_RESUME=0 starts afresh")

    def write(self, kept: Any) -> None:
        """Replace the files by `kept`, unless that would take too much of the time.

        A failure to write is reported once, and training goes on.
        """
        if kept is None:
            if self._disk.usable:
                say("commits stay in memory: this kind of state cannot be written to disk")
            self._disk.usable, self._memory = False, None
        self._stamp = max(time.time_ns(), self._stamp + 1)
        places = [self._disk] if self._memory is None else [self._memory, self._disk]
        if not any(place.size for place in places):
            places.reverse()  # nobody knows yet whether it fits into memory
        done: _Place | None = None
        for place in places:
            if place.is_due and place.fits(max(each.size for each in places)):
                fill = partial(self._format.save, kept) if done is None else done.copy
                place.put(fill, self._stamp)
                done = place if place.usable else done
        if self._other is not None:
            _send(self._other, self._memory, self._stamp)

    def meet(self, other: int, stamp: int) -> None:
        """Send copies to the rank `other` from now on, whose copy has this number."""
        self._other, self._stamp = other, max(self._stamp, stamp)

    def alone(self) -> None:
        """Send no copies any more."""
        self._other = None

    def remove(self) -> None:
        """Remove the files, after a training that has ended well."""
        if self._held:
            self.path.with_suffix(".lock").unlink(missing_ok=True)
            self._disk.remove()
        if self._memory is not None:
            self._memory.remove()

    def close(self) -> None:
        """Release the files; their content stays."""
        self._held = self._disk.usable = False
        self._memory = None
        if self._lock is not None:
            self._lock.close()


class Copy:
    """The copy of rank 0's commit in the memory of another host. All of it is that rank's."""

    def __init__(self, place: _Place) -> None:
        self._place = place

    def take(self) -> None:
        """Take what rank 0 sends at a commit."""
        _receive(0, [self._place])

    def remove(self) -> None:
        """Remove it, after a training that has ended well."""
        self._place.remove()


def pair(store: Store | None, path: Path) -> Copy | None:
    """Have rank 0, whose `store` is given there, send copies to the first rank of another host.

    All ranks call it whenever they have met. Returns the copy, on that rank.
    """
    place, world = _place_in_memory(path), process_sets.standing
    if store is not None:
        store.alone()
    if place is None or not place.usable or world is None:
        return None
    seat, word = world.topology, array("q", [0, 0])
    if seat.cross_size < 2 or seat.local_rank != 0:
        return None
    with _errors():
        if seat.rank == 0 and store is not None:
            from mpi4py import MPI

            wait(world.comm.Irecv(word, MPI.ANY_SOURCE, _FIRST), _WAITS, world.settings)
            store.meet(*word)
        elif seat.cross_rank == 1:
            word = array("q", [seat.rank, place.stamp])
            wait(world.comm.Isend(word, 0, _FIRST), _WAITS, world.settings)
            return Copy(place)
    return None


def gather(path: Path) -> None:
    """Bring the newest commit that a host has in its memory to rank 0's host. All ranks call it."""
    memory, world = _place_in_memory(path), process_sets.standing
    if memory is None or world is None or regrowth.is_joining():
        return
    seat = world.topology
    if seat.local_size == seat.size:
        return
    disk = _Place(path, disk=True)
    stamp = max(memory.stamp, disk.stamp) if seat.rank == 0 else memory.stamp
    with _errors():
        stamps = exchange(world.comm, stamp, "hvd.elastic.run()", world.settings)
    holder = stamps.index(max(stamps))
    if holder > 0 and seat.rank == holder:
        _send(0, memory, stamp)
    elif holder > 0 and seat.rank == 0:
        memory.usable = True
        _receive(holder, [memory, disk])


def _send(rank: int, place: _Place | None, stamp: int) -> None:
    """Send the commit that has this number to another rank, or that there is none."""
    world = process_sets.current()
    there = place is not None and place.stamp == stamp
    word = array("q", [stamp, place.size if place is not None and there else 0])
    with _errors():
        wait(world.comm.Isend(word, rank, _NUMBER), _WAITS, world.settings)
        if place is not None and word[1]:
            with place.path.open("rb") as file:
                while piece := file.read(_PIECE):
                    wait(world.comm.Isend(piece, rank, _CONTENT), _WAITS, world.settings)


def _receive(rank: int, places: Sequence[_Place]) -> None:
    """Receive what `_send` sends, and keep it in the first of these places that takes it."""
    world, word = process_sets.current(), array("q", [0, 0])
    with _errors():
        wait(world.comm.Irecv(word, rank, _NUMBER), _WAITS, world.settings)
        stamp, size = word
        data = bytearray(size)
        for start in range(0, size, _PIECE):
            piece = memoryview(data)[start : start + _PIECE]
            wait(world.comm.Irecv(piece, rank, _CONTENT), _WAITS, world.settings)
    for place in places if size else ():
        if place.usable and place.fits(size):
            place.put(lambda file: file.write(data), stamp)
            if place.usable:
                return


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Raise HorovodInternalError for what fails in MPI: a rank was lost."""
    from mpi4py import MPI

    try:
        yield
    except MPI.Exception as error:
        raise HorovodInternalError(str(error)) from error


def _place_in_memory(path: Path) -> _Place | None:
    """Return the place in memory for the file `path`; None in a run that has one attempt only.

    A run that continues another one has the commits of that. It is not usable in the last attempt.
    """
    run, most = os.environ.get(RUN_ID, ""), os.environ.get(_MOST, "")
    if not run or not most.isdigit() or (int(most) == 0 and CONTINUES not in os.environ):
        return None
    place = _Place(memory_of(run) / path.name, disk=False)
    made = os.environ.get(_MADE, "")
    place.usable = made.isdigit() and int(made) < int(most)
    return place


def commit_path(name: str) -> Path:
    """Return the file for commits of the next call of `run` for the function `name`."""
    given = os.environ.get(FOLDER)
    folder = Path(given).expanduser().absolute() if given else home(os.environ) / "commits"
    return folder / f"{command_key(name)}.pt"
