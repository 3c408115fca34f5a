"""Horovod's public names beside ours, and the page of documentation that shows them.

`python tests/horovod_api.py` writes the page anew.
"""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shanty.torch as hvd
from shanty.torch.hvd.optimizer import AdasumReducing, Reducing

FACTS = Path(__file__).with_suffix(".toml")
PAGE = Path(__file__).parents[1] / "docs" / "horovod-api.md"

TITLES = {
    "start": "Beginning and end",
    "questions": "Questions about the world",
    "operations": "Operations",
    "reductions": "Reductions",
    "compression": "Compression",
    "process_sets": "Process sets",
    "functions": "Models, optimizers, objects",
    "training": "Training",
    "optimizer": "What `DistributedOptimizer` returns has also",
    "elastic": "Restarting from the last commit",
}
_HEAD = """# Horovod's API, name by name

Every public name of `horovod.torch` 0.28.1 and what stands for it in `shanty.torch`. A test writes
this page, and fails where a name is missing or takes other arguments: `tests/horovod_api.py`.

"""
_NAMED = {
    id(hvd.Compression.none): "Compression.none",
    id(hvd.global_process_set): "global_process_set",
}


@dataclass(frozen=True)
class Name:
    """One public name: where it stands, and its arguments in Horovod; "" for no function."""

    section: str
    path: str
    theirs: str

    def ours(self) -> list[Any]:
        """What we have under the name; the optimizer's are there in both of its forms."""
        if self.section == "optimizer":
            return [getattr(each, self.path) for each in (Reducing, AdasumReducing)]
        thing: Any = hvd
        for part in self.path.split("."):
            thing = getattr(thing, part)
        return [thing]

    @property
    def is_method(self) -> bool:
        return self.section == "optimizer" or self.path.count(".") > self.path.startswith("elastic")


def names() -> list[Name]:
    facts = tomllib.loads(FACTS.read_text())
    return [
        Name(section, path, theirs)
        for section, each in facts.items()
        for path, theirs in each.items()
    ]


def arguments(thing: Any, name: Name) -> str:
    """The arguments of a function, method or class, without types, as Horovod's are noted."""
    if not name.theirs:
        return ""
    shown = []
    for each in inspect.signature(thing).parameters.values():
        if each.name == "self":
            continue
        default = each.default
        if isinstance(default, hvd.Average.__class__):
            text = default.name.title()
        else:
            text = _NAMED.get(id(default), repr(default))
        star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        word = star.get(each.kind, "") + each.name
        shown.append(word if default is inspect.Parameter.empty else f"{word}={text}")
    return f"({', '.join(shown)})"


def sentence(thing: Any) -> str:
    """What it says of itself first."""
    if not (inspect.isroutine(thing) or inspect.isclass(thing) or inspect.ismodule(thing)):
        return ""
    text = inspect.getdoc(thing) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return paragraph.replace("|", "\\|")


def page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for section, title in TITLES.items():
        parts.append(f"## {title}\n\n| Horovod 0.28.1 | shanty.torch | |\n|---|---|---|\n")
        for name in (each for each in names() if each.section == section):
            thing = name.ours()[0]
            ours = arguments(thing, name)
            beside = "the same" if ours == name.theirs else f"`{name.path}{ours}`"
            parts.append(f"| `{name.path}{name.theirs}` | {beside} | {sentence(thing)} |\n")
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
