"""Tells why Slurm ends a job: `boot.py slurm.word RUN_DIR JOB RESTARTS`.

`controller.queue_ending` calls it.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Mapping

from shanty.runtime.rundir import RunDir
from shanty.runtime.slurm import parse, queue, tools
from shanty.runtime.spec import State

LOG = "slurm.log"  # of the batch script, in the run's logs; slurmstepd writes into it, too
_ENDED = re.compile(r"\*\*\* (?:JOB|STEP) (\d+)\S* .*CANCELLED AT (\S+)(?: DUE TO (.+?))? \*\*\*")


def main(argv: List[str]) -> int:
    """Print what Slurm says about the job `argv[1]`, which was restarted `argv[2]` times."""
    run, job, restarts = RunDir(Path(argv[0])), argv[1], int(argv[2])
    log = ""
    path = run.path / "logs" / LOG
    if path.exists():
        log = path.read_text(errors="replace")
    json.dump(why(tools.job(job), log, job, restarts), sys.stdout)
    return 0


def why(shown: Mapping[str, str], log: str, job: str, restarts: int) -> Dict[str, Any]:
    """Why a job is being ended, by what `scontrol` shows of it and what slurmstepd wrote."""
    said = [match[3] or "" for match in _ENDED.finditer(log) if match[1] == job]
    cause = said[-1].upper() if said else ""
    state, reason = shown.get("JobState", ""), shown.get("Reason", "")
    again = parse.number(shown.get("Restarts", "")) > restarts
    preempted = "PREEMPTION" in cause or shown.get("PreemptTime", "None") not in parse.UNKNOWN
    failed = "NODE FAIL" in cause or reason == "NodeFailure" or state == "NODE_FAIL"
    if again:
        what = "preempted by a job of higher priority" if preempted else "ended by Slurm"
        what = "ended, since one of its nodes failed" if failed and not preempted else what
        return {"state": State.PENDING.value, "reason": f"it was {what}, and is queued again"}
    kind = "CANCELLED"
    if "TIME LIMIT" in cause or reason == "TimeLimit" or state in ("TIMEOUT", "DEADLINE"):
        kind = "TIMEOUT"
    elif preempted:
        kind = "PREEMPTED"
    elif failed:
        kind = "NODE_FAIL"
    elif "OUT OF MEMORY" in cause or reason == "OutOfMemory":
        kind = "OUT_OF_MEMORY"
    if kind == "CANCELLED":
        return {"state": State.STOPPED.value}
    end = queue.ending(kind, job, shown.get("NodeList", ""))
    failure = end.failure
    if kind == "TIMEOUT":
        failure = queue.time_limit(job, shown.get("TimeLimit", ""))
    return {
        "state": State.FAILED.value,
        "failure": asdict(failure) if failure else {},
        "code": end.code,
    }
