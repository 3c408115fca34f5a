"""Compares what the ranks of a DistributedOptimizer must share, at its first step and later.

Averaged gradients keep the ranks' models equal only where the ranks start from the same parameters
with the same options, and where the gradients that meet belong to the same parameter. Nothing in
a training loop fails where that is not so.
"""

from __future__ import annotations

import warnings
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shanty.collectives import process_sets
from shanty.collectives.negotiation import Negotiator
from shanty.collectives.objects import allgather_object
from shanty.collectives.process_sets import ProcessSet
from shanty.torch.hvd import ops

_SAMPLE = 64  # elements of a parameter that are compared
_UNNAMED = "allreduce.noname."
_DIGITS = 0xFFFFFF  # of a digest: squares of so few bits can be summed over 2^15 ranks
_NOT_AN_OPTION = frozenset({"params", "param_names"})
_OFTEN = 512  # steps after which options are compared again


class Agreement:
    """What the ranks of one optimizer have compared so far, the same on all of them.

    They begin again whenever Horovod was started again: some of them may be new.
    """

    def __init__(self) -> None:
        self._world: weakref.ref[Negotiator] | None = None

    def _begin(self, negotiator: Negotiator) -> None:
        self._world = weakref.ref(negotiator)
        self._steps = 0
        self._joins = ops.joins()
        self._differs = False  # a warning has said so

    def check(
        self,
        named: Callable[[], Mapping[str, Tensor]],
        groups: Iterable[Mapping[str, Any]],
        process_set: ProcessSet,
    ) -> None:
        """Compare what is due at a step; collective over the process set.

        The first step compares parameters and options. Steps 2, 4, 8, …, 512, 1024, 1536 compare
        options, which a scheduler may change on some ranks only. Nothing is compared after a join:
        ranks with less data have made fewer steps. After an elastic reset steps are counted again,
        since some ranks may be new. Raises as `compare` does.
        """
        negotiator = process_sets.negotiator(process_set)
        if self._world is None or self._world() is not negotiator:
            self._begin(negotiator)
        if self._joins != ops.joins():
            return
        step = self._steps + 1
        often = step % _OFTEN == 0 or (step < _OFTEN and not step & (step - 1))
        if step == 1:
            values = {name: digest(each) for name, each in named().items()}
            self._differs = not compare(values, groups, step, process_set)
        elif often and not self._differs:
            self._differs = not compare({}, groups, step, process_set)
        self._steps = step  # not before: after a failure all ranks compare again


def compare(
    values: Mapping[str, int],
    groups: Iterable[Mapping[str, Any]],
    step: int,
    process_set: ProcessSet,
) -> bool:
    """Compare options, and parameters, over the ranks; collective over the process set.

    values: digests of parameters, by the names under which their gradients meet; none of them at
    later steps. groups: the optimizer's.
    Returns false, on all ranks, where values or options differ; one rank warns.
    Raises ValueError, on all ranks, where unnamed parameters stand in another order.
    """
    names = sorted(values)
    key = names[0] if names else "options"
    own = [values[name] for name in names], [_options(group) for group in groups]
    if _all_have((*own[0], _spelled(own[1])), key, process_set):
        return True
    (one, (ours, first)), *others = _by_rank(own, key, process_set)
    found: list[str] = []
    for rank, (theirs, options) in others:
        pair = f"ranks {one} and {rank}"
        if theirs != ours:
            if key.startswith(_UNNAMED) and sorted(theirs) == sorted(ours):
                raise ValueError(
                    f"DistributedOptimizer: {pair} have the same parameters in another order, so "
                    "gradients of different parameters would be averaged. Give the optimizer "
                    "named_parameters=model.named_parameters(), and create the modules in the "
                    "same order on all ranks (sorted(), not a set)."
                )
            odd = [n for n, a, b in zip(names, theirs, ours, strict=True) if a != b]
            more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
            found.append(
                f"{pair} start from different parameters ({odd[0].removeprefix(_UNNAMED)}{more}). "
                "Their models stay different, since only gradients are averaged. Call "
                "hvd.broadcast_parameters(model.state_dict(), root_rank=0) before the first step."
            )
        if options != first:
            different = f"{pair} have different optimizer options ({_difference(first, options)})"
            found.append(
                f"{different}. Call hvd.broadcast_optimizer_state(optimizer, root_rank=0), or set "
                "the same options on all ranks."
                if step == 1
                else f"since step {step} or earlier, {different}, so their models differ. Change "
                "options alike on all ranks: a scheduler that is given a loss needs the same one "
                "everywhere, such as hvd.allreduce(loss)."
            )
        if found:  # one pair says it all
            break
    if process_set.rank() == 0:
        for each in found:
            warnings.warn(f"DistributedOptimizer: {each}", RuntimeWarning, stacklevel=5)
    return not found


def _all_have(numbers: Sequence[int], name: str, process_set: ProcessSet) -> bool:
    """Return whether the numbers are the same on all ranks; itself the same on all of them.

    A sum, so that ranks that have joined may be missing: by Cauchy and Schwarz, n times the sum of
    the squares is the square of the sum only where all n numbers are equal. Where ranks have
    joined, they cannot be asked for more, and the answer is true.
    """
    vector = torch.tensor(
        [1, *numbers, *(each * each for each in numbers)], dtype=torch.int64, device="cpu"
    )
    total = ops.allreduce(vector, name=f"agreement.{name}", op=ops.Sum, process_set=process_set)
    there, *sums = total.tolist()
    if there != process_set.size():
        return True
    half = len(numbers)
    return all(
        there * squared == once * once
        for once, squared in zip(sums[:half], sums[half:], strict=True)
    )


def _by_rank(own: Any, name: str, process_set: ProcessSet) -> list[tuple[int, Any]]:
    """Return each rank of the set with its facts; collective over the set."""
    facts = allgather_object(own, f"agreement.facts.{name}", process_set)
    ranks = range(len(facts)) if process_set.ranks is None else process_set.ranks
    return list(zip(ranks, facts, strict=True))


def digest(parameter: Tensor) -> int:
    """Return a number for some of the elements of a parameter, bit by bit."""
    if parameter.layout is not torch.strided or parameter.is_meta or parameter.is_quantized:
        return 0
    flat = parameter.detach().reshape(-1)
    sample = flat[:: max(1, flat.numel() // _SAMPLE)].to("cpu").contiguous()
    return zlib.crc32(bytes(sample.view(torch.uint8).tolist())) & _DIGITS


def _options(group: Mapping[str, Any]) -> dict[str, str]:
    """Return the plain options of a parameter group, spelled."""
    plain = {
        key: value.tolist() if isinstance(value, Tensor) and value.numel() == 1 else value
        for key, value in group.items()
        if key not in _NOT_AN_OPTION
    }
    kinds = (int, float, str, tuple, list, type(None))
    return {key: repr(value) for key, value in sorted(plain.items()) if isinstance(value, kinds)}


def _spelled(options: Sequence[Mapping[str, str]]) -> int:
    return zlib.crc32(repr(options).encode()) & _DIGITS


def _difference(ours: Sequence[Mapping[str, str]], theirs: Sequence[Mapping[str, str]]) -> str:
    if len(ours) != len(theirs):
        return f"{len(ours)} and {len(theirs)} parameter groups"
    for mine, other in zip(ours, theirs, strict=True):
        for key in sorted({*mine, *other}):
            if mine.get(key) != other.get(key):
                return f"{key} is {mine.get(key, 'unset')} and {other.get(key, 'unset')}"
    return "of another kind"
