"""The script that Slurm starts on the first node."""

from __future__ import annotations

import subprocess
from pathlib import Path

from shanty.runtime.rundir import RunDir
from shanty.runtime.slurm import batch


def test_a_node_without_the_python_says_so(tmp_path: Path) -> None:
    """Whatever the path is: it is no text for the shell to work on."""
    python = '/home/ann/it\'s "$(touch made)" %s `touch made`/python'
    text = batch.script(RunDir(tmp_path / "20261124-192142-s4hn"), [python, "boot.py"], "USR1")
    done = subprocess.run(
        ["/bin/sh", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 69
    assert f"there is no Python at {python} on " in done.stderr
    assert not (tmp_path / "made").exists()
