"""`Membership`: a group's communicator: it is made, calls get to it, it ends.

Importing this module starts MPI.
"""

# mypy: disable-error-code="override"

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Protocol, Self

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from shanty.collectives import call_sites, handshake, survivors
from shanty.collectives.handshake import Channel, Handshake, Key
from shanty.collectives.watchdog import Inquiry, Watchdog
from shanty.torch.background_thread import THREAD
from shanty.torch.devices import Gpus, Way, ordered
from shanty.torch.identity import Identity
from shanty.torch.kernels import KERNELS
from shanty.torch.store import serve
from shanty.torch.work import ERRORS, Body, CoalescedWork, CommunicationError, MPIWork

_CUDA = torch.version.cuda is not None


class Options(Protocol):
    """The common part of torch's options of every call."""

    timeout: timedelta


class Membership(Identity):
    """This rank's place in a group, without the calls that communicate.

    limit: seconds that a call waits for the other ranks. gpus: what its ranks agreed on for CUDA
    tensors.
    """

    def __init__(self, channel: Channel, gpus: Gpus, limit: float) -> None:
        super().__init__(channel.rank, channel.size, limit)
        self.gpus = gpus
        self._at = channel
        self._open = True
        self._coalescing: list[MPIWork] | None = None
        self._nccl: dist.ProcessGroup | None = None
        self._store: c10d.Store | None = None
        THREAD.enter()

    @classmethod
    def form(cls, world: MPI.Intracomm, ranks: list[int], tag: int, limit: float) -> Self:
        """Form the group of these ranks of `world` in this order, all of them when empty.

        Collective over its members. tag: of MPI_Comm_create_group. limit: seconds that a wait
        lasts at most, this one too.
        """
        return cls(*cls.join(world, ranks, tag, limit), limit)

    @staticmethod
    def join(
        world: MPI.Intracomm, ranks: list[int], tag: int, limit: float
    ) -> tuple[Channel, Gpus]:
        """Make what such a group needs, as `form`."""
        made: list[tuple[Channel, Gpus]] = []

        def body() -> None:
            comm = world.Create_group(world.group.Incl(ranks), tag) if ranks else world.Dup()
            comm.Set_errhandler(MPI.ERRORS_RETURN)
            made.append(_introduce(survivors.track(comm)))

        THREAD.several_threads = MPI.Query_thread() >= MPI.THREAD_MULTIPLE
        THREAD.checked = handshake.CHECKED
        call = f"forming the group of ranks {ranks}" if ranks else "forming the group of all ranks"
        place = f"rank {world.rank} of {world.size}"
        THREAD.submit(MPIWork(THREAD.wait_for, call, place, body, [], limit)).wait()
        return made[0]

    @property
    def channel(self) -> Channel:
        """The communicator and what belongs to it."""
        return self._at

    def nccl(self) -> dist.ProcessGroup | None:
        """Return the group that carries CUDA tensors in this one's place; None where MPI does.

        Made with the first of them, without a message to the other ranks.
        """
        if self._nccl is None and self.gpus.way is Way.NCCL:
            place = self.rank(), self.size(), self._limit
            self._nccl = self.gpus.nccl(self.group_name, self._at.identity, *place)
        return self._nccl

    def get_group_store(self) -> c10d.Store:
        """Return a store for the group's ranks; made when first asked for, collective then."""
        if self._store is None:
            made: list[c10d.Store] = []
            body = lambda: made.append(serve(self._at.comm))  # noqa: E731
            self._together(("making a store",), body, []).wait()
            self._store = made[0]
        return self._store

    def lose(self, why: str) -> None:
        """Allow no more calls, for this reason."""
        self._at.broken = CommunicationError(why)

    # ---- its end ---------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Finish what was submitted, free the communicators, and with the last group end the
        thread. Does not wait where an operation has run past its limit. Idempotent.
        """
        if not self._open:
            return
        self._open = False
        if self._nccl is not None:
            self._nccl.shutdown()
        if not THREAD.is_stuck():

            def body() -> None:
                with torch.inference_mode(False):
                    if THREAD.drain(self) and self._at.broken is None:
                        self._at.free()

            work = MPIWork(THREAD.wait_for, "destroying", self, body, [], self._limit)
            THREAD.submit(work).wait()
        THREAD.leave()

    def abort(self) -> None:
        """Give up the group without a message to the other ranks; its communicator stays."""
        if self._open:
            self._open = False
            THREAD.leave()

    # ---- within ----------------------------------------------------------------------------

    def _get_backend(self, device: torch.device) -> dist.ProcessGroup:
        kind = torch.device(device).type
        if kind not in (each.type for each in self._device_types):
            raise RuntimeError(f"The mpi backend does not support {device}.")
        nccl = self.nccl() if kind == "cuda" else None
        return self if nccl is None else nccl._get_backend(device)  # type: ignore[return-value]

    @property
    def _device_types(self) -> list[torch.device]:
        gpu = [torch.device("cuda")] if self.gpus.way is not None else []
        return [torch.device("cpu"), *gpu]

    def _start_coalescing(self, device: torch.device) -> None:
        nccl = self.nccl() if device.type == "cuda" else None
        if nccl is not None:
            nccl._start_coalescing(device)
        else:
            self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        """One work for all operations since `_start_coalescing`; fails if one of them did."""
        nccl = self.nccl() if device.type == "cuda" else None
        if nccl is not None:
            return nccl._end_coalescing(device)
        works, self._coalescing = self._coalescing or [], None
        return CoalescedWork(works)

    def _root(self, rank: int) -> int:
        if not 0 <= rank < self.size():
            raise ValueError(f"rank {rank} is not in a group of {self.size()}.")
        return rank

    def _together(
        self,
        key: Key,
        body: Body,
        tensors: list[Tensor],
        opts: Options | None = None,
        *,
        moves: Sequence[Tensor] | None = None,
        limit: float = 0.0,
        even: int = -1,
    ) -> MPIWork:
        """Submit a call that all ranks of the group make.

        key: its name, and what else must be the same on every rank. tensors: what it writes.
        moves: what it moves, where that is more than it writes. limit: seconds, unless opts says.
        even: see Handshake.
        """
        moves = tensors if moves is None else moves
        nbytes = sum(each.nbytes for each in moves)
        asked = opts.timeout.total_seconds() if opts is not None else limit
        allowed = asked if asked > 0 else self._limit
        agreed = Handshake(self._checked(key), key, nbytes, allowed, self, even)
        ready = None
        if _CUDA:
            body, ready = ordered(body, moves)
        work = MPIWork(THREAD.wait_for, key[0], self, body, tensors, allowed, handshake=agreed)
        work.ready = ready
        if self._coalescing is not None:
            self._coalescing.append(work)
        elif not getattr(opts, "asyncOp", True):
            return THREAD.run(work)
        return THREAD.submit(work)

    def _between(self, call: str, body: Body, tensor: Tensor, ranks: Sequence[int]) -> MPIWork:
        """Begin a message; ranks: of the world, with which it is exchanged."""
        at = self._checked((call,))
        named: object = Located(call) if handshake.CHECKED else call
        work = MPIWork(THREAD.wait_for, named, self, body, [tensor], self._limit)
        if _CUDA:
            work.body, work.ready = ordered(body, [tensor])
        work.missing = partial(at.report, ranks, named)
        work.inquiry = partial(Inquiry, at.watchdog, ranks)
        if self._coalescing is not None:
            self._coalescing.append(work)
        return THREAD.begin(work)

    def _checked(self, key: Key) -> Channel:
        if not self._open:
            raise CommunicationError(f"{key[0]} on {self}: the group was destroyed.")
        if self._at.broken is not None:
            raise CommunicationError(f"{key[0]} on {self}: {handshake.UNUSABLE} {self._at.broken}")
        self._operations += 1
        return self._at


class Located:
    """The words for a call, with the place in the user's code from where it is made."""

    def __init__(self, call: str) -> None:
        self._call = call
        self._site = call_sites.caller()

    def __str__(self) -> str:
        return f"{self._call} at {call_sites.spell(self._site)}"


