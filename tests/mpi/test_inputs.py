"""`shanty run --inputs`: a folder that each rank finds."""

from __future__ import annotations

import pytest

from runs import Shanty

pytestmark = pytest.mark.mpi
READ = """
import os
from pathlib import Path
inputs = os.environ.get("SHANTY_INPUTS")
print("inputs", inputs and (Path(inputs) / "a" / "b.txt").read_text())
"""


def test_each_rank_finds_a_copy(shanty: Shanty) -> None:
    data = shanty.folder / "data"
    (data / "a").mkdir(parents=True)
    (data / "a" / "b.txt").write_text("here")
    script = shanty.script(READ)
    done = shanty("run", "-q", "-n", "2", "--oversubscribe", "--inputs", "data", script)
    assert sorted(done.stdout.splitlines()) == ["[0] inputs here", "[1] inputs here"], done.stderr


def test_those_of_an_outer_run_are_not_taken(shanty: Shanty) -> None:
    done = shanty("run", "-q", "-n", "1", shanty.script(READ), env={"SHANTY_INPUTS": "/nowhere"})
    assert done.stdout == "inputs None\n", done.stderr


def test_a_folder_that_is_not_there(shanty: Shanty) -> None:
    done = shanty("run", "--inputs", "none", shanty.script(READ))
    assert done.returncode == 2
    assert "there is no folder" in done.stderr
