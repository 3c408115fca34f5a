"""How the gradients of a step are put together: all at once, or in groups that the script asks for.

Nothing here depends on a framework: a variable is anything that identifies a gradient.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any

from shanty.collectives.request import Op

Groups = int | Sequence[Sequence[Any]] | None


def check_factor(gradient_predivide_factor: float, op: int) -> None:
    """Raise ValueError for a factor with an operation other than the average."""
    if gradient_predivide_factor != 1.0 and op != Op.AVERAGE:
        raise ValueError("gradient_predivide_factor works with op=Average only.")


def check_groups(num_groups: int, groups: Groups) -> Groups:
    """Return the groups that the two arguments ask for; ValueError for invalid ones."""
    if num_groups != 0:
        warnings.warn("num_groups is called groups now.", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None or isinstance(groups, (list, tuple)):
        return groups
    if isinstance(groups, bool) or not isinstance(groups, int) or groups <= 0:
        raise ValueError(f"groups={groups!r}: must be 1 or more, or lists of variables.")
    return groups


def split(
    keys: Sequence[Hashable], groups: int | Sequence[Sequence[Hashable]] | None
) -> list[list[int]]:
    """Return the places of the gradients that are reduced at once, of those with these keys.

    groups: a number of groups, the first of which are the larger ones; or their keys, where those
        that are in none are a group each. None: all at once.
    """
    if groups is None:
        return [list(range(len(keys)))] if keys else []
    if isinstance(groups, int):
        size, more = divmod(len(keys), groups)
        ends = [number * size + min(number, more) for number in range(groups + 1)]
        runs = [list(range(start, end)) for start, end in pairwise(ends)]
        return [run for run in runs if run]
    left = {key: place for place, key in enumerate(keys)}
    found = [[left.pop(key) for key in group if key in left] for group in groups]
    return [*(group for group in found if group), *([place] for place in left.values())]
