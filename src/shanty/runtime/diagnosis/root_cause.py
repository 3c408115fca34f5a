"""Finds the cause when no rank is to blame: the start took too long, or the launcher failed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Iterable, List, Mapping, NamedTuple, Optional, Sequence

from shanty.runtime.diagnosis.mpi_world import MpiWorld
from shanty.runtime.diagnosis.rank_names import named
from shanty.runtime.diagnosis.rank_record import Rank
from shanty.runtime.diagnosis.signals import signal_name
from shanty.runtime.errors import LaunchError, WorldError
from shanty.runtime.plan import Plan
from shanty.runtime.spec import Failure

_PASSED_ON = re.compile(r"Forwarding signal (\d+) to job")  # Open MPI 4.1
TOP = "0"  # the world of the launcher that the plan names; a nested one is known by its pid


class Verdict(NamedTuple):
    """A failure, its exit code, and whether the launcher's last lines belong to it."""

    failure: Failure
    code: int
    quotes_launcher: bool = False


def late(plan: Plan, worlds: Mapping[str, MpiWorld], now: float, began: float) -> Optional[Verdict]:
    """Return the verdict on ranks that should be up by now, in any world; None when all are.

    `began`: when the attempt began. A world that is not in the plan began with its first rank.
    """
    patience = plan.limits.start_timeout
    expected = plan.ranks
    if expected is not None and TOP not in worlds and now > began + patience:
        return _not_started(plan, list(range(expected)), expected)
    for name, world in worlds.items():
        if world.losses is not None:
            continue  # all were up; ranks that come back wait for the others' next commit
        since = began if name == TOP and expected is not None else world.began or now
        if world.expected is None or now < since + patience or world.is_over:
            continue
        missing = [rank for rank in range(world.expected) if rank not in world.ranks]
        if missing:
            return _not_started(plan, missing, world.expected)
        waiting = world.waiting_in_init()
        if any(not rank.library and rank.ended is None for rank in world.ranks.values()):
            continue  # still on its way there: the watch over stalls names it
        newest = max((rank.seen for rank in world.ranks.values()), default=now)
        if waiting and now - newest > patience:
            return Verdict(
                Failure(
                    f"{named(waiting)} of {world.expected} did not come through MPI_Init "
                    f"within {patience:g} s",
                    "they have loaded their MPI, but found no world to join",
                    "see their last lines with `shanty logs`; a slow network or file system may "
                    "need --start-timeout",
                ),
                WorldError.exit_code,
            )
    return None


def _not_started(plan: Plan, missing: List[int], expected: int) -> Verdict:
    patience = plan.limits.start_timeout
    fix = (
        "see the launcher's output with `shanty logs --launcher`; a machine under load may need "
        "--start-timeout"
    )
    if plan.workers:
        fix += "; a firewall between the hosts may hold back the launcher's daemons"
    return Verdict(
        Failure(
            f"{named(missing)} of {expected} did not start within {patience:g} s",
            "the launcher is at work, but has not started them",
            fix,
        ),
        LaunchError.exit_code,
        quotes_launcher=True,
    )


