"""The tables of docs/how-to/platforms.md: every flag of other platforms' commands, from the code.

`python tests/platform_flags.py` writes them anew, between the lines that mark them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from shanty.integrations.clusterone.flags import DISTRIBUTED, SINGLE
from shanty.integrations.gradient.flags import MULTINODE, SINGLENODE
from shanty.integrations.platforms.flags import Flag
from shanty.program import app

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "platforms.md"
_MAKING = ("create", "run")  # which have a table of their own
_PLACE = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _spellings(flag: Flag) -> str:
    first, *others = flag.names.split()
    older = f" ({', '.join(f'`{each}`' for each in others)})" if others else ""
    return f"`{first.replace('/', '`, `')}`{older}"


def _here(flag: Flag) -> str:
    if flag.kind == "does":
        return flag.text.rstrip(".")
    if flag.kind == "ignored":
        return f"left out: {flag.text}"
    return f"**refused**: {flag.text}; {flag.fix}"


def flags(several: Sequence[Flag], one: Sequence[Flag], names: tuple[str, str]) -> str:
    """The table of the two commands that make something; each flag once."""
    rows = []
    for kind in ("does", "ignored", "refused"):
        for flag in dict.fromkeys([each.names for each in [*several, *one]]):
            found = [(each, name) for each, name in
                     [*((f, names[0]) for f in several), *((f, names[1]) for f in one)]
                     if each.names == flag and each.kind == kind]  # fmt: skip
            if found:
                where = "both" if len(found) == 2 else found[0][1]
                rows.append(f"| {_spellings(found[0][0])} | {where} | {_here(found[0][0])} |")
    return "\n".join(["| Flag | Of | Here |", "|---|---|---|", *rows]) + "\n"


def _leaves(group: click.Group, *before: str) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _leaves(command, *before, name)
        else:
            yield " ".join([*before, name]), command


def verbs() -> str:
    """The table of the other verbs of `shanty experiments`, and of all their flags."""
    group = app.get_command(click.Context(app), "experiments")
    assert isinstance(group, click.Group)
    found: dict[tuple[str, str], list[str]] = {}
    names = [(name, each) for name, each in _leaves(group) if name.split()[0] not in _MAKING]
    for name, command in names:
        for each in command.params:
            if isinstance(each, click.Option):
                own = " (added by shanty)" * (each.name == "as_json")
                text = "left out" if each.hidden else (each.help or "").rstrip(".") + own
                shown = ", ".join(f"`{flag}`" for flag in sorted(each.opts, key=len, reverse=True))
                found.setdefault((shown, text), []).append(f"`{name}`")
    rows = [
        f"| {flag} | {'all' if len(of) == len(names) else ', '.join(of)} | {text} |"
        for (flag, text), of in found.items()
    ]
    return "\n".join(["| Flag | Verbs | Here |", "|---|---|---|", *rows]) + "\n"


def page(text: str) -> str:
    """The page with its tables as the code has them."""
    tables = {
        "gradient": flags(MULTINODE, SINGLENODE, ("multinode", "singlenode")),
        "verbs": verbs(),
        "clusterone": flags(DISTRIBUTED, SINGLE, ("distributed", "single")),
    }
    return _PLACE.sub(lambda found: found[1] + tables[found[2]] + found[3], text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
