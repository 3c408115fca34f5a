"""The ranks that are left of an elastic run, and how they find each other after a loss.

`shanty run --elastic` lets MPI outlive a rank (MPI's fault tolerance, "ULFM": Bland et al.,
"Post-failure recovery of MPI communication capability", IJHPCA 2013). A call that needs a lost rank
raises an error then, on the ranks that notice. Each of them revokes all communicators, which ends
the calls of those that have not noticed; all that live agree that somebody has to start again, and
shrink the last communicator that they had in common. Without `--elastic` nothing here is used.
Importing this module starts no MPI.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from shanty.collectives import confirmation, regrowth
from shanty.collectives.errors import ArgumentError, CommunicationError, HorovodInternalError
from shanty.collectives.regrowth import Regrowth
from shanty.runtime.rundir import FAILING, SEAT

if TYPE_CHECKING:
    from mpi4py import MPI

Comm = TypeVar("Comm", bound="MPI.Comm")
Result = TypeVar("Result")

ELASTIC = "SHANTY_ELASTIC"
"""The variable with the least number of ranks that an elastic run goes on with."""

SPARES = "SHANTY_SPARES"
"""The variable with the number of its spares."""

_YIELD = 2e-3  # seconds of looking that only lets others go first
_LONGEST = 0.002  # seconds between two looks at most
_SLEEP = 0.02  # seconds between two looks of a spare
_GLANCE = 0.05  # seconds between two looks of a rank that starts, whether others go back

_living: MPI.Intracomm | None = None  # of the ranks, and spares, that were there when it was made
_active: MPI.Intracomm | None = None  # of the first `_size` of these, which train
_again = False  # some rank has to start again
_seats: list[int] = []  # of the ranks of `_living`: the numbers that they began with
_size = _spares = 0  # ranks and spares in the whole world
_is_new = False  # this rank has a place of a lost one, and not the training's state
_regrowth: Regrowth | None = None  # None where lost ranks cannot be started again
_made: list[MPI.Comm] = []  # from it, or from one of these


def is_elastic() -> bool:
    """Return whether this run goes on when it loses a rank."""
    return ELASTIC in os.environ


def track(comm: Comm) -> Comm:
    """Return a new communicator, whose calls will end when a rank was lost."""
    if is_elastic():
        from mpi4py import MPI

        comm.Set_errhandler(MPI.ERRORS_RETURN)
        _made.append(comm)
    return comm


def living(find_world: Callable[[], MPI.Intracomm]) -> MPI.Intracomm:
    """Return the communicator of the ranks that are left of the world. Collective the first time.

    On a spare it returns once that has the place of a lost rank.
    find_world: returns MPI's world, or raises where it is not the promised one.
    """
    global _living, _active, _regrowth, _seats, _size, _spares, _is_new
    if _living is None:
        from mpi4py import MPI

        _spares = int(os.environ.get(SPARES) or 0)
        if regrowth.START in os.environ:  # on one machine
            _regrowth = Regrowth(int(os.environ["WORLD_SIZE"]), _spares)
        if regrowth.is_joining():
            _size, _is_new = int(os.environ["WORLD_SIZE"]), True
            confirmation.listen(int(os.environ["RANK"]))
            _living, _seats = regrowth.join(_size)
            _active = _living
            return _active
        world = find_world()
        for each in (world, MPI.COMM_SELF):
            each.Set_errhandler(MPI.ERRORS_RETURN)
        confirmation.listen(world.rank)  # a host that is lost from here on ends the calls below
        _living = world.Dup()
        _living.Set_errhandler(MPI.ERRORS_RETURN)
        _size, _seats = world.size - _spares, list(range(world.size))
        _active = _of_the_first(_living)
        if world.rank >= _size:
            _is_new = True
            _sleep()
    assert _active is not None
    return _active


def _of_the_first(living: MPI.Intracomm) -> MPI.Intracomm:
    """Return the communicator of the ranks that train: the first ones, as spares are the last."""
    from mpi4py import MPI

    if living.size <= _size:
        return living
    made = living.Split(0 if living.rank < _size else MPI.UNDEFINED, living.rank)
    assert isinstance(made, MPI.Intracomm)
    if made != MPI.COMM_NULL:
        made.Set_errhandler(MPI.ERRORS_RETURN)
    return made


def refuse_spares(call: str) -> None:
    """Raise RuntimeError in a run with spares, which have no place in such a call."""
    if os.environ.get(SPARES):
        raise RuntimeError(
            f"{call} does not work with --spares: spares take the places of lost ranks in "
            "hvd.elastic.run after a plain hvd.init(). Start the run without --spares."
        )


def _sleep() -> None:
    """Wait until this spare has the place of a lost rank; end this process where none needs it."""
    from mpi4py import MPI

    assert _living is not None
    while _living.rank >= _size:
        MPI.COMM_SELF.Iprobe()  # lets MPI look at what has come
        if _living.Is_revoked():
            shrink()
        elif confirmation.is_over(_SLEEP):
            sys.exit(0)


def revoke() -> None:
    """End all calls on all communicators of this run, on all ranks; later ones raise."""
    from mpi4py import MPI

    for comm in [*_made, _active, _living]:
        if isinstance(comm, MPI.Intracomm) and comm != MPI.COMM_NULL:  # that is: was not freed
            with suppress(MPI.Exception):
                comm.Revoke()
    _made.clear()


def start(call: Callable[[], Result], undo: Callable[[], object] = lambda: None) -> Result:
    """Call it, which makes communicators, until it has come through on all ranks that are left.

    undo: is called before each further time.

    A rank whose call fails has not all communicators of the others, which may wait in them: each
    ends its own calls as soon as the common one is revoked. All ranks must do this together.
    Raises the error of a call that has failed though no other rank was lost.
    """
    from mpi4py import MPI

    left = 0
    while True:
        failure: BaseException | None = None
        made: list[Result] = []
        over = threading.Event()
        watch = confirmation.quiet_thread(partial(_watch, over))
        try:
            made.append(call())
        except ArgumentError:
            raise
        except (HorovodInternalError, CommunicationError, MPI.Exception) as error:
            failure = error
            revoke()
        finally:
            over.set()
            watch.join()
        if all_say(failure is None):
            return made[0]
        revoke()
        with suppress(MPI.Exception):
            undo()
        size, left = left, shrink()
        if left == size:
            raise failure or HorovodInternalError("another rank could not start again")


def _watch(over: threading.Event) -> None:
    while not over.wait(_GLANCE):
        # A spare that sleeps looks itself.
        if _living is not None and _living.rank < _size and _living.Is_revoked():
            revoke()


def all_say(yes: bool) -> bool:
    """Return whether all ranks that are left say yes; the same on all. Outlives any loss.

    Once the answer was no, it remains until `shrink`.
    """
    global _again
    if _active is None or _again:
        return yes and not _again
    _again = not _agree(_active, yes)
    return not _again


def finish() -> None:
    """Note that all have come to the end of the training."""
    if _regrowth is not None and _regrowth.has_started:
        _regrowth.dismiss()
        # MPI_Finalize waits for all that were ever in one world with those: also for the lost.
        os.environ[FAILING] = "0"


def _agree(comm: MPI.Intracomm, yes: bool) -> bool:
    from mpi4py import MPI

    word = array("i", [int(yes)])
    request = comm.Iagree(word)
    soon, pause = time.monotonic() + _YIELD, 1e-5
    with suppress(MPI.Exception):  # a rank was lost that not all knew of: the answer counts
        while not request.Test():
            if time.monotonic() < soon:
                os.sched_yield()
                continue
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST)
    return bool(word[0])


def see_new_ranks() -> bool:
    """Return whether all ranks are to start again with new ones. All must call it together."""
    from mpi4py import MPI

    if _living is None or _regrowth is None:
        return False
    try:
        due = _regrowth.look(_living, _seats)
    except MPI.Exception as error:
        raise HorovodInternalError(str(error)) from error
    # `restart` revokes the communicator: all have to be through with that call before.
    if due and not all_say(True):
        raise HorovodInternalError("another rank was lost")
    return due


def count() -> int:
    """Return how many ranks and spares there were when they last met."""
    return 1 if _living is None else _living.size


def left() -> str:
    """Say how many ranks train after a loss."""
    if count() >= _size:
        return "a spare takes the place of each lost rank"
    return f"{count()} ranks are left" if count() > 1 else "this rank alone is left"


def shrink() -> int:
    """Leave the lost ranks behind; returns how many there are left, spares among them.

    After `all_say(False)`; a spare calls it as well. The first spares then have the places of the
    lost ranks. The controller has to confirm it: a rank that was cut off from the run ends here.
    """
    global _active, _again, _living, _seats
    from mpi4py import MPI

    _again = False
    agreed = _living is None
    while _living is not None and not agreed:
        made = _living.Shrink()
        assert isinstance(made, MPI.Intracomm)
        made.Set_errhandler(MPI.ERRORS_RETURN)
        now, before = made.Get_group(), _living.Get_group()
        _seats = [_seats[k] for k in MPI.Group.Translate_ranks(now, range(now.size), before)]
        now.Free()
        before.Free()
        _living = made
        confirmation.confirm({*range(_size + _spares)}.difference(_seats))
        _grow()
        try:
            _active, agreed = _of_the_first(_living), True
        except MPI.Exception:  # another was lost: all have to come out of that call
            _living.Revoke()
        if _living.size > _size:
            agreed = _agree(_living, agreed)
    return count()


def note_state() -> None:
    """Note that this rank has the state of the training."""
    global _is_new
    if _is_new:
        _is_new = False
        confirmation.say_has_state()


def _grow() -> None:
    """Let new ranks in, if all have agreed on that before."""
    global _living, _seats
    if _living is None or _regrowth is None or not _regrowth.has_way:
        return
    whole = _regrowth.meet(_living, _seats)
    if _agree(_living, whole is not None) and whole is not None:
        _living, _seats = whole, _regrowth.joined(_seats)
    else:
        _regrowth.drop()


def leave() -> None:
    """Have this process end as a lost rank, whatever the script does about its error."""
    if is_elastic():
        os.environ[FAILING] = "1"


def renumber(rank: int, size: int, local_rank: int, local_size: int) -> None:
    """Let the variables of the environment follow the ranks that are left.

    What belongs to this rank in the run's folder keeps the number that it began with.
    """
    os.environ.setdefault(SEAT, os.environ.get("RANK", str(rank)))
    now = {
        "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_size,
    }  # fmt: skip
    os.environ.update({name: str(value) for name, value in now.items()})
