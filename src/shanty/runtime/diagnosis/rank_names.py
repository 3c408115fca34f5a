"""Names ranks in messages."""

from __future__ import annotations

from typing import List


def named(numbers: List[int]) -> str:
    """ "rank 3" or "ranks 1, 2, 5 and 9 more"."""
    shown = ", ".join(str(number) for number in numbers[:8])
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return ("rank " if len(numbers) == 1 else "ranks ") + shown + more
