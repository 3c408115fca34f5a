"""Checks a job where Slurm's tools are, and hands it over to Slurm."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from shanty.runtime.errors import PrepareError, UsageError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.plan import Plan
from shanty.runtime.rank import srun
from shanty.runtime.rundir import RunDir
from shanty.runtime.slurm import checks, parse, queue, tools
from shanty.runtime.slurm.ending_reason import LOG
from shanty.runtime.slurm.first_node import SCRIPT, script
from shanty.runtime.slurm.sbatch_options import Request, line_of, name_of, of_job, warned_in_time
from shanty.runtime.spec import JobSpec

_TO_APPEAR = 3.0  # seconds for a job to be in the queue whose sbatch was killed
_LOOK = 0.5  # between two looks for it
# What sbatch says, in part; what that means; what to do.
_REFUSALS = (
    ("invalid partition|Invalid partition", "the partition does not exist", "see `sinfo -s`"),
    (
        "Invalid account", "the account, or its combination with the partition, is not valid",
        "see `sacctmgr show assoc user=$USER`; name one with --account",
    ),
    ("Invalid qos|QOS", "the QOS is not valid, or a limit of it is reached", "see --qos"),
    (
        "reservation is invalid|Reservation", "the reservation does not exist",
        "see `scontrol show reservation`",
    ),
    ("feature", "no node has such features", "see --constraint and `sinfo -o '%f'`"),
    ("time limit", "its time is above a limit", "take a smaller --time-limit"),
    ("generic resource|gres", "the cluster has no such GPUs (gres)", "see `sinfo -o '%G'`"),
    (
        "node configuration is not available|Node count|More processors",
        "the cluster can never give that", "ask for fewer nodes, CPUs, GPUs or less memory",
    ),
    ("User's group|not permitted|Access", "you may not use that", "ask an administrator"),
)  # fmt: skip


def check(job: JobSpec, mpi: str, environ: Mapping[str, str] = os.environ) -> Request:
    """Find out what keeps a job from ever being run; UsageError or PrepareError say it.

    `mpi` is the flavour of the MPI that it will have.
    """
    tools.need(environ)
    check_line(job, mpi, environ)
    request = of_job(job)
    known = checks.partitions(tools.partitions(environ), tools.nodes(environ))
    checks.check(_with_defaults(request, environ), known)
    words = ["sbatch", "--test-only", *request.words()]
    answer = tools.ask(words, environ=_outside(environ, job), text="#!/bin/sh\nexit 0\n")
    if answer.code != 0:
        raise _refused(answer, request)
    return request


def check_line(job: JobSpec, mpi: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError where ranks that the user's own srun starts would not find each other."""
    line = line_of(job)
    if line is None:
        return
    answer = tools.ask(["srun", "--mpi=list"], environ=environ)
    types = parse.mpi_types(f"{answer.out}\n{answer.err}")  # versions differ in where they are
    flavour = FLAVOURS[mpi]
    fits = srun.fitting(flavour, types)
    if line.mpi and not line.mpi.startswith(flavour.pmi):
        raise UsageError(
            f"--mpi={line.mpi} of srun does not fit {flavour.title}",
            f"its ranks find each other by {' or '.join(flavour.pmi)}: each would be rank 0 of 1",
            f"take --mpi={fits}" if fits else "leave srun out: shanty run starts the ranks itself",
        )
    if (line.mpi and line.mpi not in types) or not fits:
        raise UsageError(
            f"this Slurm has no {line.mpi or ' or '.join(flavour.pmi)} for {flavour.title}",
            f"`srun --mpi=list` names {', '.join(types) or 'nothing'}",
            "leave srun out: shanty run starts the ranks itself; or take another --mpi",
        )


def _with_defaults(request: Request, environ: Mapping[str, str]) -> Request:
    """What the environment sets for sbatch counts where nothing was typed."""
    found: Dict[str, Any] = {}
    for name in ("partition", "account", "qos", "constraint", "reservation"):
        if not getattr(request, name) and environ.get(f"SBATCH_{name.upper()}"):
            found[name] = environ[f"SBATCH_{name.upper()}"]
    return request._replace(**found)


def _refused(answer: tools.Answer, request: Request) -> PrepareError:
    if answer.unheard:
        return PrepareError(
            "Slurm does not answer: slurmctld cannot be reached",
            answer.complaint,
            "try again in a while; `scontrol ping` shows whether it is up",
        )
    found = (each[1:] for each in _REFUSALS if re.search(each[0], answer.err))
    what, fix = next(found, ("", "see the options of `shanty run --help-all`, group Slurm"))
    return PrepareError(
        "Slurm rejected the job" + (f": {what}" if what else ""),
        f"{answer.complaint} (asked for: {' '.join(request.words())})",
        fix,
    )


