"""`shanty run --inputs`: a folder that each rank finds."""

from __future__ import annotations

import os
import subprocess
import sys

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


KEEP = """
import shanty
(shanty.artifacts() / "kept" / "a").mkdir(parents=True)
(shanty.artifacts() / "kept").chmod(0o500)
"""


def test_a_run_with_folders_that_are_read_only_can_be_removed(shanty: Shanty) -> None:
    data = shanty.folder / "data"
    (data / "a").mkdir(parents=True)
    data.chmod(0o500)
    unprivileged = []
    if os.geteuid() == 0:  # for whom rights are none
        rights = "-dac_override,-dac_read_search"
        unprivileged = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]
    for words in (["run", "-n", "1", "--inputs", "data", shanty.script(KEEP)], ["rm", "last"]):
        done = subprocess.run(
            [*unprivileged, sys.executable, "-m", "shanty", *words],
            cwd=shanty.folder, env=shanty.environ, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert [each.stat().st_mode & 0o200 for each in shanty.home.glob("runs/*/inputs")] != [0]
    assert [*(shanty.home / "runs").iterdir()] == []
    data.chmod(0o700)


def test_those_of_an_outer_run_are_not_taken(shanty: Shanty) -> None:
    done = shanty("run", "-q", "-n", "1", shanty.script(READ), env={"SHANTY_INPUTS": "/nowhere"})
    assert done.stdout == "inputs None\n", done.stderr


def test_a_folder_that_is_not_there(shanty: Shanty) -> None:
    done = shanty("run", "--inputs", "none", shanty.script(READ))
    assert done.returncode == 2
    assert "folder not found" in done.stderr
