"""Runs Slurm's own programs, each with a bound, in their plain form of output."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from shanty.runtime.errors import PrepareError
from shanty.runtime.programs import run
from shanty.runtime.slurm import parse

PATIENCE = 20.0  # seconds for slurmctld to answer; the tools themselves give up after about 10
_LOGIN = 10.0  # seconds for a login shell
_SH = "/bin/sh"
# What users set for their own eyes, and what would change the form of an answer.
_FORMATS = (
    "SQUEUE_", "SINFO_", "SACCT_FORMAT", "SLURM_TIME_FORMAT", "SCONTROL_", "SLURM_BITSTR_LEN",
    "SLURM_JSON",
)  # fmt: skip


class Answer(NamedTuple):
    """The end of a program; `code` None: it did not end in time."""

    code: Optional[int]
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """What it complained of, in one line, without its own name in front."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        parts = []
        for line in lines:
            for name in ("sbatch", "squeue", "sinfo", "scontrol", "srun", "salloc", "scancel"):
                line = line[len(name) + 2 :] if line.startswith(f"{name}: ") else line
            parts.append(line[len("error: ") :] if line.startswith("error: ") else line)
        return "; ".join(dict.fromkeys(parts))

    @property
    def unheard(self) -> bool:
        """True where slurmctld could not be asked, so that nothing is known."""
        return self.code is None or any(
            words in self.err
            for words in (
                "Unable to contact slurm controller", "Connection refused", "Socket timed out",
                "Transport endpoint", "Zero Bytes were transmitted", "Connection timed out",
                "slurm_persist_conn_open", "backup controller", "authentication",
            )
        )  # fmt: skip


def environment(environ: Mapping[str, str]) -> Dict[str, str]:
    """The environment in which the tools answer in the form that is parsed here."""
    kept = {k: v for k, v in environ.items() if not k.startswith(_FORMATS)}
    return {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def are_here(environ: Mapping[str, str] = os.environ) -> bool:
    """True where Slurm's tools are."""
    return shutil.which("sbatch", path=environ.get("PATH", os.defpath)) is not None


def find() -> None:
    """Look for Slurm's tools as a login shell would: a command by ssh may not have them on PATH."""
    if are_here():
        return
    for shell in dict.fromkeys([os.environ.get("SHELL") or _SH, _SH]):  # csh takes no -lc
        _take_from(shell)
        if are_here():
            return


def _take_from(shell: str) -> None:
    """Take the folder of the tools, and SLURM_CONF, from a login shell, where it knows them."""
    text = 'command -v sbatch && echo "SLURM_CONF=$SLURM_CONF"'
    done = run([shell, "-lc", text], _LOGIN)
    for line in done.stdout.splitlines() if done is not None else ():
        name, equals, value = line.partition("=")
        if equals and name == "SLURM_CONF" and value:
            os.environ.setdefault(name, value)
        elif os.path.basename(line) == "sbatch" and os.path.isabs(line):
            path = os.environ.get("PATH", os.defpath)
            os.environ["PATH"] = os.pathsep.join([path, os.path.dirname(line)])


def need(environ: Mapping[str, str] = os.environ) -> None:
    """Raise PrepareError where Slurm's tools are not."""
    if not are_here(environ):
        raise PrepareError(
            f"Slurm not found on {os.uname().nodename}: sbatch is not on PATH",
            "--on slurm submits the job on this machine",
            "run it on a login node, or name one: --on slurm:USER@LOGIN",
        )


def ask(
    words: Sequence[str],
    patience: float = PATIENCE,
    environ: Mapping[str, str] = os.environ,
    text: str = "",
) -> Answer:
    """Run one of the tools to its end; after `patience` seconds it is killed."""
    try:
        process = subprocess.Popen(
            list(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", env=environment(environ), start_new_session=True, cwd="/",
        )  # fmt: skip
    except OSError as error:
        return Answer(127, "", f"{words[0]}: {error.strerror}")
    with process:
        try:
            out, err = process.communicate(text, timeout=patience)
        except BaseException as error:  # Ctrl-C too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return Answer(None, "", f"{words[0]} did not answer within {patience:g} s")
    return Answer(process.returncode, out, err)


def told(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> str:
    """What a tool writes; PrepareError where it fails."""
    answer = ask(words, environ=environ)
    if answer.code != 0:
        raise PrepareError(
            f"Slurm does not answer: {words[0]} failed",
            answer.complaint or f"it ended with {answer.code}",
            "see whether `sinfo` works here",
        )
    return answer.out


def version(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """The version of Slurm here; (0, 0) if it is not known."""
    with contextlib.suppress(ValueError):
        return parse.version(ask(["srun", "--version"], environ=environ).out)
    return (0, 0)


def partitions(environ: Mapping[str, str] = os.environ) -> List[Dict[str, str]]:
    """The partitions, as `scontrol` shows them."""
    return parse.records(told(["scontrol", "-o", "show", "partition"], environ))


def nodes(environ: Mapping[str, str] = os.environ) -> List[parse.NodeFacts]:
    """The nodes, once for each of their partitions."""
    words = ["sinfo", "-a", "-N", "-h", "-o", parse.NODE_FORMAT]
    return parse.nodes(told(words, environ))


def job(number: str, environ: Mapping[str, str] = os.environ) -> Dict[str, str]:
    """What `scontrol` says of a job; empty where it has forgotten it or cannot be asked."""
    answer = ask(["scontrol", "-o", "show", "job", number], environ=environ)
    found = parse.records(answer.out) if answer.code == 0 else []
    return found[0] if found else {}


def node_records(names: str, environ: Mapping[str, str] = os.environ) -> List[Dict[str, str]]:
    """What `scontrol` says of nodes, by a list of them."""
    answer = ask(["scontrol", "-o", "show", "node", names], environ=environ)
    return parse.records(answer.out) if answer.code == 0 else []


def settings(environ: Mapping[str, str] = os.environ) -> Dict[str, str]:
    """Slurm's configuration; empty where it cannot be had."""
    return parse.settings(ask(["scontrol", "show", "config"], environ=environ).out)
