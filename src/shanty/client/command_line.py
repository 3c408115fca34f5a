"""Writes a job as the words of `shanty run` that would make it again."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from shanty.client.options import OPTIONS, find
from shanty.runtime.spec import JobSpec, Raw

_NOT_WRITTEN = ("env_file", "debug_rank")  # its variables are in `env`; a terminal is gone
# The shortest flag of each option of a run.
FLAGS = {
    name: min(option.flags.split(), key=len)
    for name, option in OPTIONS.items()
    if name not in _NOT_WRITTEN
}
_FIRST = ("workdir", "source", "ranks")  # what one wants to see at the beginning of a line
_SECRET = re.compile(
    r"pass(word|wd|phrase)?($|_)|_pwd($|_)|secret|token(?!iz)|credential|cookie|dsn$"
    r"|(api|access|private|^|_)_?key$|(^|_)auth($|_)",
    re.IGNORECASE,
)
_DEBUGGER = "SHANTY_DEBUG_TTY"  # the terminal of a rank that is debugged: it is gone


def looks_secret(name: str) -> bool:
    """Return true where the variable of that name probably holds what others are not to see."""
    return bool(_SECRET.search(name))


def line(job: JobSpec) -> str:
    """Return the line for a shell; of variables that look secret only the names are in it.

    `-e NAME` takes the value from the environment of the person who types it.
    """
    text = shlex.join(["shanty", "run", *option_words(job, shown=True), *command_words(job)])
    for flag, content in contents(job).items():
        quoted = shlex.quote(content)
        text = text.replace(f"{flag} {quoted}", f"{flag} <(echo {quoted})")
    return text


def contents(job: JobSpec) -> dict[str, str]:
    """Return the options that take a file, by their flags, and what the job has of each."""
    found = {name: find(name) for name in job.options}
    return {
        option.flag: str(job.options[name])
        for name, option in found.items()
        if option is not None and option.is_file
    }


def option_words(job: JobSpec, *, shown: bool, without: Collection[str] = ()) -> list[str]:
    """Return the options of `shanty run`, but for those of the fields `without`; see `words_of`."""
    given = {**dict.fromkeys(_FIRST), **job.given(), "workdir": _folder(job)}
    kept = {name: value for name, value in given.items() if name not in without}
    return words_of(kept, shown=shown)


def words_of(values: Mapping[str, Any], *, shown: bool) -> list[str]:
    """Return options of `shanty run` with their values; None and False stand for nothing.

    With `shown`, variables that look secret come without their values, as from the environment.
    Where an option takes a file, its content stands there.
    """
    words: list[str] = []
    for name, value in values.items():
        if name not in _NOT_WRITTEN and value is not None and value is not False:
            flag = _flag(name)
            for text in _texts(name, value, shown=shown):
                words += [flag, text] if text is not None else [flag]
    return words


def _flag(name: str) -> str:
    """Return the shortest flag of an option; a guess where its target is not installed here."""
    option = None if name in FLAGS else find(name)
    return option.flag if option else FLAGS.get(name, f"--{name.replace('_', '-')}")


def _texts(name: str, value: Any, *, shown: bool) -> Iterator[str | None]:
    """Yield what stands after the option, once for each time that it is given."""
    if value is True:
        yield None
    elif name == "mounts":
        for source, target, mode in value:
            yield f"{source}:{target}" + (":ro" if mode == "ro" else "")
    elif name == "machines":
        yield ",".join(f"{kind}:{count}" for kind, count in value)
    elif name in ("log_to", "warm"):
        yield ",".join(value)
    elif isinstance(value, Mapping):
        for key, text in value.items():
            if key != _DEBUGGER:
                yield key if shown and looks_secret(key) else f"{key}={text}"
    elif isinstance(value, (tuple, list)):
        yield from map(str, value)
    elif name == "stall_after" and not value:
        yield "off"
    elif isinstance(value, float):
        yield f"{value:.6f}".rstrip("0").rstrip(".")
    else:
        yield str(value)


def _folder(job: JobSpec) -> str | None:
    if job.source is None:
        return job.workdir
    # What was fetched lies in a folder of the cache; of it, the part that was asked for is said.
    parts = Path(job.workdir).parts
    if "sources" not in parts:
        return None
    base = Path(*parts[: parts.index("sources") + 2])
    try:
        entries = list(base.iterdir())
    except OSError:
        entries = []
    if len(entries) == 1 and entries[0].is_dir() and not base.name.startswith("git-"):
        base = entries[0]
    below = os.path.relpath(job.workdir, base)
    return None if below == "." or below.startswith("..") else below


def command_words(job: JobSpec) -> list[str]:
    """Return what comes after the options: the command, and what says how it is read."""
    from shanty.runtime.lines.command import launcher_of
    from shanty.runtime.resolve import LAUNCHERS

    words = list(job.words())
    if isinstance(job.command, Raw):
        known = os.path.basename(words[0]) in LAUNCHERS and launcher_of(words) is None
        return ["--", *words] if job.command.shell or known else ["--raw", "--", *words]
    return words if words[0] == "-m" else ["--", *words] if words[0].startswith("-") else words


def one_line(job: JobSpec) -> str:
    """Write the command of a job as one would type it."""
    if isinstance(job.command, Raw) and job.command.shell:
        return job.command.argv[0]
    return shlex.join(job.words())


def split(text: str) -> list[str]:
    """Return the words of a command as a person has written it; one word where a shell is needed.

    Then `shanty run` has `sh -c` run it once, and the ranks are what it starts by mpirun.
    ValueError where a quote is not closed.
    """
    words = shlex.split(text, comments=False)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    lexer.commenters = ""
    signs = any(set(token) <= set("();<>|&") for token in lexer if token)
    quoted = re.sub(r"'[^']*'", "", text)
    if signs or "`" in quoted or "$(" in quoted or "\n" in text.strip():
        return [text.strip()]
    return words
