"""Decides what the words of a command mean: a script, a module, a program or a launcher's line."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shanty.client.context import note
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.mpi.processes import RANK
from shanty.runtime.mpi.processes import number as first_number
from shanty.runtime.rank.reports import FIFO
from shanty.runtime.spec import Command, JobSpec, Module, Program, Raw, Script
from shanty.runtime.suggestions import nearest

_TRACKER = "dmlc-submit"
_TRACKER_IN_TEXT = re.compile(r"(?<!\S)(?:python[\d.]*\s+)?[\w./~${}-]*/dmlc-submit(?=\s)")


def make_command(words: Sequence[str], workspace: Path, *, raw: bool) -> Command:
    """Decide what the words after the options mean; NotFoundError for a script that is missing."""
    from shanty.runtime.lines.command import is_python
    from shanty.runtime.resolve import LAUNCHERS

    words = _by_name(words)
    if not words or not words[0].strip():
        raise UsageError(
            "nothing to run", fix="give a script, -m MODULE, a program or an mpirun line"
        )
    first, rest = words[0], tuple(words[1:])
    if first == "-m":
        if not rest:
            raise UsageError("-m needs the name of a module")
        return _make_module(rest[0], rest[1:], workspace)
    exists = (workspace / first).exists()
    if not rest and not exists and any(space in first.strip() for space in " \t\n"):
        script, _, more = first.strip().partition(" ")
        if script.endswith(".py") and (workspace / script).is_file():
            raise UsageError(
                f"{first!r} is one word, and not the name of a script",
                "a script's arguments are words of their own",
                f"write it without quotes: shanty run {first.strip()}; in Python: "
                f'submit("{script}", args={more.split()!r})',
            )
        return shell_line(first)
    if raw or os.path.basename(first) in LAUNCHERS:
        return Raw(tuple(words))
    path = workspace / first
    if path.is_dir() and not (path / "__main__.py").is_file() and not _is_program(first):
        raise NotFoundError(
            f"{first!r} in {workspace} is a folder without __main__.py",
            "a program of that name was not found either",
            "give the script in it, or -m MODULE",
        )
    if first.endswith(".ipynb"):
        raise UsageError(
            f"{first!r} is a notebook, not a script",
            fix=f"make a script of it: jupyter nbconvert --to script {first}",
        )
    if first.endswith(".py") or (path / "__main__.py").is_file():
        return make_script(first, rest, workspace)
    if first.startswith("-") and not exists:
        raise UsageError(
            f"{first!r} is neither a script nor a program",
            "what is run comes after the options of shanty run",
            f"for Python: shanty run {shlex.join(['python', *words])}",
        )
    if is_python(first) and rest and rest[0].endswith(".py") and not Path(rest[0]).is_absolute():
        make_script(rest[0], rest[1:], workspace)  # raises where it is not there
    return Program(tuple(words))


def shell_line(text: str) -> Raw:
    """Return the command of a line for a shell."""
    return Raw((_TRACKER_IN_TEXT.sub(_TRACKER, text),), shell=True)


def _make_module(name: str, args: tuple[str, ...], workspace: Path) -> Module:
    if name.endswith(".py") and (workspace / name).is_file():
        raise UsageError(
            f"{name!r} is a script, not a module",
            fix=f"leave -m out, or write -m {name[:-3].replace(os.sep, '.')}",
        )
    return Module(name, args)


def make_script(path: str, args: Sequence[str], workspace: Path) -> Script:
    """Return the script; an error where it is not there, or cannot be read."""
    full = workspace / path
    if not full.exists():
        why, fix = _missing(path, full)
        raise NotFoundError(f"script {path!r} not found in {workspace}", why, fix)
    if not os.access(full, os.R_OK):
        raise UsageError(f"{path!r} cannot be read", "Permission denied", f"see: ls -l {full}")
    return Script(f"./{path}" if path.startswith("-") else path, tuple(args))


def _missing(path: str, full: Path) -> tuple[str, str]:
    """Return why a script may not be there, and what to do."""
    if full.is_symlink():
        return f"it is a link to {full.readlink()}, which does not exist", ""
    if "://" in path:
        return "what is run has to be a file", f"fetch it first: curl -LO {path}"
    if path.startswith(("~", "$")):
        return "quotes keep the shell from reading it", "write it without quotes"
    return "", _nearest(full) or "check the name, or give the folder with --workdir"


def _nearest(path: Path) -> str:
    """Return a question for the script with the nearest name in that folder; "" for none."""
    names = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
    return nearest(path.name, names)


def refuse_in_ranks(environ: Mapping[str, str]) -> None:
    """Raise UsageError in a rank of several: each of them would start a run."""
    size = environ.get("WORLD_SIZE", "1")
    if FIFO in environ and size != "1" and first_number(environ, RANK) is not None:
        raise UsageError(
            "this is a rank of a run, and shanty run starts ranks itself",
            f"it would be started as often as the run has ranks: {size} times",
            "give the script to the run as its line: shanty run --raw bash x.sh",
        )


def bring_script(job: JobSpec) -> JobSpec:
    """Return the job with the script's folder as its workspace, if that is outside of it.

    What is sent to hosts is the workspace.
    """
    if not (job.on or job.hostfile or job.image) or not isinstance(job.command, Script):
        return job
    path = Path(os.path.normpath(Path(job.workdir, job.command.path)))
    if path.is_relative_to(job.workdir):
        return job
    folder = path.parent
    if Path("~").expanduser().is_relative_to(folder) or folder in (Path("/tmp"), Path("/var/tmp")):
        raise UsageError(
            f"{path} is not in {job.workdir}, and its own folder cannot be sent to the hosts",
            f"all that is in {folder} would go with it",
            "put it into a folder of its own, or name the one to send with --workdir",
        )
    done = "sent to the hosts" if job.on or job.hostfile else "what the container has"
    note(f"{path} is not in {job.workdir}: its own folder is {done}, and it runs there")
    return replace(job, workdir=str(path.parent), command=Script(path.name, job.command.args))


_OURS = ("-n", "-np", "--ranks", "--on", "--ppn", "--mpi", "--hostfile", "--oversubscribe")


def note_late_options(job: JobSpec) -> None:
    """Note that an option of shanty's after the script went to the script, unless it knows it."""
    if not isinstance(job.command, Script) or not job.command.args:
        return
    late = next((word for word in job.command.args if word.partition("=")[0] in _OURS), None)
    if late is None:
        return
    name = late.partition("=")[0]
    try:
        text = Path(job.workdir, job.command.path).read_text(errors="replace")
    except OSError:  # a folder
        return
    if f'"{name}"' not in text and f"'{name}'" not in text:
        note(
            f"{name} after {job.command.path} is an option of the script; "
            f"for shanty, write it before: shanty run {name} … {job.command.path}"
        )


def _is_program(name: str) -> bool:
    """Return true for the name of a program, also of a program that shanty stands in for."""
    from shanty.runtime.lines.command import stand_in

    return shutil.which(name) is not None or stand_in([name], "") != [name]


def _by_name(words: Sequence[str]) -> Sequence[str]:
    """Replace the path of dmlc-submit, or `python PATH`, at the start of a line by its name.

    The program need not be there: in a run the shim of that name does its work.
    """
    from shanty.runtime.lines.command import is_python

    at = 1 if len(words) > 1 and is_python(words[0]) else 0
    if words and os.path.basename(words[at]) == _TRACKER:
        return [_TRACKER, *words[at + 1 :]]
    return words