def submit(run: RunDir, plan: Plan, job: JobSpec, environ: Mapping[str, str] = os.environ) -> str:
    """Queue a run that is written down; returns the job's number.

    Its caller writes the number into `site.json`. Whatever goes wrong, no job is left.
    """
    request = _with_defaults(of_job(job), environ)
    known = checks.partitions(tools.partitions(environ), ())
    request = warned_in_time(of_job(job), checks.limit_of(request, known))
    text = script(run, plan.lead.host_boot, request.signal)
    path = run.path / SCRIPT
    path.write_text(text)
    path.chmod(0o755)
    words = [
        "sbatch", "--parsable", f"--job-name={name_of(job, run.id)}",
        f"--comment={comment_of(run)}", f"--output={run.path}/logs/{LOG}",
        "--open-mode=append", "--chdir=/", "--export=ALL", *request.words(), str(path),
    ]  # fmt: skip
    answer = None
    try:
        answer = tools.ask(words, environ=_outside(environ, job))
        if answer.code != 0:
            raise _refused(answer, request)
        return parse.submitted(answer.out)
    except BaseException as error:  # Ctrl-C too
        if answer is None or answer.code == 0 or answer.unheard:
            _withdraw(run, environ)
        if isinstance(error, ValueError):
            what = "Slurm took the job, and did not return its number"
            raise PrepareError(what, str(error)) from error
        raise


def comment_of(run: RunDir) -> str:
    """The comment by which a run's job is known to Slurm."""
    return f"shanty run {run.id}"


def _withdraw(run: RunDir, environ: Mapping[str, str]) -> None:
    """Take a run's job out of the queue if it is there, though its number is not known."""
    until = time.monotonic() + _TO_APPEAR
    while True:
        found = queue.named(comment_of(run), str(run.path / SCRIPT), environ)
        if found is None:
            raise PrepareError(
                "Slurm does not answer, and may have taken the job",
                "slurmctld cannot be reached, so that it could not be taken out of the queue again",
                "when `squeue -u $USER -o '%i %k'` answers, scancel the job with the comment "
                f"{comment_of(run)}",
            )
        for number in found:
            queue.cancel(number, environ)
        if found or time.monotonic() > until:
            return
        time.sleep(_LOOK)


def _outside(environ: Mapping[str, str], job: JobSpec) -> Dict[str, str]:
    """The environment for a job, which Slurm writes down, without secrets.

    And without that of a job in which this is typed: it is another one.
    """
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
    return {
        name: value
        for name, value in environ.items()
        if name not in job.secrets and (not name.startswith("SLURM_") or name in kept)
    }


# ---------------------------------------------------------------------------- what nodes can see

_NETWORK = (
    "nfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "panfs", "wekafs", "vast", "afs",
    "cifs", "smb", "9p", "fuse.", "orangefs", "pvfs", "ocfs2", "gfs", "mmfs", "quobyte",
)  # fmt: skip
_OWN = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/var/run")  # of every host
_SYSTEM = ("/usr", "/opt", "/bin", "/lib", "/sw", "/apps", "/nix", "/cvmfs", "/snap")


def is_shared(path: str, home: str, mounts: str = "") -> bool:
    """True where the nodes probably see `path` too: as they see the `home`, or by a network.

    `mounts` is the text of /proc/self/mountinfo.
    """
    real, top = Path(os.path.realpath(path)), Path(os.path.realpath(home))
    kind = _mounted(real, mounts)
    if kind[1].startswith(_NETWORK) or kind == _mounted(top, mounts):
        under_tmp = any(real.is_relative_to(each) for each in _OWN)
        return not under_tmp or kind[1].startswith(_NETWORK) or real.is_relative_to(top)
    return any(real.is_relative_to(each) for each in _SYSTEM)


def _mounted(path: Path, mounts: str) -> tuple[str, str]:
    """The place of the mount that a path is on, and its kind."""
    best = ("/", "")
    for line in mounts.splitlines():
        words, _, rest = line.partition(" - ")
        fields = words.split()
        if len(fields) > 4 and rest:
            point = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), fields[4])
            if path.is_relative_to(point) and len(point) >= len(best[0]):
                best = (point, rest.split()[0])
    return best


def mountinfo() -> str:
    """What is mounted here; "" where the system does not say."""
    with contextlib.suppress(OSError):
        return Path("/proc/self/mountinfo").read_text(errors="replace")
    return ""


def unseen(paths: Sequence[str], home: str) -> List[str]:
    """Those of `paths` that the nodes probably do not see."""
    mounts = mountinfo()
    return [path for path in paths if not is_shared(path, home, mounts)]


def need_shared(path: str, home: str) -> None:
    """Raise UsageError for a folder that the nodes have to see, and probably do not."""
    if unseen([path], home):
        raise UsageError(
            f"the nodes probably do not see {path}",
            "only your home and network file systems count as shared; the run's files are there, "
            "and its agents on the nodes need them",
            "point SHANTY_HOME at a folder that all nodes see, as your home is",
        )
