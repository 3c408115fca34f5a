"""Slurm's queue: asks once for all runs, and explains how Slurm ended a job.

The last answer is kept for a while: a terminal that follows a run asks many times a second, and
slurmctld serves everybody. A thread asks, so that no caller waits for a slow slurmctld; while it
does not answer, its last answer counts.
"""

from __future__ import annotations

import os
import threading
import time
from typing import ClassVar, Collection, Dict, List, Mapping, Optional, Sequence

from shanty.runtime.errors import STOPPED_EXIT, TIME_LIMIT_EXIT, LaunchError, PrepareError
from shanty.runtime.queued_runs import Ending, Entry
from shanty.runtime.rundir import user_name
from shanty.runtime.slurm import parse, reasons, tools
from shanty.runtime.spec import HOST, MEMORY, PREEMPTED, Failure, State

_FIRST = 3.0  # seconds to wait for an answer; a client elsewhere that follows the run waits for 6
_AWAY = "slurmctld does not answer; this is its last answer"
# States in which a job is not, or no longer, on its nodes; `squeue` writes them in whole words.
_WAITS = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_OVER = (
    "CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "DEADLINE", "PREEMPTED", "NODE_FAIL",
    "BOOT_FAIL", "OUT_OF_MEMORY", "REVOKED",
)  # fmt: skip
_LAUNCH_FAILED = ("launch_failed_requeued_held", "launch failed requeued held", "JobLaunchFailure")
_OOM_EXIT = 137  # 128 + SIGKILL


class SlurmQueue:
    """The queue, as this user's jobs are in it."""

    scheme: ClassVar[str] = "slurm"

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.environ = environ
        self._lock = threading.Lock()
        self._fresh = threading.Condition(self._lock)
        self._known: Dict[str, Entry] = {}
        self._heard = float("-inf")  # when slurmctld answered last
        self._asked = float("-inf")  # when the last question ended, answered or not
        self._asking = False

    def look(self, names: Collection[str], age: float = 0.0) -> Mapping[str, Entry]:
        """What is known of these jobs; a job that Slurm has forgotten is left out."""
        with self._lock:
            if time.monotonic() > self._asked + age and not self._asking:
                self._asking = True
                threading.Thread(target=self._ask, args=(list(names),), daemon=True).start()
            never = self._heard == float("-inf")
            if never or age < 5:
                until = time.monotonic() + _FIRST
                while self._asking and time.monotonic() < until:
                    self._fresh.wait(max(0.0, until - time.monotonic()))
            if self._heard < self._asked or self._heard == float("-inf"):
                known = {name: self._known.get(name, Entry(False)) for name in names}
                return {
                    name: entry if entry.ending else entry._replace(reason=_away(entry.reason))
                    for name, entry in known.items()
                }
            return {name: self._known[name] for name in names if name in self._known}

    def _ask(self, names: Sequence[str]) -> None:
        found: Optional[Dict[str, Entry]] = None
        try:
            found = look(names, self.environ)
        finally:
            with self._lock:
                self._asking = False
                self._asked = time.monotonic()
                if found is not None:
                    self._known, self._heard = found, self._asked
                self._fresh.notify_all()

    def dequeue(self, name: str) -> None:
        """Take a job out of the queue, or end it."""
        cancel(name, self.environ)


def _away(reason: str) -> str:
    return reason if _AWAY in reason else "; ".join(filter(None, [reason, _AWAY]))


def cancel(name: str, environ: Mapping[str, str] = os.environ) -> None:
    """Have Slurm end a job; PrepareError where Slurm does not take the request."""
    answer = tools.ask(["scancel", name], environ=environ)
    gone = "Invalid job id" in answer.err or "already completing" in answer.err
    if answer.code != 0 and not gone:
        raise PrepareError(
            f"Slurm did not remove job {name} from its queue", answer.complaint,
            f"try again, or: scancel {name}",
        )  # fmt: skip


def named(comment: str, script: str, environ: Mapping[str, str]) -> Optional[List[str]]:
    """This user's jobs with that comment or that script; None where Slurm does not answer.

    `--slurm` may have set another comment.
    """
    words = ["squeue", "-h", "-a", "-u", user_name(os.getuid()), "-o", "%i|%k|%o"]
    answer = tools.ask(words, environ=environ)
    if answer.code != 0:
        return None
    found = (line.strip().partition("|") for line in answer.out.splitlines())
    return [
        number
        for number, _, rest in found
        if rest.startswith(f"{comment}|") or rest.endswith(f"|{script}")
    ]


def look(names: Sequence[str], environ: Mapping[str, str]) -> Optional[Dict[str, Entry]]:
    """What Slurm knows of the jobs `names`, by one question; None where it does not answer."""
    user = user_name(os.getuid())
    words = ["squeue", "-h", "-a", "-u", user, "-t", "all", "-o", parse.JOB_FORMAT]
    answer = tools.ask(words, environ=environ)
    if answer.code != 0:
        return None
    jobs = {job.id: job for job in parse.jobs(answer.out) if job.id in names}
    waiting = [job for job in jobs.values() if job.state in _WAITS]
    places = _places(waiting, environ) if waiting else {}
    found = {job.id: _entry(job, places.get(job.id, (0, 0))) for job in jobs.values()}
    for job in jobs.values():
        if job.state == "CANCELLED" and job.nodes:  # by a user, or since a node could not
            drained = refused_by(tools.node_records(job.nodes, environ), job.started)
            if drained:
                end = Ending(State.FAILED, _not_started(job.id, drained), LaunchError.exit_code)
                found[job.id] = Entry(False, "", end)
    for name in set(names) - set(found):
        ending = _accounted(name, environ)
        if ending is not None:
            found[name] = Entry(False, "", ending)
    return found


