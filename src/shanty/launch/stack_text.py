"""Writes the stacks of ranks as text, equal ones together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

# What starts the rank's script, the function of a task or the cell of a notebook.
_CELLS, _IDLE = "/shanty/tasks/cells.py", "_wait_for_cell"
_STARTS = (
    *("/shanty/runtime/rank/run.py", "/shanty/runtime/rank/fork_server.py"),
    *("<frozen runpy>", "/shanty/tasks/rank.py", _CELLS),
)


class Group(NamedTuple):
    """Holds ranks with equal stacks, and those stacks as text."""

    ranks: list[int]
    text: str


def grouped(
    answers: Sequence[Mapping[str, Any]], *, all_threads: bool, first: Collection[int] = ()
) -> list[Group]:
    """Group ranks by their stacks: groups with one of `first` lead, then the small ones."""
    groups: dict[str, list[int]] = defaultdict(list)
    for answer in answers:
        groups[text_of(answer, all_threads=all_threads)].append(answer["rank"])
    found = [Group(sorted(ranks), text) for text, ranks in groups.items()]
    return sorted(found, key=lambda g: (not set(first) & set(g.ranks), len(g.ranks), g.ranks))


def text_of(answer: Mapping[str, Any], *, all_threads: bool) -> str:
    """Return the stack of one rank, the innermost call first, or why there is none."""
    if "error" in answer:
        return f"  {answer['error']}"
    shown = answer["threads"] if all_threads else answer["threads"][-1:]
    blocks = ["\n".join(_line(*frame) for frame in _own(thread)) for thread in shown]
    if answer.get("call"):  # of the main thread, which is the last
        blocks[-1] = f"  {answer['call']}\n{blocks[-1]}"
    if answer.get("note"):  # why there is no more to show
        blocks[-1] += f"\n  ({answer['note']})"
    return "\n\n".join(blocks)


def _line(path: str, line: int, function: str) -> str:
    where = f"{path}:{line}" if line else path
    return f"  {function:<24} {where}" if where else f"  {function}"


def _own(thread: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Return the frames of a thread without those of shanty's own start of the rank."""
    frames = [tuple(frame) for frame in thread["frames"]]
    if frames and frames[0][0].endswith("/shanty/runtime/rank/instrumentation.py"):
        return [("", 0, "the script has ended; MPI_Finalize waits for the others")]
    if frames and frames[0][2] == _IDLE and frames[0][0].endswith(_CELLS):
        return [("", 0, "it waits for a cell of its notebook")]
    while frames and frames[-1][0].endswith(_STARTS):
        frames.pop()
    return frames


def label(ranks: Sequence[int]) -> str:
    """Name ranks: `rank 3`, `ranks 0-2, 5`."""
    spans = groupby(enumerate(ranks), lambda item: item[1] - item[0])  # alike in a row
    ends = [[rank for _, rank in span] for _, span in spans]
    parts = [f"{each[0]}-{each[-1]}" if len(each) > 1 else str(each[0]) for each in ends]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(parts)