def _introduce(comm: MPI.Intracomm) -> tuple[Channel, Gpus]:
    """Make what the ranks of a new group need, with a watchdog and a way for CUDA tensors that they
    have in common from an earlier group of theirs, or else agree on now. Collective.

    Not all of them need have been in the same groups: each says what it has.
    """
    known = comm.allgather((next(_serials), frozenset(THREAD.watchdogs)))
    identity = (known[0][0], *handshake.world_ranks(comm))
    shared = frozenset.intersection(*(each for _, each in known))
    first = min(shared, default=identity)
    if not shared:
        _gpus[first] = Gpus(comm)
        THREAD.watchdogs[first] = Watchdog(survivors.track(comm.Dup()), THREAD.state)
    watchdog = THREAD.watchdogs[first]
    return Channel(comm, identity, watchdog, KERNELS, ERRORS), _gpus[first]


def forget() -> None:
    """Have the next group agree on everything, as the first: ranks were lost."""
    THREAD.watchdogs = {}
    _gpus.clear()


_serials = itertools.count()
_gpus: dict[tuple[int, ...], Gpus] = {}  # as BackgroundThread.watchdogs


def shape(tensor: Tensor) -> object:
    """Return what ranks compare of a tensor: its elements, with SHANTY_CHECK=1 the shape."""
    return tuple(tensor.shape) if handshake.CHECKED else tensor.numel()
