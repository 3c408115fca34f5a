"""Starts the agents of a run: `boot.py agent.start RUN_DIR`.

One process becomes the lead, its child the warden. The warden comes first: the lead loads what
it needs to judge while the launcher is already at work.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any, List, Mapping

from shanty.carry import platform
from shanty.carry.agent.channel import Channel
from shanty.carry.agent.identity import identity, where
from shanty.carry.rundir import RunDir, read_json, write_json


def main(argv: List[str]) -> int:
    """Lead the run whose directory is `argv[0]`."""
    run = RunDir(Path(argv[0]))
    plan = read_json(run.plan)
    if plan is None:
        print(f"{run.plan} is missing or damaged", file=sys.stderr)
        return 71
    (to_lead, from_warden), (to_warden, from_lead) = os.pipe(), os.pipe()
    lead = os.getpid()
    warden = os.fork()
    if warden == 0:
        os.close(to_lead)
        os.close(from_lead)
        return _be_warden(run, plan, Channel(to_warden, from_warden), lead)
    os.close(to_warden)
    os.close(from_warden)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # the run's standard input is the warden's to give away
    os.close(null)
    return _be_lead(run, plan, Channel(to_lead, from_lead), warden)


def _be_lead(run: RunDir, plan: Mapping[str, Any], channel: Channel, warden: int) -> int:
    platform.adopt_orphans()
    agents = {"lead": identity(os.getpid()), "warden": identity(warden), **where()}
    write_json(run.agents, agents)
    from shanty.carry.agent.lead import Lead

    Lead(run, plan).run(channel, warden)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(warden, 0)
    return 0


def _be_warden(run: RunDir, plan: Mapping[str, Any], channel: Channel, lead: int) -> int:
    from shanty.carry.agent.warden import Warden

    Warden(run, plan, channel).run()
    if not channel.open:
        _after_lead(run, lead)
    return 0


def _after_lead(run: RunDir, lead: int) -> None:
    """The warden has ended all because its lead is gone, and writes the last word."""
    from shanty.carry.agent.outside import conclude, read_status
    from shanty.carry.errors import LaunchError
    from shanty.carry.spec import Failure, State

    status = read_status(run)
    if not status.state.final:
        failure = Failure(
            f"the lead agent on {os.uname().nodename} (pid {lead}) was killed",
            "without it the run cannot be led, so the warden ended the ranks",
            "see `shanty logs --agent`; run again",
        )
        conclude(run, status, State.FAILED, failure, LaunchError.exit_code)
