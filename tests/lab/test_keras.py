"""Unchanged Horovod scripts of Keras and TensorFlow over two hosts."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

import environments
from launches import LONG

pytest.importorskip("sklearn")
pytestmark = [pytest.mark.mpi, pytest.mark.slow, LONG, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "examples" / "horovod"
QUIET = ("-e", "TF_CPP_MIN_LOG_LEVEL=3", "-e", "TF_ENABLE_ONEDNN_OPTS=0")


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    yield Site(lab, tmp_path / "work")


@pytest.mark.parametrize("name", ["keras_fit_digits", "tf2_tape_digits", "tf1_estimator_digits"])
def test_unchanged_scripts(site: Site, name: str) -> None:
    shutil.copy(EXAMPLES / f"{name}.py", site.folder)
    options = ["--tf1"] if name.startswith("tf1") else []
    python = environments.tensorflow_2_15() if options else environments.tensorflow()
    place = ["--on", "lab", "--python", python, "-n", "2", "--ppn", "1"]
    done = site("run", "-q", *place, *options, *QUIET, f"{name}.py", timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"accuracy (\d\.\d+)$", done.stdout, re.MULTILINE)
    assert len(found) == 1, done.stdout
    assert float(found[0]) >= 0.95
