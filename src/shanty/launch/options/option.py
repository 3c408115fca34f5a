"""What one option of a run is, and how its values are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from shanty.runtime.errors import UsageError

KINDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "a table",
}
_TIME = (int, float, str)
_NUMBER = r"\d{1,18}(?:\.\d+)?"  # more digits are not a number that anybody needs


class Option(NamedTuple):
    """Declares one option of a run.

    `field` is the field of JobSpec, or the name in its `options`. shanty.toml takes a value of one
    of the types `toml` under its `key`; with none it does not take the option. `read` makes the
    field's value of what was written, of where that was (for errors) and of the folder of relative
    paths there. A number is at least `least`. An empty text that was typed stands for nothing if
    `may_be_empty`. An option that `is_file` takes a file, whose content goes into the job.

    `old` are its flags from before, which still work.

    The command line needs the rest: `flags` and `help`; the `kind` of a value that is typed, where
    `bool` is a flag without a value; its `metavar` in the help; whether the option is `repeatable`;
    and what a shell offers: the words `choices`, or what `completes` names in
    `terminal.completion`. Without a value it stands for `bare`, if that is not empty.
    """

    field: str
    flags: str
    help: str
    toml: tuple[type, ...] = ()
    read: Callable[[Any, str, Path], Any] | None = None
    least: int | None = None
    may_be_empty: bool = False
    is_file: bool = False
    kind: type = str
    metavar: str = ""
    repeatable: bool = False
    choices: tuple[str, ...] = ()
    completes: str = ""
    bare: str = ""
    old: str = ""

    @property
    def flag(self) -> str:
        """The flag that messages name."""
        return self.flags.split()[-1]

    @property
    def key(self) -> str:
        """Its key in shanty.toml: its first long flag."""
        long = next(flag for flag in self.flags.split() if flag.startswith("--"))
        return long[2:].replace("-", "_")


def seconds(text: str) -> float:
    """Read a time: 90, 90s, 15m, 2h, 1h30m, 1:30:00."""
    clock = re.fullmatch(r"(?:(\d{1,9}):)?(\d{1,9}):(\d{2})", text)
    if clock:
        hours, minutes, rest = (int(part or 0) for part in clock.groups())
        return hours * 3600.0 + minutes * 60 + rest
    units = re.fullmatch(
        "".join(rf"(?:({_NUMBER}){unit})?" for unit in ("d", "h", "m", "s?")), text.strip()
    )
    if not text.strip() or not units:
        raise UsageError(f"invalid time {text!r}", fix="write 90, 90s, 15m, 2h, 1h30m or 1:30:00")
    parts = [float(part or 0) for part in units.groups()]
    return parts[0] * 86400 + parts[1] * 3600 + parts[2] * 60 + parts[3]


def size(text: str) -> int:
    """Read a number of bytes: 500000000, 800M, 4G, 4GiB, 1.5T; all are powers of 1024."""
    found = re.fullmatch(rf"({_NUMBER})\s*([KMGTP]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise UsageError(f"invalid size {text!r}", fix="write 800M, 4G or 1.5T")
    return int(float(found[1]) * 1024 ** " KMGTP".index(found[2].upper() or " "))


def word(text: str, where: str, words: Collection[str]) -> str:
    """Read one of some words."""
    if text not in words:
        *most, last = words
        known = f"{', '.join(most)} or {last}" if most else last
        raise UsageError(f"{where} takes {known}, not {text!r}")
    return text


# ------------------------------------------------------------------------- the usual kinds


def number(field: str, flags: str, help: str, least: int | None = 1, toml: Any = ()) -> Option:
    """Declare a number."""
    return Option(field, flags, help, toml, least=least, kind=int, metavar="N")


def time(field: str, flags: str, help: str) -> Option:
    """Declare a time, which a job has in seconds."""

    def read(value: Any, _where: str, _folder: Path) -> float:
        return seconds(str(value))

    return Option(field, flags, help, _TIME, read, may_be_empty=True, metavar="TIME")


def text(field: str, flags: str, help: str, metavar: str) -> Option:
    """Declare a text."""
    return Option(field, flags, help, (str,), may_be_empty=True, metavar=metavar)


def texts(field: str, flags: str, help: str, metavar: str) -> Option:
    """Declare texts: each use of the option adds one."""

    def read(given: Any, _where: str, _folder: Path) -> tuple[str, ...]:
        return tuple(given)

    help = f"{help[:-1]} (repeatable)."
    return Option(field, flags, help, (list,), read, metavar=metavar, repeatable=True)


def switch(field: str, flags: str, help: str) -> Option:
    """Declare an option without a value."""
    return Option(field, flags, help, (bool,), kind=bool)


def choice(field: str, flags: str, help: str, metavar: str, words: tuple[str, ...]) -> Option:
    """Declare one of some words."""

    def read(value: Any, where: str, _folder: Path) -> str:
        return word(value, where, words)

    return Option(field, flags, help, (str,), read, metavar=metavar, choices=words)
