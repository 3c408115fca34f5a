"""Keys that are not known, in all files that shanty reads: the line, and the nearest known key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shanty.client import options
from shanty.launch import settings
from shanty.launch.machines import types
from shanty.runtime.errors import UsageError
from shanty.runtime.lines import horovodrun, launchers


def workspace(folder: Path, text: str) -> None:
    (folder / "shanty.toml").write_text(text)
    options.defaults(folder)


def home(folder: Path, text: str) -> None:
    (folder / "config.toml").write_text(text)
    settings.load(folder)


def machine_type(folder: Path, text: str) -> None:
    (folder / "machines").mkdir()
    (folder / "machines" / "big.json").write_text(text)
    types.load("big", folder)


def horovod(_: Path, text: str) -> None:
    horovodrun.parse(["--config-file", "c", "-np", "1", "x"], {"c": text}.get)


def accelerate(_: Path, text: str) -> None:
    words = ["--config_file", "c.yaml", "x.py"]
    launchers.parse("accelerate-launch", words, {}, {"c.yaml": text}.get)


@pytest.mark.parametrize(
    ("read", "text", "line", "near"),
    [
        (workspace, "[run]\nranks = 2\nmermory_per_rank = '1G'\n", 3, "memory_per_rank"),
        (workspace, "[rnu]\nranks = 2\n", 1, "run"),
        (home, "keep_runs = 3\nlog_limmit = 4\n", 2, "log_limit"),
        (home, "[slurm]\npartition = 'a'\nacount = 'b'\n", 3, "account"),
        (home, "[slurm.site]\nlogin = 'a'\nqso = 'b'\n", 3, "qos"),
        (machine_type, json.dumps({"on": "a", "slot": 2}, indent=1), 3, "slots"),
        (horovod, "params:\n  cycle_time: 3\n", 2, "params.cycle_time_ms"),
        (accelerate, "num_machines: 1\nnum_proceses: 2\n", 2, "num_processes"),
    ],
)
def test_a_mistyped_key(read: object, text: str, line: int, near: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        read(tmp_path, text)  # type: ignore[operator]
    assert f", line {line}: " in error.value.what
    assert error.value.fix == f"did you mean {near}?"
