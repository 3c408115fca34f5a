"""`FusionBuffer`: many tensors reduced as one (Horovod's tensor fusion). Starts MPI.

Within a host they go through memory that the ranks share, a piece at a time. Two ranks each add the
other's to their own (`pair_reduction`). More ranks, and half precision, share the sum out: each
makes a part of it, which all then take. Between hosts they go through one buffer, and over the
network as one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from shanty.collectives import huge_pages, operations, pair_reduction
from shanty.collectives.handshake import Channel
from shanty.collectives.kernels import Kernels, Reduction, Tensor, elements
from shanty.collectives.pair_reduction import (
    IN,
    OUT,
    REDUCE,
    Doing,
    PairReduction,
    Pieces,
    Schedule,
)
from shanty.collectives.plan import Item, Part
from shanty.collectives.ring import even_counts
from shanty.collectives.shared_memory import share

_HALF = 1 << 20  # bytes of half a rank's room: the most that is reduced at a time
_BUFFERED = 8 << 20  # bytes from which on a tensor goes over the network by itself
_SHARED = frozenset({"float16", "bfloat16", "float32", "float64", "int32", "int64"})


class _Spot(NamedTuple):
    """The place of a tensor in the rooms: its piece, which has `end` elements so far.

    given: in this rank's room. total: the sum of all.
    """

    piece: int
    end: int
    given: Tensor
    total: Tensor


class _Piece:
    """Tensors that are reduced at a time, by their places among those of the part."""

    def __init__(self, found: Sequence[tuple[int, _Spot]]) -> None:
        self.which = [i for i, _ in found]
        self.length = max([place.end for _, place in found])
        self.given = [place.given for _, place in found]
        self.total = [place.total for _, place in found]


@dataclass(eq=False)
class _Layout:
    """The way of a part: which tensors are reduced alone, and which together, in pieces or, where
    memory cannot be shared, through a buffer. times: how often it was; nbytes: of the fused ones.
    """

    alone: Sequence[int]
    fused: Sequence[int]
    pieces: Schedule | list[_Piece] | None
    nbytes: int
    times: int = 0


class FusionBuffer:
    """For one process set, and one thread."""

    def __init__(self, at: Channel) -> None:
        self._at = at
        self._kernels: Kernels = at.kernels
        self._pair: PairReduction | None = None
        self._shared: list[memoryview] | None = None
        self._tried = False  # to share memory
        self._places = Pieces(_HALF)
        self._viewed: dict[Any, list[Tensor]] = {}  # the rooms, by type
        self._buffers: dict[Hashable, Tensor] = {}
        self._parts: WeakKeyDictionary[_Layout, Sequence[Tensor]] = WeakKeyDictionary()

    def all_reduce(
        self,
        part: Part,
        given: Sequence[Tensor],
        tensors: Sequence[Tensor],
        how: Reduction,
        doing: Doing,
    ) -> None:
        """Each tensor of the part becomes the reduction of what is given, which may be itself."""
        if part.layout is None:
            part.layout = self._layout(part, tensors[0], how)
        layout: _Layout = part.layout
        alone, fused, pieces = layout.alone, layout.fused, layout.pieces
        if given is not tensors and not isinstance(pieces, Schedule):
            self._kernels.copy_all(tensors, given)
        if alone:
            with doing(REDUCE):
                operations.all_reduce(self._at, [tensors[i] for i in alone], how)
        if not fused:
            return
        layout.times += 1
        if layout.times == huge_pages.OFTEN and layout.nbytes >= huge_pages.LEAST:
            some = [tensors[i] for i in fused]
            if self._kernels.device(some[0]) == "cpu":
                huge_pages.widen((self._kernels.address(each), each.nbytes) for each in some)
        if pieces is None:
            self._through_a_buffer(layout, [tensors[i] for i in fused], how, doing)
        elif isinstance(pieces, Schedule):
            assert self._pair is not None
            self._pair.reduce(pieces, given, tensors, how, doing)
        else:
            self._share_the_sum(pieces, tensors, how, doing)

    def _layout(self, part: Part, first: Tensor, how: Reduction) -> _Layout:
        at = self._at
        sizes = [item.sizes[which] for item, which in part.tensors]
        kernels = self._kernels
        shareable = kernels.device(first) == "cpu" and kernels.kind(part.dtype) in _SHARED
        shareable = shareable and at.size > 1 and not at.spread
        paired = at.size == 2 and how.carrier is None
        if shareable and paired and (len(sizes) > 1 or sizes[0] >= pair_reduction.WEIGHTY):
            self._pair = self._pair or PairReduction(at)
            if self._pair.usable:
                return _Layout([], range(len(sizes)), self._pair.schedule(part), sum(sizes))
        most = _BUFFERED if at.spread else _HALF
        alone = [i for i, size in enumerate(sizes) if size > most]
        fused = [i for i, size in enumerate(sizes) if size <= most]
        if len(fused) == 1:
            alone, fused = [*alone, *fused], []
        made = _Layout(alone, fused, None, sum(sizes[i] for i in fused))
        if not fused or not shareable or paired:
            return made
        if not self._tried:
            self._tried = True
            self._shared = share(at.comm, 2 * _HALF)
        if self._shared is not None:
            made.pieces = self._pieces(part, fused)
        return made

    # ---- through shared memory ---------------------------------------------------------------

    def _pieces(self, part: Part, fused: Sequence[int]) -> list[_Piece]:
        found_in: dict[int, list[tuple[int, _Spot]]] = {}
        for i in fused:
            item, which = part.tensors[i]
            place = item.room[which] or self._place(item, which)
            found_in.setdefault(place.piece, []).append((i, place))
        return [_Piece(found) for found in found_in.values()]

    def _rooms(self, dtype: Any) -> list[Tensor]:
        if dtype not in self._viewed:
            assert self._shared is not None
            shape, view = (2 * _HALF // dtype.itemsize,), self._kernels.view
            self._viewed[dtype] = [view(room, dtype, 0, shape) for room in self._shared]
        return self._viewed[dtype]

    def _place(self, item: Item, which: int) -> _Spot:
        dtype, shape = item.kinds[which][0], item.shapes[which]
        elements = math.prod(shape)
        piece, begin = self._places.place(dtype, elements)
        end = begin + elements
        rooms = self._rooms(dtype)
        half = len(rooms[0]) // 2
        given = self._kernels.shaped(rooms[self._at.rank][begin:end], shape)
        total = self._kernels.shaped(rooms[0][half + begin : half + end], shape)
        made = item.room[which] = _Spot(piece, end, given, total)
        return made

    def _share_the_sum(
        self, pieces: Sequence[_Piece], tensors: Sequence[Tensor], how: Reduction, doing: Doing
    ) -> None:
        """Each rank makes a part of the sum, which all then take."""
        meet = self._at.comm.Barrier
        for piece in pieces:
            own = [tensors[i] for i in piece.which]
            with doing(IN):
                self._kernels.copy_all(piece.given, own)
            with doing(REDUCE):
                meet()
                self._fold(piece.length, own[0].dtype, how)
                meet()
            with doing(OUT):
                self._kernels.copy_all(own, piece.total)
        meet()

    def _fold(self, length: int, dtype: Any, how: Reduction) -> None:
        """This rank's part of the sum over all rooms, to the second half of the first room."""
        at, rooms = self._at, self._rooms(dtype)
        counts = even_counts(length, at.size)
        start = sum(counts[: at.rank])
        mine = slice(start, start + counts[at.rank])
        total = rooms[0][len(rooms[0]) // 2 :][mine]
        carried = total
        if how.carrier is not None:
            carried = self._kernels.empty(total.shape, how.carrier)
        self._kernels.fold(how.name, [room[mine] for room in rooms], carried)
        how.divide(carried, at.size)
        if carried is not total:
            self._kernels.copy(total, carried)

    # ---- through a buffer --------------------------------------------------------------------

    def _through_a_buffer(
        self, layout: _Layout, tensors: list[Tensor], how: Reduction, doing: Doing
    ) -> None:
        kernels, first = self._kernels, tensors[0]
        where = first.dtype, getattr(first, "device", "cpu")
        length = layout.nbytes // first.itemsize
        buffer = self._buffers.get(where)
        if buffer is None or len(buffer) < length:
            buffer = self._buffers[where] = kernels.empty((length,), first.dtype, first)
            self._parts.clear()
        parts = self._parts.get(layout)
        if parts is None:
            cut = kernels.split(buffer[:length], [*map(elements, tensors)])
            pairs = zip(cut, tensors, strict=True)
            parts = self._parts[layout] = [kernels.shaped(part, each.shape) for part, each in pairs]
        with doing(IN):
            kernels.copy_all(parts, tensors)
        with doing(REDUCE):
            operations.all_reduce(self._at, [buffer[:length]], how)
        with doing(OUT):
            kernels.copy_all(tensors, parts)
