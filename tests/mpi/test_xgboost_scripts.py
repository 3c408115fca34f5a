"""XGBoost's scripts of old: a line for dmlc-submit, a script for rabit, files that are split."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import fashion
import rabit_runs
from launches import FLAVOURS, Launches
from runs import WORKERS, Shanty, flavour

__all__ = ["flavour"]

pytestmark = [rabit_runs.NEEDS, pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]

MAIN = Path(__file__).parents[2] / "examples" / "xgboost" / "main.py"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("fashion")
    fashion.write(folder)
    return folder


def test_nothing_of_shanty_in_it() -> None:
    text = MAIN.read_text(encoding="utf-8")
    assert "xgb.rabit.init()" in text
    assert "shanty" not in text.lower()
    assert "collective" not in text


@pytest.mark.sampled  # tests/lab has it, too
def test_the_unchanged_script(shanty: Shanty, data: Path, flavour: str) -> None:
    """Each row of the file is with one rank; one model, as good as that of one process."""
    line = ("dmlc-submit", "--cluster", "mpi", "--num-workers", "3", "--mpi", flavour, "python")
    words = (MAIN, "--num_round", str(rabit_runs.ROUNDS), "--data_dir", data)
    done = shanty(*line, WORKERS / "xgb_main.py", *words)
    assert done.returncode == 0, done.stderr
    rabit_runs.judge(done, shanty.last.artifacts, data)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_rabit(launches: Launches, flavour: str) -> None:
    launches.check(
        flavour, 3, "mpi", "xgb_rabit", arguments=[str(launches.scratch / f"rabit {flavour}")]
    )


# ------------------------------------------------------------------ what is left as it is

PLAIN = """
import os, sys
import xgboost as xgb

folder = sys.argv[1]
dtrain = xgb.DMatrix(os.path.join(folder, "train.libsvm?format=libsvm"))
bst = xgb.train({"silent": 1, "max_depth": 2}, dtrain, 3, evals=[(dtrain, "train")])
print(dtrain.num_row(), dtrain.num_col(), len(bst.save_raw()))
print(xgb.DMatrix.__init__.__module__, xgb.train.__module__, "mpi4py" in sys.modules)
print([name for name in sys.modules if name.startswith("shanty")])
try:
    xgb.DMatrix(os.path.join(folder, "train.libsvm"))
except xgb.core.XGBoostError as error:
    print("format" in str(error))
try:
    xgb.no_such_name
except AttributeError as error:
    print(error)
try:
    xgb.train({}, dtrain, 1, feval=print)
except TypeError as error:
    print(error)
"""


def small(folder: Path) -> Path:
    """60 rows of three columns."""
    lines = [f"{row % 2} 0:{row} 1:{row % 7} 2:{row % 2}" for row in range(60)]
    (folder / "train.libsvm").write_text("\n".join(lines) + "\n")
    return folder


def lines(text: str) -> Counter[str]:
    """The lines, without the labels of ranks and the times of the day."""
    text = re.sub(r"^\[\d\] ", "", text, flags=re.MULTILINE)
    return Counter(re.sub(r"\[\d\d:\d\d:\d\d\]", "[time]", text).splitlines())


@pytest.mark.sampled(2)
def test_a_script_without_rabit_is_left_alone(shanty: Shanty) -> None:
    """Two ranks do what each would do as a process of its own, to the last warning."""
    script, folder = shanty.script(PLAIN), small(shanty.folder)
    command = [sys.executable, script, folder]
    alone = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    done = shanty("run", "-q", "-n", "2", "--oversubscribe", script, folder)
    assert done.returncode == 0, done.stderr
    assert "False\n[]\n" in alone.stdout
    assert lines(done.stdout) == lines(alone.stdout + alone.stdout)
    note = re.compile(
        r"^shanty: ranks 0, 1 of 2 each train.*\n( +why: .*\n +fix: .*)\n", re.MULTILINE
    )
    said, *others = note.split(done.stderr)
    assert len(others) == 2 and "import shanty.xgboost as xgb;" in others[0], done.stderr
    assert lines(said + others[1]) == lines(alone.stderr + alone.stderr)


OWN = """
import sys
import xgboost as xgb
from mpi4py import MPI

world = MPI.COMM_WORLD
arguments = None
if world.rank == 0:
    tracker = xgb.RabitTracker(n_workers=world.size, host_ip="127.0.0.1", sortby="task")
    tracker.start()
    arguments = tracker.worker_args()
arguments = world.bcast(arguments)
with xgb.collective.CommunicatorContext(**arguments, dmlc_task_id=f"{world.rank:08d}"):
    rows = xgb.DMatrix(sys.argv[1] + "/train.libsvm?format=libsvm")
    booster = xgb.train({}, rows, 2)
    print("rows", rows.num_row(), xgb.collective.get_world_size(), len(booster.get_dump()))
    print([name for name in sys.modules if name.startswith("shanty")])
"""


@pytest.mark.sampled(2)
def test_a_script_that_joins_its_ranks_itself_is_left_alone(shanty: Shanty) -> None:
    script, folder = shanty.script(OWN), small(shanty.folder)
    done = shanty("run", "-q", "-n", "2", "--oversubscribe", script, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rows 60 2 2\n") == 2
    assert done.stdout.count("[]\n") == 2
