"""What `import shanty` gives a script."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
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


def test_the_first_nan_of_a_number_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each number; infinity where the number was finite before; with a step, or the call.

    In a process of its own: what is known of a number is kept for the life of the process.
    """
    fifo = tmp_path / "reports"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    code = (
        "import math, shanty\n"
        "for step, loss in enumerate((1.0, math.nan, 2.0, math.nan)):\n"
        "    shanty.log({'train/loss': loss}, step=step, best=math.inf, count=step)\n"
        "shanty.log(epoch=3, best=0.5)\n"
        "shanty.log(epoch=4, best=-math.inf)\n"
        "shanty.log(epoch=5, best=math.nan)\n"  # as a loss that diverges
        "shanty.log(accuracy=math.nan)\n"
    )
    environ = {RUN_DIR: str(tmp_path), "SHANTY_REPORTS": str(fifo), "OMPI_COMM_WORLD_RANK": "3"}
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **environ}, check=True)
    told = [json.loads(line) for line in os.read(reader, 1 << 16).splitlines()]
    os.close(reader)
    assert {each["event"] for each in told} == {"not-finite"}
    assert {each["rank"] for each in told} == {3}
    assert not any("at" in each for each in told)  # which is a time, of the host's own clock
    assert [(each["name"], each["value"], each["place"]) for each in told] == [
        ("train/loss", "NaN", "step 1"),
        ("best", "-Infinity", "epoch 4"),
        ("best", "NaN", "epoch 5"),
        ("accuracy", "NaN", "call 8 of shanty.log"),
    ]


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