def _places(waiting: Sequence[parse.Job], environ: Mapping[str, str]) -> Dict[str, tuple[int, int]]:
    """The place of each job among those that wait in its partition, and how many these are."""
    partitions = ",".join(sorted({each for job in waiting for each in job.partition.split(",")}))
    words = ["squeue", "-h", "-a", "-t", "PENDING", "-p", partitions, "-o", parse.JOB_FORMAT]
    answer = tools.ask(words, environ=environ)
    if answer.code != 0:
        return {}
    return places(waiting, parse.jobs(answer.out))


def places(
    mine: Sequence[parse.Job], all_waiting: Sequence[parse.Job]
) -> Dict[str, tuple[int, int]]:
    """The place of each of `mine` among the jobs that wait in its partition, and their number."""
    found = {}
    for job in mine:
        partitions = set(job.partition.split(","))
        beside = [each for each in all_waiting if partitions & set(each.partition.split(","))]
        own = (-job.priority, parse.number(job.id))
        before = [each for each in beside if (-each.priority, parse.number(each.id)) < own]
        others = len({each.id for each in (*beside, job)})
        found[job.id] = (len({each.id for each in before} - {job.id}) + 1, others)
    return found


def _entry(job: parse.Job, place: tuple[int, int]) -> Entry:
    if job.state in _WAITS:
        if job.reason.strip("()") in _LAUNCH_FAILED:
            return Entry(
                True, "", Ending(State.FAILED, _not_started(job.id), LaunchError.exit_code)
            )
        return Entry(True, reasons.waiting(job.reason, *place, job.started))
    if job.state in _OVER:
        return Entry(False, "", ending(job.state, job.id, job.nodes))
    nodes = f": {job.nodes}" if job.nodes else ""
    if job.state == "CONFIGURING":
        return Entry(False, f"Slurm makes its nodes ready{nodes}")
    return Entry(False, f"its nodes are there{nodes}")


def _accounted(name: str, environ: Mapping[str, str]) -> Optional[Ending]:
    """How a job that slurmctld has forgotten ended, by the accounting, where there is one."""
    words = ["sacct", "-n", "-P", "-X", "-j", name, "-o", "State,NodeList"]
    answer = tools.ask(words, environ=environ)
    rows = [line for line in answer.out.splitlines() if "|" in line] if answer.code == 0 else []
    if not rows:
        return None
    state, _, nodes = rows[-1].partition("|")
    state = state.split()[0].upper()  # "CANCELLED by 1000"
    return ending(state, name, nodes) if state in _OVER else None


def refused_by(nodes: Sequence[Mapping[str, str]], since: str) -> str:
    """Which of a job's nodes were taken out of service as it began, and why; "" for none.

    Slurm cancels a job that a node cannot start and that is not to be queued again.
    """
    found = []
    for node in nodes:
        reason, _, noted = node.get("Reason", "").rpartition(" [")
        when = noted.rstrip("]").rpartition("@")[2]
        if reason and "DRAIN" in node.get("State", "") and when >= since:
            found.append(f"{node.get('NodeName', '')}: {reason}")
    return "; ".join(found)


def _not_started(name: str, why: str = "") -> Failure:
    return Failure(
        f"a node could not start job {name}",
        why or "slurmd could not write its spool (is its disk full?), or a prolog failed there",
        f"ask an administrator, with `scontrol show job {name}`; run again with "
        "--slurm '--exclude=NODE'",
    )


def ending(state: str, name: str, nodes: str = "") -> Ending:
    """How a job ended that has left no word of its own, by the state in which Slurm has it."""
    on = f" on {nodes}" if nodes and nodes not in parse.UNKNOWN else ""
    if state == "CANCELLED":
        return Ending(State.STOPPED, None, STOPPED_EXIT)
    if state in ("TIMEOUT", "DEADLINE"):
        return Ending(State.FAILED, time_limit(name), TIME_LIMIT_EXIT)
    if state == "PREEMPTED":
        return Ending(State.FAILED, preempted(name), LaunchError.exit_code)
    if state in ("NODE_FAIL", "BOOT_FAIL"):
        failure = Failure(
            f"a node of job {name} failed{on}",
            f"Slurm says {state}",
            "run again; with --retries a run goes on without a host that is lost, with --requeue "
            "it is queued again",
            cause=HOST,
        )
        return Ending(State.FAILED, failure, LaunchError.exit_code)
    if state == "OUT_OF_MEMORY":
        failure = Failure(
            f"job {name} used more memory than it had asked for{on}",
            "Slurm ended it",
            "ask for more with --memory-per-rank",
            cause=MEMORY,
        )
        return Ending(State.FAILED, failure, _OOM_EXIT)
    failure = Failure(
        f"job {name} ended{on} before it could report a status (Slurm: {state})",
        "a node could not start it, or all of its processes were killed at once",
        "see `shanty logs --agent`; run again",
    )
    return Ending(State.FAILED, failure, LaunchError.exit_code)


def time_limit(name: str, limit: str = "") -> Failure:
    """The failure of a job that has reached Slurm's limit."""
    return Failure(
        f"Slurm's time limit{f' of {limit}' if limit else ''} was reached by job {name}",
        "Slurm ends a job then",
        "give it more time with --time-limit; `shanty.progress` and commits let it go on from "
        "where it was",
    )


def preempted(name: str) -> Failure:
    """The failure of a job that was ended for another one, and is not queued again."""
    return Failure(
        f"job {name} was preempted: Slurm gave its nodes to a job of higher priority",
        "the run did not ask to be queued again",
        "run again, with --requeue to have Slurm do so; hvd.elastic continues from its last commit",
        cause=PREEMPTED,
    )
