"""`ElasticGroup`: the group of all ranks of an elastic run, which goes on without lost ranks.

What fails since a rank was lost is done again by those that are left. All ranks must agree on
that, since some may have come through: at the end of each backward pass of a model that
`elastic.ddp` has prepared, and after each call of the script that is made again. Then the group
gets a communicator of the ranks that are left in the place of its old one: the object stays, and
with it all that torch has made for it. Importing this module starts MPI.
"""

# mypy: disable-error-code="override"

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mpi4py import MPI
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, BarrierOptions, BroadcastOptions
from torch.distributed import distributed_c10d as c10d
from torch.futures import Future
from torch.utils.data import DistributedSampler

from shanty.collectives import elastic, survivors
from shanty.collectives.world import promised_world
from shanty.torch.group import MPIGroup
from shanty.torch.identity import skip_when_compiling
from shanty.torch.membership import forget
from shanty.torch.work import CommunicationError, MPIWork

Result = TypeVar("Result")

_TRIES = 3  # of one call or step, while no rank is lost


class Part:
    """One reduction of a backward pass.

    tensor: is reduced. begin: begins that. restore: makes the tensor what it was. future: of it.
    """

    def __init__(
        self, tensor: Tensor, begin: Callable[[], MPIWork], restore: Callable[[], object]
    ) -> None:
        self._tensor, self._begin, self._restore = tensor, begin, restore
        self._work = begin()
        self.future: Future[Tensor] = Future(devices=[tensor.device] if tensor.is_cuda else [])

    def redo(self) -> None:
        """Begin again, with the ranks that there are now."""
        self._restore()
        self._work = self._begin()

    def end(self) -> None:
        """Wait for it; raises its error."""
        self._work.wait()

    def pass_on(self) -> None:
        """Complete the future."""
        self.future.set_result(self._tensor)


