"""Recognises a run that MPI_Abort has ended: some codes of it are 0 to the system."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from shanty.runtime.diagnosis.mpi_world import LAUNCHERS_DOING, MpiWorld
from shanty.runtime.diagnosis.rank_record import Rank
from shanty.runtime.diagnosis.root_cause import Verdict
from shanty.runtime.logfile import last_lines
from shanty.runtime.mpi import error_stacks
from shanty.runtime.rank.reports import TRUNCATED
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import Failure

_LINES = 60
_EXIT = 1  # the exit code of a run that was aborted with a code that is 0 to the system
# What MPI_Abort writes: Open MPI's launcher, of which 5 adds the rank in the world; MPICH and Intel
# MPI in the rank itself.
_WORDS = (
    re.compile(r"MPI_ABORT was invoked on rank (?P<rank>\d+) in communicator MPI_COMM_WORLD"),
    re.compile(r"^ *Proc: \[\[\d+,\d+\],(?P<rank>\d+)\]"),
    re.compile(r"^ *(?:Errorcode:|with errorcode) (?P<code>-?\d+)"),
    re.compile(r"Abort\((?P<code>-?\d+)\) on node (?P<rank>\d+) .*: Fatal error in "),
    re.compile(
        r"Abort\(-?\d+\) on node (?P<rank>\d+) .*"
        r"application called MPI_Abort\(.*, (?P<code>-?\d+)\)"
    ),
    re.compile(r"Abort\((?P<code>-?\d+)\) on node (?P<rank>\d+) .*: Fatal error in "),
)
# An error of MPI that ends its rank: MPICH and Intel MPI have it in one line, Open MPI in two.
_ERRORS = (
    re.compile(
        r"Fatal error in (?:internal_|P)?(?P<call>\w+?)(?:_c)?: (?P<text>.*?)(?:, error stack:)?$"
    ),
    re.compile(r"\*\*\* An error occurred in (?P<call>\w+)"),
    re.compile(r"\*\*\* (?P<text>MPI_ERR_\w+: .*)"),
)
_ABORTED = "it called MPI_Abort"


def abort(
    run: RunDir, worlds: Mapping[str, MpiWorld], failure: Optional[Failure]
) -> Optional[Verdict]:
    """Return the verdict on a rank that called MPI_Abort, where the launcher then ended the others.

    `failure` is the one known so far; None also where it names a rank that failed by itself.
    """
    ranks = {rank.rank: rank for world in worlds.values() for rank in world.ranks.values()}
    left = [rank for world in worlds.values() for rank in world.early_leavers()]
    unended = [rank for rank in ranks.values() if rank.ended is None]
    blamed = ranks.get(failure.rank) if failure is not None and failure.rank is not None else None
    if blamed.why if blamed is not None else not (left or unended):
        return None
    logs: List[Tuple[Path, Optional[int]]] = [(run.launcher_log, None)]
    logs += [(run.rank_log(rank.rank), rank.rank) for rank in (*left, *unended)]
    for log, own in logs:
        number, code = caller(last_lines(str(log), _LINES))
        if number is not None and own is not None:  # before the world is made, each is rank 0
            number = own
        if number is None and left:  # the rank in a communicator that is not the world
            number = left[0].rank
        if code is None or number not in ranks or (failure is None and code & 0xFF):
            continue
        if blamed is None or blamed.code in (0, code & 0xFF, *LAUNCHERS_DOING):
            return _verdict(ranks[number], code)
    return None


def caller(lines: Sequence[str]) -> Tuple[Optional[int], Optional[int]]:
    """Return the rank that called MPI_Abort, and its code, as far as `lines` of a log say."""
    found: Dict[str, int] = {}
    for match in (pattern.search(line) for line in lines for pattern in _WORDS):
        if match is not None:
            found.update({name: int(value) for name, value in match.groupdict().items()})
    return found.get("rank"), found.get("code")


def with_error(failure: Failure) -> Failure:
    """Return the failure with the error of MPI that the last lines of its rank have."""
    if failure.why not in ("", _ABORTED):
        return failure
    found: Dict[str, str] = {}
    for match in (pattern.search(line) for line in failure.lines for pattern in _ERRORS):
        for name, value in match.groupdict().items() if match is not None else ():
            found.setdefault(name, value)
    if len(found) < 2:
        return failure
    call = found["call"] if found["call"].startswith("MPI_") else f"MPI_{found['call']}"
    fix = TRUNCATED if "truncate" in found["text"].lower() else failure.fix
    why = error_stacks.reason(call, found["text"], "\n".join(failure.lines))
    return replace(failure, why=why, fix=fix)


def _verdict(rank: Rank, code: int) -> Verdict:
    where, system = f"rank {rank.rank} on {rank.host}", code & 0xFF
    if system:
        what, why = f"{where} ended with exit code {system}", _ABORTED
        return Verdict(Failure(what, why, "", rank.rank, rank.host), system)
    why = "MPI_Abort ends all ranks at once, so the run did not come to its end"
    if code:
        why += "; an exit code has 8 bits, so this one is 0 to the system"
    fix = "give MPI_Abort a code from 1 to 255"
    what = f"{where} called MPI_Abort with code {code}"
    return Verdict(Failure(what, why, fix, rank.rank, rank.host), _EXIT)
