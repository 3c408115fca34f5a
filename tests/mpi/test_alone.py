"""Ranks that each train the same model by themselves are told of; nobody else is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from environments import ALONE, ALONE_LARGE, MLX, environment
from launches import LONG
from runs import Shanty
from shanty.runtime.rundir import RunDir

pytestmark = [pytest.mark.mpi, pytest.mark.sampled(12)]  # each is a launch of its own

WITHIN = 10.0  # seconds from the first training step to the word

TORCH = """
import torch, time
{before}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.1)
{after}
"""
ROWS = """
import time, sys
import numpy as np
x = np.random.default_rng(1).random((2000, 10))
y = (x[:, 0] > 0.5).astype(int)
{}
time.sleep(20)
"""
KERAS = """
import os, time
os.environ["KERAS_BACKEND"] = {!r}
import keras
import numpy as np
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((64, 4)), np.ones((64, 1)), epochs=2, verbose=0)
time.sleep(20)
"""
SPAWN = """
import os, time
import torch
import torch.distributed as dist

def main(rank, path):
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(200):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        time.sleep(0.1)

if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (os.path.abspath(f"group-{os.getpid()}"),), 2)
"""
COMPILED = """
step = torch.compile(lambda: optimizer.step(), backend="eager")
"""

# Script, and a part of the line that makes it one job.
CASES = {
    "torch": (TORCH.format(before="", steps=200, after=""), "init_process_group"),
    "xgboost": (
        ROWS.format("import xgboost; xgboost.train({}, xgboost.DMatrix(x, y), 3)"),
        "import shanty.xgboost",
    ),
    "xgboost-sklearn": (
        ROWS.format("import xgboost; xgboost.XGBClassifier(n_estimators=3).fit(x, y)"),
        "import shanty.xgboost",
    ),
    "a-variable-that-is-not-set": (
        TORCH.format(
            before='import os\nos.environ["RANK"] = os.environ.get("SLURM_PROCID", "0")\n'
            'os.environ["WORLD_SIZE"] = os.environ.get("SLURM_NTASKS", "1")',
            steps=200,
            after="",
        ),
        "take the rank and the world size from RANK and WORLD_SIZE",
    ),
    "processes-of-its-own": (SPAWN, "start none in the script"),
}
LIGHTGBM = "import lightgbm; lightgbm.train({}, lightgbm.Dataset(x, y), 3)"
# In an environment of their own.
LARGE = {
    "catboost": (
        ROWS.format(
            "import catboost\n"
            "catboost.CatBoostClassifier(iterations=3, allow_writing_files=False).fit(x, y)"
        ),
        "-n 1",
    ),
    "jax": (
        """
import time
import jax, jax.numpy as jnp
w, step = jnp.zeros(4), jax.jit(jax.value_and_grad(lambda w, x: ((x @ w - 1) ** 2).mean()))
for _ in range(200):
    w = w - 0.1 * step(w, jnp.ones((8, 4)))[1]
    time.sleep(0.1)
""",
        "jax.distributed.initialize()",
    ),
    "keras-torch": (KERAS.format("torch"), "import shanty.keras as hvd"),
    "keras-jax": (KERAS.format("jax"), "import shanty.keras as hvd"),
    "keras-tensorflow": (KERAS.format("tensorflow"), "import shanty.keras as hvd"),
    "tensorflow": (
        """
import time
import tensorflow as tf
w = tf.Variable(tf.zeros((4, 1)))

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w - 1) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))

for _ in range(200):
    step(tf.ones((8, 4)))
    time.sleep(0.1)
""",
        "import shanty.tensorflow as hvd",
    ),
    "lightning": (
        """
import time
import lightning
import torch

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        time.sleep(0.1)
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

rows = torch.utils.data.TensorDataset(torch.randn(1600, 4))
lightning.Trainer(logger=False, enable_checkpointing=False, max_epochs=1).fit(
    Model(), torch.utils.data.DataLoader(rows, batch_size=8)
)
""",
        "Trainer(strategy=",
    ),
}  # fmt: skip
MLX_RING = """
import time
import mlx.core as mx, mlx.nn as nn, mlx.optimizers as optim
print("size", mx.distributed.init(backend="ring").size())
model, optimizer = nn.Linear(4, 1), optim.SGD(0.1)
step = nn.value_and_grad(model, lambda model, x: mx.mean(model(x) ** 2))
for _ in range(200):
    optimizer.update(model, step(model, mx.ones((8, 4)))[1])
    mx.eval(model.parameters())
    time.sleep(0.1)
"""

MPIS = ("openmpi5", "mpich")


def told(shanty: Shanty, mpi: str, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run to the word, which ends the run; check when it came."""
    path = shanty.script(script)
    line = ("run", "-n", "2", "--oversubscribe", "--mpi", mpi, "--alone", "stop", *words, path)
    done = shanty(*line, timeout=180)
    assert done.returncode == 72, done.stdout + done.stderr
    events = [json.loads(line) for line in shanty.last.events.read_text().splitlines()]
    first = min(each["time"] for each in events if each["event"] == "rank-training")
    word = next(each["time"] for each in events if each["event"] == "failure")
    assert word - first < WITHIN
    assert "each train a model by themselves: no rank has joined another" in done.stderr
    return done


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("case", CASES)
def test_it_is_told(shanty: Shanty, mpi: str, case: str) -> None:
    script, advice = CASES[case]
    assert advice in told(shanty, mpi, script).stderr


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("parameters", [{}, {"num_machines": 2}])
def test_lightgbm(shanty: Shanty, mpi: str, parameters: dict[str, int]) -> None:
    """A number of machines without their names is no network to LightGBM."""
    python = environment("alone", ALONE, beside=sys.executable)
    script = ROWS.format(LIGHTGBM.format({"verbose": -1, **parameters}))
    assert "import shanty.lightgbm" in told(shanty, mpi, script, "--python", str(python)).stderr


