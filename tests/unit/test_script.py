"""What `import shanty` gives a script."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import shanty
from shanty.runtime.rundir import RUN_DIR


def test_what_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapping or words; every line is JSON to any reader, also where a loss is none."""
    monkeypatch.setenv(RUN_DIR, str(tmp_path))
    shanty.log({"train/loss": 0.5}, step=1)
    shanty.log(loss=math.nan, most=math.inf, least=-math.inf)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    one, two = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert (one["train/loss"], one["step"]) == (0.5, 1)
    assert (two["loss"], two["most"], two["least"]) == ("NaN", "Infinity", "-Infinity")


def test_without_a_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(RUN_DIR, raising=False)
    shanty.log({"loss": math.nan}, step=1)
    assert capsys.readouterr().out == "loss=NaN step=1\n"


def test_a_loop_that_is_left_early_tells_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_DIR, str(tmp_path))
    for step in shanty.progress(range(10), label="steps"):
        if step == 3:
            break
    told = json.loads((tmp_path / "progress.json").read_text())
    assert (told["done"], told["total"], told["label"]) == (3, 10, "steps")
