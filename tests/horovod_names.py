"""Horovod's public names, as files of facts have them, and pages that show them beside ours.

A file of facts has tables of names, with their arguments in Horovod. Two tables are of ours:
`absent` has sections, or names of them, that are not here, `differs` names that are here and not
quite the same, each with the reason.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

from shanty.collectives.process_sets import global_process_set

_STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


@dataclass(frozen=True)
class Name:
    """One public name: where it stands, and its arguments in Horovod; "" for no function."""

    section: str
    path: str
    theirs: str

    @property
    def key(self) -> str:
        return f"{self.section}.{self.path}"


@dataclass(frozen=True)
class Section:
    """A table of a page. ours: the module that has its names, as people write it."""

    key: str
    title: str
    ours: str


@dataclass(frozen=True)
class Facts:
    """What one file says. absent and differs: reasons, by the keys of names or of sections."""

    names: Sequence[Name]
    absent: Mapping[str, str] = field(default_factory=dict)
    differs: Mapping[str, str] = field(default_factory=dict)

    def of(self, section: str) -> list[Name]:
        return [each for each in self.names if each.section == section]

    def is_absent(self, name: Name) -> bool:
        return name.section in self.absent or name.key in self.absent


def read(path: Path) -> Facts:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    absent, differs = tables.pop("absent", {}), tables.pop("differs", {})
    return Facts(list(_names(tables)), absent, differs)


def _names(tables: Mapping[str, Any], section: str = "") -> Iterator[Name]:
    for key, value in tables.items():
        if isinstance(value, str):
            yield Name(section, key, value)
        else:
            yield from _names(value, f"{section}.{key}".lstrip("."))


@dataclass(frozen=True)
class Found:
    """What we have under a name: its arguments, and what it says of itself first."""

    arguments: str
    sentence: str


def arguments(thing: Any, theirs: str) -> str:
    """The arguments of a function, method or class, without types, as Horovod's are noted."""
    if not theirs or not callable(thing):
        return ""
    shown = []
    for each in inspect.signature(thing).parameters.values():
        if each.name == "self":
            continue
        word = _STARS.get(each.kind, "") + each.name
        default = each.default
        shown.append(word if default is inspect.Parameter.empty else f"{word}={_spelt(default)}")
    return f"({', '.join(shown)})"


def _spelt(default: Any) -> str:
    if default is global_process_set:
        return "global_process_set"
    if isinstance(default, IntEnum):
        return default.name.title()
    if isinstance(default, Enum):
        return f"{type(default).__name__}.{default.name}"
    if inspect.isclass(default) and default.__name__ == "NoneCompressor":
        return "Compression.none"
    return repr(default)


def sentence(thing: Any) -> str:
    """What it says of itself first."""
    said = (
        inspect.isroutine(thing)
        or inspect.isclass(thing)
        or inspect.ismodule(thing)
        or isinstance(thing, property)
    )
    text = inspect.getdoc(thing) if said else ""
    paragraph = " ".join((text or "").partition("\n\n")[0].split())
    return paragraph.replace("|", "\\|")


def look(thing: Any, name: Name) -> Found:
    return Found(arguments(thing, name.theirs), sentence(thing))


def page(
    head: str, sections: Sequence[Section], facts: Facts, found: Mapping[str, Found | None]
) -> str:
    """The text of a page. found: by the keys of names."""
    parts = [head]
    for section in sections:
        parts.append(f"## {section.title}\n\n")
        if section.key in facts.absent:
            parts.append(f"Not here. {facts.absent[section.key]}\n\n")
        parts.append(f"| Horovod 0.28.1 | {section.ours} | |\n|---|---|---|\n")
        for name in facts.of(section.key):
            parts.append(f"| `{name.path}{name.theirs}` | {_beside(name, facts, found)} |\n")
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def _beside(name: Name, facts: Facts, found: Mapping[str, Found | None]) -> str:
    ours = found.get(name.key)
    if facts.is_absent(name) or ours is None:
        return f"not | {facts.absent.get(name.key, '')}"
    beside = "the same" if ours.arguments == name.theirs else f"`{name.path}{ours.arguments}`"
    note = facts.differs.get(name.key, "")
    return f"{beside} | {' '.join(filter(None, (ours.sentence, note)))}"


def mistakes(facts: Facts, found: Mapping[str, Found | None]) -> list[str]:
    """What the facts do not say, or say though it is not so."""
    wrong = []
    for name in facts.names:
        ours = found.get(name.key)
        if facts.is_absent(name):
            if ours is not None:
                wrong.append(f"{name.key} is here")
            continue
        if ours is None:
            wrong.append(f"{name.key} is not here")
        elif ours.arguments != name.theirs and name.key not in facts.differs:
            wrong.append(f"{name.key}{ours.arguments} has not Horovod's arguments {name.theirs}")
        elif name.theirs and not ours.sentence and name.key not in facts.differs:
            wrong.append(f"{name.key} does not say what it is")
    known = {name.key for name in facts.names} | {name.section for name in facts.names}
    wrong += [f"{key} is no name" for key in (*facts.absent, *facts.differs) if key not in known]
    return wrong
