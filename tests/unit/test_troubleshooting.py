"""The page of troubleshooting: each text in it is one that the program writes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "help" / "troubleshooting.md").read_text(encoding="utf-8")
TEXTS = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def written() -> str:
    """All texts of the program, a line each; of those with values in them, the parts."""
    found = []
    for path in sorted((ROOT / "src" / "shanty").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_it_has_twenty_texts() -> None:
    assert len(TEXTS) == len(set(TEXTS)) >= 20


@pytest.mark.parametrize("text", TEXTS)
def test_the_program_writes_it(text: str, written: str) -> None:
    assert text in written
