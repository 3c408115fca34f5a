"""Reads a launcher's command line, in whichever dialect it was written.

The line comes without the launcher's own name, as `sys.argv[1:]`.
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Sequence, Set, Tuple

from shanty.runtime.errors import TranslationError
from shanty.runtime.mpi.options import OPTIONS
from shanty.runtime.suggestions import nearest

_SETTING = re.compile(r"^[^=]+=")
_STDIN_OF_INTEL = re.compile(r"^(all|none|\d[\d,-]*)$")
_ASKS = "@ask "
_FROM_A_FILE = ("configfile", "app")


class Given(NamedTuple):
    """An option as the user gave it: its usual name, how it was written, and its values."""

    name: str
    spelled: str
    values: Tuple[str, ...]

    @property
    def value(self) -> str:
        """Its only value, "" where it has none."""
        return self.values[0] if self.values else ""

    @property
    def said(self) -> str:
        """The user's own words."""
        return " ".join((self.spelled, *self.values))

    @property
    def number(self) -> int:
        """The positive number that it has; TranslationError for another value."""
        if re.match(r"^[0-9]{1,9}$", self.value) and int(self.value) > 0:
            return int(self.value)
        raise TranslationError(
            f"{self.said} is not valid",
            why="the value has to be a number above zero",
            fix=f"write a number after {self.spelled}",
        )


class Context(NamedTuple):
    """One program of a line, with the options before it; a ":" ends it."""

    options: Tuple[Given, ...]
    program: Tuple[str, ...]


class CommandLine(NamedTuple):
    """A whole line; `asks` is an option that only asks for information, or ""."""

    contexts: Tuple[Context, ...]
    asks: str = ""


def parse(argv: Sequence[str]) -> CommandLine:
    """Returns the options and programs of a launcher's line without the launcher's own name.

    Raises TranslationError for an option that no launcher has, one without its value, and a
    line without a program.
    """
    contexts = []
    parts: List[List[str]] = [[]]
    for word in argv:
        if word == ":":
            parts.append([])
        else:
            parts[-1].append(word)
    for words in parts:
        options, program = _options(words)
        asks = next((each.name for each in options if _rule(each).startswith(_ASKS)), "")
        if asks:
            return CommandLine((), asks)
        # Those that name a file are refused later, with a better reason.
        if not program and not any(option.name in _FROM_A_FILE for option in options):
            raise TranslationError(
                "the launcher's line has no program",
                why="nothing is left after its options: " + " ".join(words) if words else "",
                fix="write the program and its arguments after the options",
            )
        if program and (program[0].startswith("-") or not program[0]):
            raise TranslationError(f"{program[0]!r} cannot be the name of a program")
        contexts.append(Context(tuple(options), tuple(program)))
    return CommandLine(tuple(contexts))


def exported(argv: Sequence[str]) -> Set[str]:
    """Returns the variables that a line hands on by name, as `-x NAME`; some end in "*".

    Empty for a line that cannot be read: it is refused where it is translated.
    """
    try:
        options = [one for context in parse(argv).contexts for one in context.options]
    except TranslationError:
        return set()
    lists = [one.value.split(",") for one in options if one.name in ("envlist", "genvlist")]
    names = {one.value for one in options if one.name == "x" and "=" not in one.value}
    return names.union(*lists)


def _rule(option: Given) -> str:
    return next(iter(OPTIONS[option.name].rules.values()))


def _options(words: List[str]) -> Tuple[List[Given], List[str]]:
    """Returns the options of a program, up to a request for information, and the program."""
    options: List[Given] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            at += 1
            break
        option, at = _option(words[at], words, at + 1)
        options.append(option)
        if _rule(option).startswith(_ASKS):
            break
    return options, words[at:]


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
        raise TranslationError(
            f"{spelled} is not an option that shanty can translate",
            why="Open MPI 4 and 5, MPICH and Intel MPI do not have it, or do not document it",
            fix=nearest(name, (each for each in OPTIONS if len(each) > 1))
            or "leave it out, or call the launcher by its absolute path, which is not translated",
        )
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
