"""Finds the cause of a rank's end in the last lines that it, or the launcher, wrote."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple

from shanty.runtime.diagnosis.signals import signal_name
from shanty.runtime.spec import Failure

_LONGEST = 300  # characters of a cause
_OVERWRITTEN = (
    "memory was overwritten earlier, by C code, or by MPI where a buffer is shorter than its "
    "message: compare counts and types of sends and receives; valgrind finds the place"
)
_ABORTED = "it called MPI_Abort"  # also where MPI itself did, after an error


class _Rule(NamedTuple):
    """A line that is a cause: `text` is made of its groups; `fix` may be ""."""

    pattern: str
    text: str = r"\g<0>"
    fix: str = ""


# The first rule that fits the last lines counts. Python's handler for crashes writes "Aborted",
# "Segmentation fault" and the like, which are the signal's own names.
_RULES = (
    # Within LightGBM's code no exception can be raised.
    _Rule(
        r"shanty\.lightgbm: (rank \d+ .*) This rank ends\.$",
        r"\1",
        "correct that error; a rank that catches it leaves the others without its part",
    ),
    _Rule(
        r"(?:free|malloc|realloc|calloc|mremap_chunk|munmap_chunk|malloc_consolidate)\(\): .*"
        r"|double free or corruption.*|corrupted (?:size|double-linked).*|malloc: .*"
        r"|\*\*\* Error in .*",
        fix=_OVERWRITTEN,
    ),
    _Rule(r"\*\*\* ((?:stack smashing|buffer overflow) detected) \*\*\*.*", r"\1", _OVERWRITTEN),
    _Rule(r"Fatal Python error: (?!Aborted|Segmentation|Bus error|Illegal|Floating|Killed).*"),
    _Rule(r"(Fatal error in \w+): (.*?)(?:, error stack:?)?$", r"\1: \2"),
    _Rule(
        r".*(The MPI_\w+\(\) function was called (?:before MPI_INIT|after MPI_FINALIZE) was invoked"
        r"|Attempting to use an MPI routine \(\w+\) before initializing or after finalizing MPICH)",
        r"\1",
        "call MPI between MPI_Init and MPI_Finalize: the import of mpi4py.MPI makes the first call "
        "and the end of Python the second, unless mpi4py.rc or the script changes that",
    ),
    _Rule(r".*\bAssertion [`'].*' failed.*|.*\bCheck failed: .*|.*: runtime error: .*"),
    _Rule(r".*(?:CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|CUDA error: out of memory).*"),
    _Rule(r"forrtl: .*|Fortran runtime error: .*|thread '.*' panicked at .*|panic: .*"),
    _Rule(r".*error while loading shared libraries: .*|.*: symbol lookup error: .*"),
    _Rule(r"(?:[\w.]*Error|[\w.]*Exception)(?:: .*)?$"),
    _Rule(r".*(?:[Tt]oo many open files|[Nn]o space left on device|Disk quota exceeded).*"),
    _Rule(r".*(?:Cannot allocate memory|[Oo]ut of memory|std::bad_alloc).*"),
    _Rule(r"fatal error: .*|.*: command not found$"),
    _Rule(r"^FATAL: +(.*)", r"\1"),  # Apptainer's
)
# What helps where a cause, also an exception, says this.
_FIXES = (
    (r"Too many open files", "close files that are no longer needed, or raise the limit: "
     "ulimit -n (on a host of ssh: /etc/security/limits.conf)"),
    (r"No space left on device|Disk quota exceeded", "free some space there, or write elsewhere"),
    (r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|CUDA error: out of memory",
     "use a smaller batch, or fewer ranks on a GPU"),
    (r"DataLoader worker .*killed by signal: Bus error",
     "make /dev/shm larger (in a container: --shm-size), or use fewer workers (num_workers)"),
    (r"DataLoader worker .*killed by signal: Killed",
     "the host may be out of memory: use fewer workers (num_workers), or smaller batches"),
    (r"\bMemoryError\b|Cannot allocate memory|std::bad_alloc|ArrayMemoryError",
     "use less memory a rank, fewer ranks a host, or a host with more memory; see also ulimit -v"),
    (r"Fatal Python error: (?!.*(?:init|Init))",
     "a C extension has broken the interpreter: PYTHONDEVMODE=1 finds more of it"),
    (r"MPI_ERR_TRUNCATE|[Mm]essage truncated",
     "make the receive buffer as large as the message; ranks may also be at different calls"),
    (r"MPI_ERR_RANK|[Ii]nvalid rank\b", "ranks count from 0 to the size of their communicator - 1: "
     "take the size from it, or start as many ranks as the script expects (-n)"),
    (r"MPI_ERR_COMM\b|[Ii]nvalid communicator|Null communicator", "the communicator was freed, or "
     "this rank is not in it (MPI_COMM_NULL): leave the call to the ranks that are"),
    (r"ValueError: expecting \d+ items, got \d+$", "pass one item for each rank of the "
     "communicator"),
    (r"MPI_ERR_WIN\b.*MPI_THREAD_MULTIPLE", "before the import of MPI: "
     "mpi4py.rc.thread_level = 'serialized'; or take another MPI with --mpi"),
    (r"support of the ompi-server", "start both programs by one run: shanty run -- mpirun "
     "-n 1 SERVER : -n 1 CLIENT; programs of two runs meet with MPICH and Intel MPI only"),
)  # fmt: skip
# Variables that Python names in other words.
_VARIABLES = (
    ("stdio encoding", "PYTHONIOENCODING"),
    ("filesystem encoding", "PYTHONHOME"),
    ("initialize tracemalloc", "PYTHONTRACEMALLOC"),
)
_BLOCK = re.compile(r"^-{40,}$")
_OF_EVERY_END = re.compile(
    r"MPI_ABORT was invoked|noticed that process|exited with non-zero|non-zero exit code"
    r"|process \w+ returned|exited on signal|NOTE: invoking MPI_ABORT|has exited due to"
)
# Open MPI's launcher ends all ranks when the process that has started one is ended.
_STARTER = re.compile(r"process rank (\d+) with PID (\d+) on node (\S+) exited on +signal (\d+)")
_AFTER_SIGNAL = {
    "SIGXFSZ": "write less, or raise the limit of a file's size: ulimit -f unlimited",
    "SIGXCPU": "raise the limit of CPU time: ulimit -t unlimited",
    "SIGALRM": "give it a handler (signal.signal), or cancel the timer: signal.alarm(0)",
    "SIGILL": "build it for this host's processor (without -march=native), or on this host",
    "SIGSYS": "allow that system call in the container's seccomp profile, or run outside of it",
}


def cause(lines: Sequence[str]) -> Tuple[str, str]:
    """Return the cause that the last lines of a rank name, and a fix; each may be ""."""
    thrown = _thrown(lines) or _of_open_mpi(lines)
    if thrown:
        return thrown, ""
    for rule in _RULES:
        for line in reversed(lines):
            found = re.search(rule.pattern, line.strip())
            if found and (found.start() == 0 or rule.text != r"\g<0>"):
                return found.expand(rule.text).strip()[:_LONGEST], rule.fix
    return "", ""


def _thrown(lines: Sequence[str]) -> str:
    """Return the C++ exception that nothing has caught."""
    for index, line in enumerate(lines):
        found = re.search(r"terminate called after throwing an instance of '(.*)'", line)
        if found:
            what = next((each for each in lines[index + 1 :] if "what():" in each), "")
            text = what.partition("what():")[2].strip()
            return f"{found[1]}: {text}"[:_LONGEST] if text else f"{found[1]} was thrown"
        if "terminate called" in line:
            return line.strip()[:_LONGEST]
    return ""


def _of_open_mpi(lines: Sequence[str]) -> str:
    """Return the call and the error with which Open MPI ends a rank."""
    call = error = ""
    for line in lines:
        found = re.search(r"\*\*\* An error occurred in (\w+)", line)
        call = found[1] if found else call
        found = re.search(r"\*\*\* (MPI_ERR_(?!ORS_)\w+: .*)", line)
        error = found[1].strip() if found else error
    return f"{call}: {error}" if call and error else ""


def _of_a_starter(failure: Failure, launcher: Sequence[str]) -> str:
    """Return why the launcher has ended a rank: what had started another one is gone."""
    found = _STARTER.search(" ".join(line.strip() for line in launcher))
    if found is None or failure.signal != "SIGTERM" or found[4] == "15":
        return ""
    return (
        f"the launcher ended all ranks, since the process that started rank {found[1]} (pid "
        f"{found[2]} on {found[3]}) was ended by {signal_name(int(found[4]))}"
    )


def launchers_help(lines: Sequence[str]) -> str:
    """Return the text between rules that a launcher shows for an error of MPI in a rank."""
    blocks: List[List[str]] = [[]]
    for line in lines:
        if _BLOCK.match(line.strip()):
            blocks.append([])
        else:
            blocks[-1].append(line.strip(" \0"))
    for block in blocks[1:]:
        text = " ".join(filter(None, block))
        if text and not _OF_EVERY_END.search(text):
            return text[:_LONGEST]
    return ""


def explained(
    failure: Failure,
    launcher: Sequence[str],
    asked: Mapping[str, str],
    there: Mapping[str, str],
    where: str,
) -> Failure:
    """Return the failure of a rank with the cause that its last lines name, and what to do.

    `launcher` are the launcher's last lines. `asked` are the variables of the job, and `there`
    those that its host had before, `where` says in words.
    """
    place = failure.why if failure.why.startswith("in ") else ""
    why, fix = failure.why, failure.fix
    if not why or place or why == _ABORTED:
        found, helps = cause(failure.lines)
        found = found or _of_open_mpi(launcher) or _of_a_starter(failure, launcher)
        if found:
            why = f"{found}, {place}" if place else found
        fix = fix or helps or _AFTER_SIGNAL.get(failure.signal or "", "")
    if "MPI_ERR" in why:
        text = launchers_help(launcher)
        why += f"; the launcher says: {text}" if text and text not in why else ""
    name = _variable(why, {**there, **asked})
    if name:
        origin = "for the run (-e, --env-file or shanty.toml)" if name in asked else where
        why += f"; {name}={asked.get(name) or there.get(name)} was set {origin}"
        fix = fix or f"unset {name}, or correct its value"
    fix = fix or next((text for pattern, text in _FIXES if re.search(pattern, why)), "")
    return replace(failure, why=why, fix=fix)


def _variable(why: str, environ: Mapping[str, str]) -> Optional[str]:
    """Return the variable of Python that keeps it from starting."""
    if "Fatal Python error" not in why:
        return None
    named = [name for name in environ if name.startswith("PYTHON") and name in why]
    named += [name for words, name in _VARIABLES if words in why and name in environ]
    return max(named, key=len) if named else None
