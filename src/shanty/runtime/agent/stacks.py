"""Collects what the ranks write when they are asked for their stacks.

Each rank's Python has `faulthandler` write into its own file when a signal comes; that works
while the rank is stuck inside MPI, since the handler is C and needs no interpreter loop.
"""

from __future__ import annotations

import re
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence

from shanty.runtime.rundir import RunDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.agent.mpi_world import MpiWorld

PATIENCE = 2.0  # seconds a rank may take to answer
_SYSTEM = ("libc.", "libc-", "ld-linux", "[vdso]")
_FRAME = re.compile(r'  File "(.*)", line ([0-9]+)(?: in )?(.*)')
_SETTLED = 0.06  # seconds without growth after which an answer counts as whole


def collect(
    run: RunDir, before: Mapping[int, int], service: Callable[[], None]
) -> List[Dict[str, Any]]:
    """Returns what each rank in `before` (rank → size of its file when asked) wrote since.

    For each rank its threads, with frames `[file, line, function]`, innermost first, or an error.
    `service` is called while waiting and must not take long.
    """
    now = time.monotonic()
    deadline = now + PATIENCE
    sizes, grown = dict(before), dict.fromkeys(before, deadline)
    while now < deadline:
        for rank in before:
            size = written(run, rank)
            if size != sizes[rank]:
                sizes[rank], grown[rank] = size, now
        if all(now - since > _SETTLED for since in grown.values()):
            break
        service()
        now = time.monotonic()
    return [_answer(run, rank, start) for rank, start in before.items()]


def written(run: RunDir, rank: int) -> int:
    """Returns how many bytes of stacks the rank has written so far."""
    try:
        return run.rank_stacks(rank).stat().st_size
    except OSError:
        return 0


def _answer(run: RunDir, rank: int, start: int) -> Dict[str, Any]:
    try:
        with open(run.rank_stacks(rank), encoding="utf-8", errors="replace") as file:
            file.seek(start)
            threads = parse_stacks(file.read())
    except OSError:
        return {"rank": rank, "error": "it is no Python program, or has not come to its script yet"}
    if not threads:
        return {"rank": rank, "error": f"it did not answer within {PATIENCE:g} s"}
    return {"rank": rank, "threads": threads}


def with_native(
    answers: Sequence[Mapping[str, Any]], looks: Iterable[Mapping[str, Any]]
) -> List[Dict[str, Any]]:
    """Returns the answers with what the node agents saw of each rank: `call` is its MPI call.

    A rank that is no Python gets its native stack for its own.
    """
    seen = {rank["rank"]: rank for look in looks for rank in look["moves"]}
    told = []
    for answer in answers:
        rank = seen.get(answer["rank"], {})
        frames = rank.get("frames", ())
        own = any(file and not file.startswith(_SYSTEM) for file, _, _ in frames)
        if "error" in answer and (own or rank.get("call")):
            told.append({"rank": answer["rank"], "threads": [{"current": True, "frames": frames}]})
        else:
            told.append({**answer, "call": rank.get("call", "")})
    return told


def absent(
    expected: Optional[int], worlds: Mapping[str, MpiWorld], answers: Sequence[Mapping[str, Any]]
) -> List[Dict[str, Any]]:
    """Returns what to say of the ranks that were not asked: those that are not there."""
    asked = {answer["rank"] for answer in answers}
    known = {rank.rank: rank for world in worlds.values() for rank in world.ranks.values()}
    told = []
    for rank in sorted({*range(expected or 0), *known} - asked):
        ended = rank in known and known[rank].ended is not None
        told.append({"rank": rank, "error": "it has ended" if ended else "it has not started yet"})
    return told


def parse_stacks(text: str) -> List[Dict[str, Any]]:
    """Reads faulthandler's text: threads with their frames, the main thread last."""
    threads: List[Dict[str, Any]] = []
    for line in text.splitlines():
        if line.endswith("(most recent call first):"):
            threads.append({"current": line.startswith("Current thread"), "frames": []})
        frame = _FRAME.fullmatch(line)
        if frame and threads:
            threads[-1]["frames"].append([frame[1], int(frame[2]), frame[3]])
    return threads