@LONG
@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("case", LARGE)
def test_large_packages(shanty: Shanty, mpi: str, case: str) -> None:
    python = environment("alone-large", ALONE_LARGE, beside=sys.executable)
    script, advice = LARGE[case]
    assert advice in told(shanty, mpi, script, "--python", str(python)).stderr


@pytest.mark.parametrize("mpi", MPIS)
def test_a_ring_of_one(shanty: Shanty, mpi: str) -> None:
    python = environment("mlx", MLX)
    done = told(shanty, mpi, MLX_RING, "--python", str(python))
    assert 'mx.distributed.init(backend="mpi")' in done.stderr


@pytest.mark.parametrize("mpi", MPIS)
def test_a_python_in_a_shell(shanty: Shanty, mpi: str) -> None:
    script = shanty.script(CASES["torch"][0])
    done = shanty(
        *("run", "-n", "2", "--oversubscribe", "--mpi", mpi, "--alone", "stop"),
        *("bash", "-c", f"{sys.executable} {script}"),
    )
    assert done.returncode == 72, done.stdout + done.stderr
    assert "each train a model by themselves" in done.stderr


def test_a_warning_is_said_while_it_runs_and_at_the_end(shanty: Shanty) -> None:
    script = shanty.script(TORCH.format(before="", steps=30, after=""))
    done = shanty("run", "-n", "2", "--oversubscribe", script)
    assert done.returncode == 0, done.stdout + done.stderr
    what = "ranks 0, 1 of 2 each train a model by themselves: no rank has joined another"
    assert done.stderr.count(what) == 2
    assert done.stderr.index(what) < done.stderr.index(" succeeded after ")
    assert done.stderr.count("--alone ok") == 2
    shown = json.loads(shanty("show", "last", "--json").stdout)
    assert shown["alone"]["what"] == what
    assert "(alone)" in shanty("ps", "-a").stdout


# ------------------------------------------------------------------------------- silence

PLAIN = TORCH.format(before="", steps=5, after="")
QUIET = {
    "hostname": ["hostname"],
    "wc": ["wc", "-c", "/etc/passwd"],
    "sleep": ["sleep", "1"],
    "shell": ["bash", "-c", "echo $RANK"],
    "python": [sys.executable, "-c", "print(1)"],
    "argument": ["bash", "-c", f"{sys.executable} script.py --seed $RANK"],
}
SILENT = {
    "sweep by RANK": 'import os; torch.manual_seed(int(os.environ["RANK"]))',
    "sweep by MPI's variable": 'import os; os.environ.get("PMI_RANK") or os.environ.get('
    '"OMPI_COMM_WORLD_RANK")',
    "sweep by shanty": "import shanty; torch.manual_seed(shanty.rank())",
    "gloo": 'import torch.distributed; torch.distributed.init_process_group("gloo")',
    "mpi": 'import torch.distributed; torch.distributed.init_process_group("mpi")',
    "mpi4py": "from mpi4py import MPI",
    "horovod": "import shanty.torch as hvd; hvd.init()",
    "rpc": 'import os; import torch.distributed.rpc as rpc; r = os.environ["RA" + "NK"]; '
    'rpc.init_rpc("w" + r, rank=int(r), world_size=2)',
    "one rank": 'import os; os.environ["RA" + "NK"] != "0" and exit()',
}
UNTRAINED = {
    "inference": "import torch; print(torch.nn.Linear(4, 1)(torch.ones(4)).shape)",
    "an optimizer that never steps": "import torch; m = torch.nn.Linear(1, 1); "
    "torch.optim.SGD(m.parameters(), 0.1)",
    "numpy": "import numpy; print(numpy.linalg.svd(numpy.eye(30))[1].sum())",
    "scikit-learn": "from sklearn.datasets import load_digits; print(load_digits().data.sum())",
    "xgboost reads": "import xgboost, numpy; xgboost.DMatrix(numpy.ones((4, 2)), numpy.ones(4))",
}


def silent(shanty: Shanty, *words: str | Path, ranks: int = 2) -> None:
    done = shanty("run", "-n", str(ranks), "--oversubscribe", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "by themselves" not in done.stderr
    assert json.loads(RunDir(shanty.last.path).status.read_text())["alone"] is None


@pytest.mark.parametrize("case", QUIET)
def test_no_word_of_programs(shanty: Shanty, case: str) -> None:
    shanty.script(PLAIN)
    silent(shanty, *QUIET[case])


@pytest.mark.parametrize("case", SILENT)
def test_no_word_of_training_that_is_shared_or_meant(shanty: Shanty, case: str) -> None:
    after = "rpc.shutdown()" if case == "rpc" else ""
    silent(shanty, shanty.script(TORCH.format(before=SILENT[case], steps=5, after=after)))


@pytest.mark.parametrize("case", UNTRAINED)
def test_no_word_where_nothing_is_trained(shanty: Shanty, case: str) -> None:
    silent(shanty, shanty.script(UNTRAINED[case]))


def test_no_word_of_a_single_rank_or_where_it_is_meant(shanty: Shanty) -> None:
    script = shanty.script(PLAIN)
    silent(shanty, script, ranks=1)
    silent(shanty, "--alone", "ok", script)


def test_a_compiled_step_is_not_disturbed(shanty: Shanty) -> None:
    script = PLAIN.replace("    optimizer.step()", "    step()").replace(
        "for _", COMPILED + "for _"
    )
    done = shanty("run", "-n", "1", shanty.script(script))
    assert done.returncode == 0, done.stdout + done.stderr
