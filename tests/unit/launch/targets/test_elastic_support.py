"""The table of what an elastic run outlives: docs, doctor and `--dry-run` show the same."""

from __future__ import annotations

import re
from pathlib import Path

from shanty.launch.targets.elastic_support import FRAMEWORKS, HEAD, HERE, PLACES, described

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "elastic.md"


def test_the_docs_have_this_table() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## What is supported")[2]
    rows = [tuple(line.strip("| ").split(" | ")) for line in section.splitlines() if "| " in line]
    shown = [row for row in rows if len(row) == len(HEAD)]
    assert shown == [*map(tuple, PLACES), *map(tuple, FRAMEWORKS)]
    head = re.findall(r"^\| \| (.*) \|$", section, re.MULTILINE)
    assert head == [" | ".join(HEAD[1:]).replace("--warm", "`--warm`")] * 2


def test_a_plan_says_what_holds_for_it() -> None:
    assert described(HERE) == (
        "a lost rank: goes on; a lost host: the run ends; lost ranks come back: at a commit, or by "
        "--spares"
    )