class ElasticGroup(MPIGroup):
    """A group of all ranks of an elastic run. It goes on after a loss once `arm` was called."""

    _armed = _map_follows = False
    _vain = 0
    _parts: list[Part] = []  # noqa: RUF012 (each has its own from `arm` on)

    def rank(self) -> int:
        """Return this rank's number among those that are left."""
        return self._at.rank

    def size(self) -> int:
        """Return how many ranks are left."""
        return self._at.size

    getRank, getSize = rank, size  # noqa: N815 (as C++ calls them)

    def arm(self) -> None:
        """Go on after a loss from now on."""
        self._armed, self._parts = True, []

    # ---- the calls of a backward pass --------------------------------------------------------

    def begin_pass(self) -> None:
        """Forget what a backward pass has left that ended by an error."""
        self._parts.clear()

    def expect_map(self) -> None:
        """Make the next reduction, which is C++'s of the parameters in use, again after a loss."""
        self._map_follows = True

    def part(
        self, tensor: Tensor, opts: AllreduceOptions, restore: Callable[[], object]
    ) -> Future[Tensor]:
        """Begin a reduction that `average_gradients` completes; restore: undoes it on this rank."""
        call = super().allreduce
        self._parts.append(Part(tensor, lambda: call([tensor], opts), restore))
        return self._parts[-1].future

    def average_gradients(self) -> None:
        """Complete the parts: return when all ranks have all results."""

        def end() -> None:
            for part in self._parts:
                part.end()

        def again() -> None:
            for part in self._parts:
                part.redo()

        self.attempt(end, again)
        for part in self._parts:
            part.pass_on()
        self._parts.clear()

    # ---- calls of the script ---------------------------------------------------------------

    def allreduce(self, tensors: list[Tensor], opts: AllreduceOptions | None = None) -> MPIWork:
        """As that of MPIGroup; done again after a loss if the caller waits for it at once."""
        call = super().allreduce
        here, self._map_follows = self._map_follows, False
        return self._call(lambda: call(tensors, opts), tensors, opts, here)

    def broadcast(self, tensors: list[Tensor], opts: BroadcastOptions) -> MPIWork:
        """As that of MPIGroup; done again after a loss, unless that of its root."""
        call, root = super().broadcast, self._at.members[self._root(opts.rootRank)]

        def located() -> MPIWork:
            if root not in self._at.members:
                raise CommunicationError(f"broadcast on {self}: the rank it comes from was lost.")
            opts.rootRank = self._at.members.index(root)
            return call(tensors, opts)

        return self._call(located, tensors, opts)

    def barrier(self, opts: BarrierOptions | None = None) -> MPIWork:
        """As that of MPIGroup; done again after a loss."""
        call = super().barrier
        return self._call(lambda: call(opts), [], opts)

    def _call(
        self,
        call: Callable[[], MPIWork],
        tensors: Sequence[Tensor],
        opts: Any,
        always: bool = False,
    ) -> MPIWork:
        waits = self._armed and not self._parts and not getattr(opts, "asyncOp", True)
        if not waits and not always:
            return call()
        kept = [each.clone() for each in tensors]

        def ended() -> MPIWork:
            work = call()
            work.wait()
            return work

        def again() -> None:
            for each, before in zip(tensors, kept, strict=True):
                each.copy_(before)

        return self.attempt(ended, again)

    # ---- after a loss ----------------------------------------------------------------------

    def attempt(
        self, call: Callable[[], Result], again: Callable[[], object] = lambda: None
    ) -> Result:
        """Call it, until no rank that is left has lost another one meanwhile. All must do so.

        again: is called before each further time.
        """
        while True:
            failure: BaseException | None = None
            made: list[Result] = []
            try:
                made.append(call())
            except (RuntimeError, MPI.Exception) as error:
                if not _is_of_mpi(error):
                    raise
                failure = error
                survivors.revoke()  # ends what others still wait in
            if survivors.all_say(failure is None):
                self._vain = 0
                return made[0]
            self._leave_behind(failure)
            again()

    def _leave_behind(self, failure: BaseException | None) -> None:
        """Go on with the ranks that are left. failure: what this rank has noticed, if anything."""
        before = survivors.count()
        survivors.revoke()
        survivors.all_say(False)
        survivors.shrink()
        survivors.start(self._reform)
        left = survivors.count()
        self._vain = 0 if left < before else self._vain + 1
        if self._vain >= _TRIES:
            text = (
                f"{self}: a call failed {_TRIES} times, and no rank was lost meanwhile: {failure}"
            )
            raise CommunicationError(text) from failure
        if left < before and self.rank() == 0:
            words = f"{left} ranks are left" if left > 1 else "this rank alone is left"
            elastic.say(f"training goes on from this step: {words}")

    def _reform(self) -> None:
        forget()
        world = survivors.living(promised_world)
        made = self.join(world, [], 0, self._limit)
        near = survivors.track(world.Split_type(MPI.COMM_TYPE_SHARED))
        place = near.rank, near.size
        near.Free()
        # From here on nothing fails any more.
        old = self.rank(), self.size()
        self._at, self.gpus = made
        self._store = None
        for other in c10d._world.pg_map:
            if isinstance(other, MPIGroup) and other is not self:
                other.lose("a rank of the run was lost, and only the group of all ranks goes on")
        c10d._world.pg_group_ranks[self] = {rank: rank for rank in range(self.size())}
        survivors.renumber(self.rank(), self.size(), *place)
        for each in gc.get_objects():
            if issubclass(type(each), DistributedSampler):
                _deal(each, old, (self.rank(), self.size()))


def _is_of_mpi(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, MPI.Exception):
        error = error.__cause__
    return error is not None


def _deal(sampler: Any, old: tuple[int, int], new: tuple[int, int]) -> None:
    """Let a sampler of all ranks deal out its next epoch to those that are left."""
    if (getattr(sampler, "rank", None), getattr(sampler, "num_replicas", None)) == old:
        epoch, (rank, size) = sampler.epoch, new
        given = sampler.dataset, size, rank, sampler.shuffle, sampler.seed, sampler.drop_last
        DistributedSampler.__init__(sampler, *given)
        sampler.epoch = epoch


for _name in ("allreduce", "broadcast", "barrier", "rank", "size"):
    skip_when_compiling(vars(ElasticGroup)[_name].__code__)
