"""Horovod's API for Keras 3 on TensorFlow, JAX and PyTorch, and for Keras 2: real trainings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import environments
import runs
from launches import LONG, Done, Launches, told
from runs import FLAVOURS, WORKERS, Shanty

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("environment"),
]

EXAMPLES = Path(__file__).parents[2] / "examples" / "horovod"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
KINDS: dict[str, dict[str, str]] = {  # what each Keras is asked for by
    "tensorflow": {"KERAS_BACKEND": "tensorflow"},
    "jax": {"KERAS_BACKEND": "jax"},
    "torch": {"KERAS_BACKEND": "torch"},
    "keras2": {"TF_USE_LEGACY_KERAS": "1"},
    "keras2.15": {},
}


def interpreter(kind: str) -> Path:
    """Of an environment with that Keras; PyTorch and scikit-learn are the tests' own."""
    if kind == "keras2.15":
        return environments.tensorflow_2_15()
    return environments.tensorflow()


def run(launches: Launches, kind: str, script: str, *words: str, **more: str) -> Done:
    """Run a script on 2 ranks of an interpreter."""
    chosen = {**QUIET, **KINDS[kind], **more}
    return launches.once("openmpi5", 2, script, *words, python=interpreter(kind), **chosen)


def check(launches: Launches, kind: str, mpi: str, share: int = 1) -> None:
    long = {"SHANTY_TEST_LONG": "1"} if runs.LONG else {}
    how = {"python": interpreter(kind), "share": share, **QUIET, **KINDS[kind], **DYNAMIC, **long}
    launches.check(mpi, 2, "keras", "keras_exact", "keras_callbacks", "keras_optimizer", **how)


@pytest.mark.sampled
def test_checks(launches: Launches) -> None:
    check(launches, "tensorflow", "openmpi5", share=5)


@LONG
@pytest.mark.parametrize(
    ("kind", "mpi"),
    [*((kind, "openmpi5") for kind in KINDS), *(("tensorflow", mpi) for mpi in FLAVOURS[1:])],
)
def test_every_check(launches: Launches, kind: str, mpi: str) -> None:
    check(launches, kind, mpi)


class Mistake(NamedTuple):
    """What a mistake leads to: the error and words of it on each of these ranks."""

    ranks: tuple[int, ...]
    error: str
    words: tuple[str, ...]


SHUTDOWN = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}
MISTAKES = {
    "fewer_steps": Mistake((0,), "", ("rank 1", "gradients")),
    "other_model": Mistake((0, 1), "", (r"\(64, 10\)", r"\(64, 12\)")),
    "other_model_at_the_broadcast": Mistake((0, 1), "", (r"\(64, 10\)", r"\(64, 12\)")),
    "not_built": Mistake((0, 1), "ValueError", ("Model must be built first",)),
    "passes_after_it_was_built": Mistake((0, 1), "ValueError", ("has been built",)),
}


@LONG
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(launches: Launches, kind: str, name: str) -> None:
    if name.startswith("passes") and kind.startswith("keras2"):
        pytest.skip("there it works")
    expected = MISTAKES[name]
    count = str(len(expected.ranks))
    done = run(launches, kind, "keras_fatal.py", name, count, **SHUTDOWN)
    told(done, expected.ranks, *expected.words, kind=expected.error)


@LONG
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("name", ["raises", "other_model"])
def test_why_it_failed(launches: Launches, kind: str, name: str) -> None:
    """One readable line; the others do not wait."""
    done = run(launches, kind, "keras_fatal.py", name, **SHUTDOWN, RAISED="1")
    assert done.returncode == 1, done.stdout + done.stderr
    words = {"raises": "ArithmeticError: deliberate", "other_model": "HorovodInternalError: "}
    assert f"  why: {words[name]}" in done.stderr, done.stderr


@LONG
@pytest.mark.parametrize("kind", ["tensorflow", "keras2", "keras2.15"])
def test_killed_and_run_again(launches: Launches, kind: str) -> None:
    unharmed = run(launches, kind, "keras_elastic.py", "0")
    assert unharmed.returncode == 0, unharmed.stdout + unharmed.stderr
    killed = run(launches, kind, "keras_elastic.py", "4")
    assert killed.returncode == 9, killed.stdout + killed.stderr
    assert "begins at 0 0" in killed.stdout
    again = run(launches, kind, "keras_elastic.py", "4", UNHARMED="1")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "begins at 4 56" in again.stdout, again.stdout
    assert "goes on from the commit of" in again.stderr
    ends = [each.stdout.rpartition("accuracy ")[2] for each in (unharmed, again)]
    assert ends[0] == ends[1]


SCRIPTS = {  # what they reach at least, and where they run
    "keras_fit_digits": (0.95, ("tensorflow", "keras2", "keras2.15")),
    "tf2_tape_digits": (0.95, ("tensorflow", "keras2.15")),
    "tf1_estimator_digits": (0.95, ("keras2.15",)),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_of_shanty_in_it(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert "import horovod.tensorflow" in text
    assert "shanty" not in text.partition('"""\n')[2].lower()
    assert len(text.splitlines()) < 100


@LONG
@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, (_, kinds) in SCRIPTS.items() for kind in kinds]
)
def test_unchanged_scripts(shanty: Shanty, name: str, kind: str) -> None:
    """On 1 and 2 ranks they reach as much."""
    reached = []
    for ranks in (1, 2):
        options = ["--tf1"] if name.startswith("tf1") else []
        done = shanty(
            "run", "-q", *options, "-n", ranks, "--python", interpreter(kind),
            EXAMPLES / f"{name}.py", timeout=240, env={**QUIET, **KINDS[kind]},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        found = re.findall(r"accuracy (\d\.\d+)$", done.stdout, re.MULTILINE)
        assert len(found) == 1, done.stdout
        reached.append(float(found[0]))
    assert min(reached) >= SCRIPTS[name][0], reached
    assert reached[1] >= reached[0] - 0.025, reached


@LONG
def test_keras_in_a_graph_of_tensorflow_1(shanty: Shanty) -> None:
    done = shanty(
        "run", "-q", "--tf1", "-n", 2, "--python", interpreter("keras2.15"),
        WORKERS / "keras_tf1.py", timeout=240, env=QUIET,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"[0] ok True", "[1] ok True"} <= set(done.stdout.splitlines()), done.stdout
    assert done.stdout.count("finished gradual learning rate warmup to 0.1.") == 1


@LONG
@pytest.mark.parametrize("kind", ["tensorflow", "keras2"])
def test_fit_goes_on_without_a_lost_rank(shanty: Shanty, kind: str) -> None:
    """In an elastic run, from the last commit of Horovod's callbacks."""
    wanted = ["--elastic", "--mpi", "openmpi5", "--oversubscribe", "-n", "2"]
    python, script = interpreter(kind), WORKERS / "keras_elastic.py"
    named = {**QUIET, **KINDS[kind]}
    done = shanty("run", *wanted, "--python", python, script, "4", env=named, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 2 ranks left" in done.stderr
    assert "begins at 0 0" in done.stdout
    assert "begins at 4 56" in done.stdout
    assert "goes back to its last commit: this rank alone is left" in done.stderr
