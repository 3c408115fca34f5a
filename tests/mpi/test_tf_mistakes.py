"""Deliberate mistakes in Horovod's API on TensorFlow: each ends in the right error, in time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import environments
from launches import FLAVOURS, LONG, TENSORFLOW_WORDS, Done, Launches, run

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600), pytest.mark.xdist_group("environment")]

MISTAKES = ("mistakes", "tf_mistakes")
MORE = {**TENSORFLOW_WORDS, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
STALLS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}


@pytest.fixture(scope="module")
def python() -> Path:
    return environments.tensorflow()


@LONG
@pytest.mark.parametrize(
    ("flavour", "ranks"), [("openmpi5", 2), *((flavour, 3) for flavour in FLAVOURS)]
)
def test_mistakes_after_which_it_goes_on(
    launches: Launches, python: Path, flavour: str, ranks: int
) -> None:
    launches.check(flavour, ranks, "tensorflow", *MISTAKES, python=python, **MORE)


@LONG
def test_mistakes_with_keras_2(launches: Launches) -> None:
    python = environments.tensorflow_2_15()
    launches.check("openmpi5", 2, "tensorflow", *MISTAKES, python=python, **MORE)


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


FATAL: dict[str, tuple[dict[str, str], str, tuple[str, ...]]] = {
    # the environment, how the reason begins, and words in it
    "differs": ({}, "HorovodInternalError: The ranks asked for different", ("(4)", "(3)")),
    "skips_a_step": (STALLS, "HorovodInternalError: ", ("Tape.gradients.0", "rank 1")),
    "raises": ({}, "", ("InvalidArgumentError",)),
    "exits": ({}, "HorovodInternalError: ", ("rank 1",)),
}


@LONG
@pytest.mark.parametrize("mistake", FATAL)
def test_ranks_that_fail(tmp_path: Path, python: Path, mistake: str) -> None:
    environment, begin, words = FATAL[mistake]
    done = fatal(tmp_path, python, mistake, **environment)
    assert "rank 1" in done.stderr
    said = why(done)
    assert said.startswith(begin), said
    assert not [each for each in words if each not in said], said
    if mistake == "differs":
        assert "node" not in said and "Traceback" not in said and "File" not in said, said
    if mistake == "skips_a_step":
        warned = done.stderr.partition("why:")[0]
        assert not [each for each in words if each not in warned], done.stderr


@LONG
def test_a_rank_that_is_only_late(tmp_path: Path, python: Path) -> None:
    stall = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    done = fatal(tmp_path, python, "is_late", **stall)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("is through") == 2, done.stdout
    assert "rank 1" in done.stderr and "DistributedGradientTape.gradients.0" in done.stderr
