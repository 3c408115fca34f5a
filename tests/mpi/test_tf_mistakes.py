"""Deliberate mistakes in Horovod's API on TensorFlow: each ends in the right error, in time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import environments
from torch_runs import FLAVOURS, LONG, TENSORFLOW_WORDS, Done, checks, passed, run

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600), pytest.mark.xdist_group("environment")]

MORE = {**TENSORFLOW_WORDS, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
STALLS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}


@pytest.fixture(scope="module")
def python() -> Path:
    return environments.tensorflow()


def go_on(done: Done) -> None:
    for name in checks("tf_mistakes.py"):
        passed(done, name)
    assert done.returncode == 0, done.stderr


@LONG
def test_mistakes_after_which_it_goes_on(tmp_path: Path, python: Path) -> None:
    go_on(run(tmp_path, "openmpi5", 2, "tf_mistakes.py", python=python, **MORE))


@LONG
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_mistakes_on_every_mpi(tmp_path: Path, python: Path, flavour: str) -> None:
    go_on(run(tmp_path, flavour, 3, "tf_mistakes.py", python=python, **MORE))


@LONG
def test_mistakes_with_keras_2(tmp_path: Path) -> None:
    older = environments.tensorflow_2_15()
    go_on(run(tmp_path, "openmpi5", 2, "tf_mistakes.py", python=older, **MORE))


def fatal(home: Path, python: Path, mistake: str, **extra: str) -> Done:
    return run(
        home, "openmpi5", 2, "tf_fatal.py", mistake, python=python, **TENSORFLOW_WORDS, **extra
    )


def why(done: Done) -> str:
    """What the run says of why it failed: all lines of it, which end at the next word."""
    assert done.returncode != 0, done.stdout + done.stderr
    found = re.search(r"^  why: (.*?)(?=^  \w+: |\Z)", done.stderr, re.MULTILINE | re.DOTALL)
    assert found, done.stderr
    return found[1].strip()


@LONG
def test_ranks_that_differ_in_a_graph(tmp_path: Path, python: Path) -> None:
    said = why(fatal(tmp_path, python, "differs"))
    assert said.startswith("HorovodInternalError: The ranks asked for different things"), said
    assert "(4)" in said and "(3)" in said, said
    assert "node" not in said and "Traceback" not in said and "File" not in said, said


@LONG
def test_a_rank_that_skips_a_step(tmp_path: Path, python: Path) -> None:
    done = fatal(tmp_path, python, "skips_a_step", **STALLS)
    said = why(done)
    assert said.startswith("HorovodInternalError: "), said
    for word in ("DistributedGradientTape.gradients.0", "rank 1"):
        assert word in said, said
        assert word in done.stderr.partition("why:")[0], done.stderr


@LONG
def test_a_rank_that_is_only_late(tmp_path: Path, python: Path) -> None:
    stall = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    done = fatal(tmp_path, python, "is_late", **stall)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("is through") == 2, done.stdout
    assert "rank 1" in done.stderr and "DistributedGradientTape.gradients.0" in done.stderr


@LONG
def test_a_rank_that_raises(tmp_path: Path, python: Path) -> None:
    done = fatal(tmp_path, python, "raises")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "InvalidArgumentError" in why(done)
    assert "rank 1" in done.stderr


@LONG
def test_a_rank_that_ends_its_script(tmp_path: Path, python: Path) -> None:
    said = why(fatal(tmp_path, python, "exits"))
    assert said.startswith("HorovodInternalError: ") and "rank 1" in said, said
