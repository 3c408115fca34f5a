"""Addresses of machines: hosts, types and the queue, and a look at them by the doctor."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from shanty.dashboard import machines, program
from shanty.dashboard.access import Reader, Writer
from shanty.dashboard.errors import STARTING, Refused
from shanty.dashboard.models import Check, Checked, Machines
from shanty.runtime.rundir import json_objects

router = APIRouter(prefix="/machines", responses=STARTING, tags=["machines"])
_PATIENCE = 180.0  # seconds for the doctor


@router.get("")
def overview(caller: Reader) -> Machines:
    """Return hosts and types, what is free, and who uses what."""
    here = caller.here
    return machines.machines(here.home, here.runs, caller.only_of, here.account)


@router.post("/check")
async def check(caller: Writer, asked: Check) -> Checked:
    """Let the doctor look at a group of hosts, or at this machine, and keep what it finds."""
    here = caller.here
    group = asked.group or None
    if group is not None and group not in await run_in_threadpool(machines.groups, here.home):
        what = f"group {group[:64]!r} not found"
        raise Refused(404, what, "", "`shanty hosts list` lists all groups")
    words = ["doctor", "--json", *([group] if group else [])]
    done = await program.shanty(words, here.home, here.environ, _PATIENCE)
    said = json_objects(done.stdout.splitlines())
    reports = [each for each in said if isinstance(each.get("findings"), list)]
    if not reports:
        raise Refused(424, "the doctor could not look there", done.stderr.strip()[-2000:])
    found, checked = await run_in_threadpool(machines.keep, here.home, group, reports[-1])
    return Checked(healthy=done.returncode == 0, findings=found, checked=checked)