def at_end(
    plan: Plan, worlds: Mapping[str, MpiWorld], launcher: Optional[int], error: str
) -> Optional[Verdict]:
    """Return the verdict when the launcher ended with `launcher`; `error`: why it never began."""
    expected, top = plan.ranks, worlds.get(TOP)
    if launcher != 0:
        code = launcher if launcher is not None else LaunchError.exit_code
        signal, code = max(0, -code), code if code >= 0 else 128 - code
        ranks = [rank for world in worlds.values() for rank in world.ranks.values()]
        killed = any(rank.ended is None for rank in ranks)
        what, why = error or f"the launcher ended with exit code {code}", ""
        fix = ""
        if signal and not error:
            what = f"the launcher on host {plan.lead.name} was ended by {signal_name(signal)}"
            fix = "find out from the host's log who ended it (out of memory?); run again"
        elif code == 127 and plan.raw and not (ranks or error):
            fix = f"check the command, and that {plan.lead.name} or its image has that program"
        elif killed:
            why = "it ended the ranks itself, as it does when one of them calls MPI_Abort"
            why += _ended_well(ranks)
        passed_on = (killed and not signal) or plan.raw or error
        return Verdict(
            Failure(what, why, fix),
            code if passed_on else LaunchError.exit_code,
            quotes_launcher=True,
        )
    unended = top.running if top is not None and not plan.raw else []
    unended = [rank for rank in unended if top is not None and not top.is_gone(rank)]
    silent = top.silent_leavers() if top is not None and unended else []
    if silent:
        first = silent[0]
        return Verdict(
            Failure(
                f"rank {first.rank} on {first.host} ended with exit code 0 before "
                f"{named(unended)}, and the launcher ended the rest",
                "it left without MPI_Finalize, or another rank called MPI_Abort with code 0",
                "let every rank come to MPI_Finalize; see their last lines with `shanty logs`",
                first.rank,
                first.host,
            ),
            WorldError.exit_code,
            quotes_launcher=True,
        )
    if unended:
        return Verdict(
            Failure(
                f"{named(unended)} of {expected} did not come to the end of the program",
                "the launcher has ended them, and ended with 0 itself, as it does when a rank "
                "calls MPI_Abort with code 0",
                "let every rank reach MPI_Finalize; see the last lines of the ranks with "
                "`shanty logs`",
            ),
            WorldError.exit_code,
            quotes_launcher=True,
        )
    if expected is not None and (top is None or top.started < expected):
        missing = [rank for rank in range(expected) if top is None or rank not in top.ranks]
        return Verdict(
            Failure(
                f"{named(missing)} of {expected} never started",
                "the launcher ended with 0 nevertheless",
                "see the launcher's output with `shanty logs --launcher`",
            ),
            WorldError.exit_code,
            quotes_launcher=True,
        )
    return None


def _ended_well(ranks: Iterable[Rank]) -> str:
    """Name the ranks that ended with 0, perhaps without MPI_Finalize, where others were ended."""
    gone = [rank.rank for rank in ranks if rank.code == 0]
    if not gone:
        return ""
    return f", or ends without MPI_Finalize: {named(gone)} had ended with exit code 0"


def explained(failure: Failure, lines: Sequence[str], no_slots: str) -> Failure:
    """Return the failure as the launcher's last lines explain it, as where they say `no_slots`."""
    passed_on = next(filter(None, map(_PASSED_ON.search, lines)), None)
    if passed_on is not None:
        name = signal_name(int(passed_on[1]))
        return replace(
            failure,
            what=f"the launcher received {name} and passed it on to the ranks",
            why="someone, or a batch system, sent it to the launcher",
            fix="find out who sent it; run again",
        )
    said = no_slots and any(no_slots in line for line in lines)
    if failure.why or failure.fix or not said:
        return failure
    return replace(
        failure,
        why="its line asks for more ranks than its hosts have slots (here: cores)",
        fix="add --oversubscribe to the line, after mpirun; ranks then share the cores",
    )


def misplaced(plan: Plan, world: MpiWorld) -> Optional[Verdict]:
    """Return the verdict on ranks that are on the wrong hosts; None when all are right."""
    meant: Mapping[str, int] = plan.attempt.placement
    there = dict.fromkeys(meant, 0)
    for rank in world.ranks.values():
        there[rank.host] = there.get(rank.host, 0) + 1
    if not meant or there == dict(meant):
        return None
    found = ", ".join(f"{host} {there[host]} (meant: {meant.get(host, 0)})" for host in there)
    return Verdict(
        Failure(
            "the ranks are not on the hosts meant for them",
            f"ranks on each host: {found}",
            "see the host file with `shanty show`; a setting of the MPI in the environment, or "
            "in its configuration file, may have overruled it",
        ),
        WorldError.exit_code,
    )
