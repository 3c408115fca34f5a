"""Reads a launcher's command line, in whichever dialect it was written.

The line comes without the launcher's own name, as `sys.argv[1:]`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, NoReturn, Optional, Sequence, Tuple

from shanty.runtime.errors import TranslationError
from shanty.runtime.mpi.options import OPTIONS

_SETTING = re.compile(r"^[^=]+=")
_STDIN_OF_INTEL = re.compile(r"^(all|none|\d[\d,-]*)$")
_ASKS = "@ask "
_FROM_A_FILE = ("configfile", "app")


@dataclass(frozen=True)
class Given:
    """An option as the user gave it: its usual name, how it was written, and its values."""

    name: str
    spelled: str
    values: Tuple[str, ...]

    @property
    def value(self) -> str:
        """Its only value, "" where it has none."""
        return self.values[0] if self.values else ""


@dataclass(frozen=True)
class Context:
    """One program of a line, with the options before it; a ":" ends it."""

    options: Tuple[Given, ...]
    program: Tuple[str, ...]


@dataclass(frozen=True)
class CommandLine:
    """A whole line; `asks` is an option that only asks for information, or ""."""

    contexts: Tuple[Context, ...]
    asks: str = ""


def parse(argv: Sequence[str]) -> CommandLine:
    """Returns the options and programs of a launcher's line without the launcher's own name.

    Raises TranslationError for an option that no launcher has, one without its value, and a
    line without a program.
    """
    contexts = []
    for words in _between_colons(argv):
        context, asks = _context(words)
        if asks:
            return CommandLine((), asks)
        contexts.append(context)
    return CommandLine(tuple(contexts))


def ranks_of(argv: Sequence[str]) -> Optional[int]:
    """Returns how many ranks a line asks for, None when it leaves that to the launcher.

    Raises TranslationError where `parse` does.
    """
    total = 0
    for context in parse(argv).contexts:
        counts = [count_in(option) for option in context.options if option.name == "n"]
        if not counts:
            return None
        total += counts[-1]
    return total or None


def count_in(option: Given) -> int:
    """Returns the positive number that an option has; TranslationError when it is none."""
    if re.match(r"^[0-9]{1,9}$", option.value) and int(option.value) > 0:
        return int(option.value)
    raise TranslationError(
        f"{said(option)} makes no sense",
        why="the value has to be a number above zero",
        fix=f"write a number after {option.spelled}",
    )


def said(option: Given) -> str:
    """Quotes an option as the user wrote it, with its values."""
    return " ".join((option.spelled, *option.values))


def _between_colons(argv: Sequence[str]) -> List[List[str]]:
    parts: List[List[str]] = [[]]
    for word in argv:
        if word == ":":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _context(words: List[str]) -> Tuple[Context, str]:
    options: List[Given] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        at += 1
        if word == "--":
            break
        option, at = _option(word, words, at)
        rule = next(iter(OPTIONS[option.name].rules.values()))
        if rule.startswith(_ASKS):
            return Context((), ()), option.name
        options.append(option)
    program = tuple(words[at:])
    if not program and any(option.name in _FROM_A_FILE for option in options):
        return Context(tuple(options), ()), ""  # refused later, with a better reason
    if not program:
        raise TranslationError(
            "the launcher's line has no program",
            why="nothing is left after its options: " + " ".join(words) if words else "",
            fix="write the program and its arguments after the options",
        )
    if program[0].startswith("-") or not program[0]:
        raise TranslationError(f"{program[0]!r} cannot be the name of a program")
    return Context(tuple(options), program), ""


def _option(word: str, words: List[str], at: int) -> Tuple[Given, int]:
    """Returns the option that `word` is, and where the words after its values begin."""
    name = word[2:] if word.startswith("--") else word[1:]
    values: List[str] = []
    if name not in OPTIONS and "=" in name:
        name, value = name.split("=", 1)
        values.append(value)
    known = OPTIONS.get(name)
    spelled = word.split("=", 1)[0] if values else word
    if known is None:
        _unknown(spelled)
    wanted = known.values
    if known.name in ("env", "genv"):
        first = values + words[at : at + 1]
        wanted = 1 if first and _SETTING.match(first[0]) else 2
    elif known.name == "s" and not (at < len(words) and _STDIN_OF_INTEL.match(words[at])):
        wanted = 0  # Open MPI's -s copies the program, Intel's names the ranks that get stdin
    elif known.name == "hostfile" and not values and (at >= len(words) or words[at][:1] == "-"):
        wanted = 0  # it was written as `--hostfile $HOSTFILE`, and that is empty
    if len(values) > wanted:
        raise TranslationError(f"{spelled} takes no value, but was given {values[0]!r}")
    missing = wanted - len(values)
    values += words[at : at + missing]
    if len(values) < wanted:
        number = "a value" if wanted == 1 else f"{wanted} values"
        raise TranslationError(f"{spelled} needs {number} after it")
    return Given(known.name, spelled, tuple(values)), at + missing


def _unknown(spelled: str) -> NoReturn:
    raise TranslationError(
        f"{spelled} is no option that shanty can translate",
        why="it is none of Open MPI 4 or 5, MPICH and Intel MPI, or one without documentation",
        fix="leave it out, or call the launcher by its absolute path, which is not translated",
    )
