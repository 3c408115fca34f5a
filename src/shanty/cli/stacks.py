"""`shanty stacks`: where every rank stands, equal stacks together."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import click

from shanty.carry.errors import UsageError
from shanty.cli.arguments import json_option, run_argument
from shanty.cli.context import context

Frames = tuple[tuple[str, int, str], ...]


@click.command()
@run_argument
@click.option("--threads", is_flag=True, help="All threads, not only the main one.")
@json_option
def stacks(run: str, threads: bool, as_json: bool) -> None:
    """Show the Python stack of every rank, innermost call first, fewest ranks first."""
    from shanty.launch.targets.base import Handle, Stacks

    here = context()
    found = here.runs.find(run)
    reply = here.targets.ask(Handle(found), Stacks())
    if not reply.ok:
        raise UsageError(
            f"run {found.id}: {reply.error}", fix="stacks are those of a run that is on"
        )
    if as_json:
        print(json.dumps(reply.data))
        return
    for ranks, text in grouped(reply.data, all_threads=threads):
        print(f"{label(ranks)}:\n{text}\n")


def grouped(answers: list[dict[str, Any]], *, all_threads: bool) -> list[tuple[list[int], str]]:
    """The ranks with equal stacks and those stacks as text; the smallest group first."""
    groups: dict[str, list[int]] = defaultdict(list)
    for answer in answers:
        if "error" in answer:
            groups["  " + answer["error"]].append(answer["rank"])
            continue
        shown = answer["threads"] if all_threads else answer["threads"][-1:]
        blocks = [
            "\n".join(
                (f"  {function:<24} {path}:{line}" if path else f"  {function}")
                for path, line, function in own(thread)
            )
            for thread in shown
        ]
        groups["\n\n".join(blocks)].append(answer["rank"])
    return [
        (ranks, text) for text, ranks in sorted(groups.items(), key=lambda g: (len(g[1]), g[1]))
    ]


def _frame_text(path: str, line: int, function: str) -> str:
    return f"  {function:<24} {path}:{line}" if path else f"  {function}"


def own(thread: dict[str, Any]) -> list[tuple[str, int, str]]:
    """The frames of a thread without those of shanty's own start of the rank."""
    frames = [tuple(frame) for frame in thread["frames"]]
    if frames and frames[0][0].endswith("/shanty/carry/rank/watch.py"):
        return [("", 0, "the script has ended; MPI_Finalize waits for the others")]
    while frames and frames[-1][0].endswith("/shanty/carry/rank/run.py"):
        frames.pop()
    return frames


def label(ranks: list[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`."""
    parts: list[str] = []
    start = previous = ranks[0]
    for rank in [*ranks[1:], None]:
        if rank is not None and rank == previous + 1:
            previous = rank
            continue
        parts.append(str(start) if start == previous else f"{start}-{previous}")
        if rank is not None:
            start = previous = rank
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(parts)
