"""docs/reference/sdk.md is true: its code is typed, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launches import LONG, SOURCE
from runs import Shanty
from shanty.client.options import KEYS

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(200)]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "sdk.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "tutorials" / "guide.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
(TRAIN,) = re.findall(r"`train.py`:\n\n```python\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
HERE = [block for block in BLOCKS if "on=" not in block]  # the others need hosts
SHORT = "def mean("


def test_its_code_is_typed(tmp_path: Path) -> None:
    """As mypy --strict sees it for a user, whose configuration is none of ours."""
    assert len(BLOCKS) >= 9
    for number, block in enumerate(BLOCKS):
        (tmp_path / f"block{number}.py").write_text(block)
    (wrong,) = (block for block in BLOCKS if SHORT in block)
    (tmp_path / "wrong.py").write_text(f'{wrong}mean("ab")\nmean.submit([1.0]).result().lower()\n')
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    first, second = wrong.count("\n") + 1, wrong.count("\n") + 2
    found = [tuple(line.split(":")[:2]) for line in done.stdout.splitlines() if "error" in line]
    assert found == [("wrong.py", str(first)), ("wrong.py", str(second))], done.stdout + done.stderr


def test_its_options_are_those_that_there_are() -> None:
    table = PAGE[PAGE.index("| Option | |") :]
    names = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE)))
    fields = {each.field for each in KEYS.values()}
    assert sorted(names) == sorted({*fields, "cache", "memory", "workdir"})


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, marks=() if SHORT in block else LONG) for block in HERE],
    ids=lambda block: re.findall(r"(?:def |submit\(\")(\w+)", block)[0],
)
def test_its_code_prints_what_it_says(shanty: Shanty, block: str) -> None:
    shanty.script(TRAIN, "train.py")
    done = subprocess.run(
        [sys.executable, shanty.script(block)],
        cwd=shanty.folder,
        env=shanty.environ,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    wanted = re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE)
    assert wanted
    lines = iter(done.stdout.splitlines())
    for each in wanted:
        assert each in lines, done.stdout
    once = "this is printed once"
    assert done.stdout.count(f"[0] {once}\n") == block.count(once)
