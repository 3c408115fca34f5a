"""Jobs of other queues than Slurm in which a run may be started.

The hosts of such a job are not used unless the user names them, nor is this machine used in their
place: a run on one of several hosts would look like a run on all of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from shanty.runtime.errors import PrepareError
from shanty.runtime.rundir import RUN_DIR


class _Queue(NamedTuple):
    """The variables in jobs of a queue: those of every job, its number, and its hosts."""

    name: str
    job: str
    number: str
    file: str = ""  # the path of a file with a host on each line
    words: str = ""  # the hosts themselves
    counted: str = ""  # the number of hosts


_QUEUES = (
    _Queue("PBS", "PBS_JOBID", "PBS_JOBID", file="PBS_NODEFILE"),
    _Queue("LSF", "LSB_JOBID", "LSB_JOBID", file="LSB_DJOB_HOSTFILE", words="LSB_HOSTS"),
    _Queue("Grid Engine", "PE_HOSTFILE", "JOB_ID", file="PE_HOSTFILE"),
    _Queue("Cobalt", "COBALT_JOBID", "COBALT_JOBID", file="COBALT_NODEFILE"),
    _Queue("OAR", "OAR_JOB_ID", "OAR_JOB_ID", file="OAR_NODEFILE"),
    _Queue("LoadLeveler", "LOADL_STEP_ID", "LOADL_STEP_ID", file="LOADL_HOSTFILE"),
    _Queue("Flux", "FLUX_JOB_ID", "FLUX_JOB_ID", counted="FLUX_JOB_NNODES"),
)
_SHOWN = 4  # hosts


def refuse_this_machine(environ: Mapping[str, str]) -> None:
    """Raise PrepareError in a queue's job, unless its only host is this machine."""
    if RUN_DIR in environ:
        return  # a rank, or the line of a run, which has its hosts
    if environ.get("K_MPI_JOB_ROLE") == "launcher":
        raise PrepareError(
            "this is the launcher of an MPIJob, and its workers are not known",
            "/etc/mpi/hostfile is missing",
            "--on HOSTS names the workers, --on local uses this pod only",
        )
    for queue in _QUEUES:
        if environ.get(queue.job):
            _refuse(queue, environ)


def _refuse(queue: _Queue, environ: Mapping[str, str]) -> None:
    own = os.uname().nodename.partition(".")[0]
    title = " ".join(["this is", queue.name, "job", environ.get(queue.number, "")]).strip()
    try:
        hosts, source = _hosts(queue, environ)
    except ValueError as error:
        raise PrepareError(
            f"{title}, and its hosts are not known", str(error),
            "--on HOSTS names them, --on local uses this machine only",
        ) from error  # fmt: skip
    if [host.partition(".")[0] for host in hosts] == [own]:
        return
    shown = ", ".join([*list(hosts)[:_SHOWN], *(["…"] if len(hosts) > _SHOWN else [])])
    where = "--on " + ",".join(f"{host}:{slots}" for host, slots in hosts.items())
    if source == queue.file != "PE_HOSTFILE":  # Grid Engine's has other columns
        where = f'--hostfile "${source}"'
    raise PrepareError(
        f"{title} on {shown}, and these hosts are not used by default",
        f"shanty does not take {source} by itself, and the run would use {own} only",
        f"{where} uses all of them by ssh, --on local uses this machine only",
    )


def _hosts(queue: _Queue, environ: Mapping[str, str]) -> tuple[dict[str, int], str]:
    """The slots of each host, and the variable that has them; ValueError where none has."""
    found: Counter[str] = Counter()
    trouble = f"{queue.file or queue.words} is not set"
    path = environ.get(queue.file, "")
    if path:
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            trouble = f"{queue.file}={path} cannot be read: {error.strerror}"
        else:
            trouble = f"{queue.file}={path} is empty"
            for words in filter(None, map(str.split, text.splitlines())):
                found[words[0]] += int(words[1]) if words[1:] and words[1].isdecimal() else 1
    if found:
        return dict(found), queue.file
    if environ.get(queue.words):
        return dict(Counter(environ[queue.words].split())), queue.words
    if environ.get(queue.counted) == "1":
        return {os.uname().nodename: 1}, queue.counted
    if queue.counted:
        trouble = f"{queue.name} sets no variable with their names"
    raise ValueError(trouble)
