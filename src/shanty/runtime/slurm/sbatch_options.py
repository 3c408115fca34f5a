"""Makes Slurm's request of a job: the options of sbatch. Pure."""

from __future__ import annotations

import math
import shlex
from pathlib import PurePosixPath
from typing import List, NamedTuple, Optional, Sequence, Tuple

from shanty.runtime.errors import UsageError
from shanty.runtime.lines import srun_line
from shanty.runtime.lines.srun_line import SrunLine
from shanty.runtime.spec import JobSpec, Module, Raw, Script

SIGNAL = "USR1"  # what Slurm warns with before it ends a job, unless the user names another
WARNING = 60  # seconds before
_SHARE = 10  # of a short job's time, the warning comes no earlier than one part of so many
_OURS = ("--output", "-o", "--open-mode", "--wrap", "--array", "-a", "--chdir", "-D", "--parsable")
# With these sbatch queues nothing, or does not come back before the job's end.
_NOT_QUEUED = (
    "--wait", "-W", "--test-only", "--help", "-h", "--usage", "-u", "--version", "-V",
)  # fmt: skip


class Request(NamedTuple):
    """What a job asks of Slurm; `memory` in bytes and `cpus`, `gpus` are of each rank.

    `warning` is None where neither the user nor the job's time says it.
    """

    nodes: Optional[int]
    tasks: Optional[int]
    per_node: Optional[int]
    cpus: int
    memory: Optional[int]
    gpus: int
    minutes: Optional[int]
    keeps_others: bool  # a node that fails does not end the job
    signal: str
    warning: Optional[int]  # seconds before the end at which it is sent
    others: Tuple[str, ...]
    # The options that Slurm declares, by their names.
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    exclusive: bool = False
    requeue: bool = False

    @property
    def least_nodes(self) -> int:
        """The nodes without which it cannot be."""
        if self.nodes is not None:
            return self.nodes
        if self.tasks is not None and self.per_node is not None:
            return -(-self.tasks // self.per_node)
        return 1

    @property
    def ranks_on_one(self) -> int:
        """The ranks that some node has to take at least."""
        if self.per_node is not None:
            return self.per_node
        if self.tasks is not None and self.nodes is not None:
            return -(-self.tasks // self.nodes)
        return 1

    def words(self) -> List[str]:
        """The options of sbatch; the user's own come last, so that they count."""
        found = [
            _word("nodes", self.nodes),
            _word("ntasks", self.tasks),
            _word("ntasks-per-node", self.per_node),
            _word("cpus-per-task", self.cpus if self.cpus > 1 else None),
            _word("time", self.minutes),
            _word("partition", self.partition),
            _word("account", self.account),
            _word("qos", self.qos),
            _word("constraint", self.constraint),
            _word("reservation", self.reservation),
            "--exclusive" if self.exclusive else "",
            "--requeue" if self.requeue else "--no-requeue",
            "--no-kill" if self.keeps_others else "",
            f"--signal=B:{self.signal}@{WARNING if self.warning is None else self.warning}",
        ]
        if self.memory:
            found.append(f"--mem-per-cpu={math.ceil(self.memory / self.cpus / 2**20)}M")
        if self.gpus and self.tasks is not None:
            found.append(f"--gpus-per-task={self.gpus}")
        elif self.gpus:
            found.append(f"--gpus-per-node={self.gpus * (self.per_node or 1)}")
        return [*filter(None, found), *self.others]


def warned_in_time(request: Request, limit: Optional[float]) -> Request:
    """The request with a warning that comes late enough in a job of `limit` seconds; None: none."""
    if request.warning is not None:
        return request
    return request._replace(warning=WARNING if limit is None else _late(limit))


def _late(limit: float) -> int:
    """The seconds before the end of a job of `limit` seconds at which it is warned."""
    return max(1, min(WARNING, int(limit) // _SHARE))


def _word(name: str, value: object) -> str:
    return "" if value in (None, "") else f"--{name}={value}"


def of_job(job: JobSpec) -> Request:
    """The request of a job; UsageError where `--slurm` has what cannot be passed on."""
    own = {name: job.options[name] for name in Request._field_defaults if name in job.options}
    typed: str = job.options.get("slurm", "")
    try:
        others = shlex.split(typed)
    except ValueError as error:
        raise UsageError(
            f"--slurm {typed!r} cannot be read", str(error), "check its quotes"
        ) from error
    for word in others:
        if _is_one_of(word, _OURS):
            raise UsageError(
                f"--slurm cannot take {word}",
                "shanty sets it itself: a run is followed by its log, and starts in the workspace",
                "leave it out",
            )
        if _is_one_of(word, _NOT_QUEUED):
            raise UsageError(
                f"--slurm cannot take {word}",
                "sbatch has to queue the job, and to report its number at once",
                "leave it out",
            )
        if not word.startswith("-") and others.index(word) == 0:
            raise UsageError(
                f"--slurm {typed!r} has to begin with an option of sbatch",
                fix="for example: --slurm '--mail-type=END --licenses=fluent'",
            )
    signal, warning, others = _signal(others)
    line = line_of(job)
    minutes = None if job.time_limit is None else max(1, math.ceil(job.time_limit / 60))
    if warning is None and minutes is not None:
        warning = _late(minutes * 60)
    return Request(
        nodes=job.nodes or (line.nodes if line else None),
        tasks=job.processes or (line.tasks if line else None),
        per_node=job.ranks_per_host or (line.per_node if line else None),
        cpus=job.cpus_per_rank or (line.cpus if line else None) or 1,
        memory=job.memory_per_rank,
        gpus=job.gpus_per_rank or 0,
        minutes=minutes,
        keeps_others=job.retries > 0 or job.elastic is not None,
        signal=signal,
        warning=warning,
        others=tuple(others),
        **own,
    )


def _is_one_of(word: str, names: Sequence[str]) -> bool:
    """True for a word that means one of these options of sbatch, whose name may be cut short."""
    if not word.startswith("--"):
        return word[:2] in names  # its value may follow at once
    name = word.partition("=")[0]
    return any(each.startswith(name) for each in names)


def line_of(job: JobSpec) -> Optional[SrunLine]:
    """The user's own line for srun; None where the job is another one."""
    command = job.command
    if not isinstance(command, Raw) or command.shell:
        return None
    program, *words = command.argv
    return srun_line.parse(words) if program.rpartition("/")[2] == "srun" else None


def _signal(words: Sequence[str]) -> Tuple[str, Optional[int], List[str]]:
    """The signal that the user wants as a warning, seconds before the end, and the other words.

    Slurm would send it to steps only, where no rank is; so it is sent to the batch script, which
    passes it on to all ranks.
    """
    others, found = [], ""
    rest = iter(words)
    for word in rest:
        if word == "--signal":
            found = next(rest, "")
        elif word.startswith("--signal="):
            found = word.partition("=")[2]
        else:
            others.append(word)
    name, at, number = found.rpartition(":")[2].partition("@")
    name = name.upper()[3:] if name.upper().startswith("SIG") else name.upper()
    if at and not number.isdigit():
        raise UsageError(f"--signal={found} has no seconds", fix="write --signal=USR1@120")
    return name or SIGNAL, int(number) if number else None, others


def name_of(job: JobSpec, run: str) -> str:
    """The job's name in squeue: the run's, else what it runs."""
    if job.name:
        return job.name
    command = job.command
    if isinstance(command, Script):
        return PurePosixPath(command.path).name
    if isinstance(command, Module):
        return command.name
    words = job.words()
    return PurePosixPath(words[0].split()[0]).name if words and words[0].split() else run
