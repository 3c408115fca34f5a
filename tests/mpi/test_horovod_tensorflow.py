"""Scripts that know of horovod.tensorflow only run as they are."""

from __future__ import annotations

import pytest

import environments
from launches import LONG
from runs import WORKERS, Shanty

pytestmark = [pytest.mark.mpi, pytest.mark.slow, LONG, pytest.mark.xdist_group("environment")]

PATIENCE = 170  # seconds; TensorFlow alone takes ten to load
WORDS = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}


@pytest.mark.parametrize(
    "words", [["horovod_tf2_script.py"], ["--tf1", "horovod_tf1_script.py"]], ids=["2", "1"]
)
def test_an_unchanged_script(shanty: Shanty, words: list[str]) -> None:
    *options, script = words
    done = shanty(
        "run", "-q", "-n", 2, *options, "--python", environments.tensorflow(),
        WORKERS / script, timeout=PATIENCE, env=WORDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = {f"[{rank}] better True the same True" for rank in (0, 1)}
    assert wanted <= set(done.stdout.splitlines()), done.stdout
