"""A notebook here whose ranks are on other hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

import environments
from runs import LONG, WORKERS

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.skipif(not LONG, reason="takes long: SHANTY_TEST_LONG=1")
def test_cells_on_hosts(lab: LabHosts, tmp_path: Path) -> None:
    python = environments.environment("notebook", environments.NOTEBOOK, beside=sys.executable)
    folder = Site(lab, tmp_path / "work").folder
    done = subprocess.run(
        [python, WORKERS / "notebook_kernel.py", "hosts"],
        cwd=folder,
        env={
            **lab.shanty.environ,
            "PYTHONPATH": str(SOURCE),
            "IPYTHONDIR": str(tmp_path / "ipython"),
            "NOTEBOOK_ON": "--on lab --ppn 1",
            "PATH": os.environ["PATH"],
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.stdout == "ok hosts\n", done.stderr[-5000:]
