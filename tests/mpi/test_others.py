"""Other people's programs, as their own documentation has them started; docs/how-to/programs.md."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from environments import POOLS, PROGRAMS, environment
from launches import LONG
from runs import Shanty

pytestmark = [
    pytest.mark.sampled,
    pytest.mark.mpi,
    pytest.mark.usefixtures("own_tmpdir"),
    pytest.mark.xdist_group("programs"),
]

PATIENCE = 400  # seconds; DeepSpeed compiles at its first start

RPC = """
import os
import torch
import torch.distributed.autograd as autograd
import torch.distributed.rpc as rpc

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
if rank == 0:
    with autograd.context() as context:
        a, b = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
        loss = rpc.rpc_sync("worker1", torch.add, args=(a, b)).sum()
        autograd.backward(context, [loss])
        print("gradient", autograd.get_gradients(context)[a].tolist())
rpc.shutdown()
"""
FSDP = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group(sys.argv[1])
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
weights, state = get_state_dict(model, optimizer)
dcp.save({"model": weights, "optimizer": state}, checkpoint_id="checkpoint")
trained = model[0].weight.full_tensor().clone()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.zero_()
weights, state = get_state_dict(model, optimizer)
dcp.load({"model": weights, "optimizer": state}, checkpoint_id="checkpoint")
set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
print("restored", torch.equal(trained, model[0].weight.full_tensor()), "by", dist.get_backend())
dist.destroy_process_group()
"""
JOBLIB = """
from joblib import parallel_config
from mpi4py import MPI
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import cross_val_score

x, y = load_digits(return_X_y=True)
with parallel_config("loky", n_jobs=2):
    score = cross_val_score(RidgeClassifier(10.0 ** MPI.COMM_WORLD.rank), x, y, cv=3).mean()
scores = MPI.COMM_WORLD.gather(score)
if scores:
    print("best", round(max(scores), 2), "of", len(scores))
"""
EMCEE = """
import sys
import emcee
import numpy as np
from schwimmbad import MPIPool

def log_probability(theta):
    return -0.5 * np.sum(theta**2)

with MPIPool() as pool:
    if not pool.is_master():
        pool.wait()
        sys.exit(0)
    np.random.seed(42)
    sampler = emcee.EnsembleSampler(32, 5, log_probability, pool=pool)
    sampler.run_mcmc(np.random.randn(32, 5), 50)
    print("acceptance", round(float(sampler.acceptance_fraction.mean()), 1))
"""
DASK = """
from dask_mpi import initialize

initialize(interface="lo")  # this machine may have no other network
import dask.array as da
from distributed import Client

client = Client()
print("mean", round(float(da.ones((100, 100), chunks=50).mean().compute()), 1))
"""
RAY = """
import os, subprocess, sys, time
import ray
from mpi4py import MPI

comm = MPI.COMM_WORLD
program = os.path.join(os.path.dirname(sys.executable), "ray")
address = None
if comm.rank == 0:
    ray.init(num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1",
             _temp_dir=os.environ["TMPDIR"])
    address = ray.get_runtime_context().gcs_address
address = comm.bcast(address)
if comm.rank:
    subprocess.run([program, "start", "--address", address, "--num-cpus", "1"], check=True)
comm.barrier()
if comm.rank == 0:
    while ray.cluster_resources().get("CPU", 0) < comm.size:
        time.sleep(0.1)
    square = ray.remote(lambda x: x * x)
    print("squares", ray.get([square.remote(i) for i in range(4)]))
comm.barrier()
if comm.rank:
    subprocess.run([program, "stop"], check=True)
else:
    ray.shutdown()
"""
DEEPSPEED = """
import deepspeed
import torch

deepspeed.init_distributed("gloo")
model = torch.nn.Linear(8, 2)
engine, *_ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(),
    config={"train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}}},
)
for _ in range(3):
    loss = torch.nn.functional.cross_entropy(engine(torch.ones(4, 8)), torch.tensor([0, 1, 0, 1]))
    engine.backward(loss)
    engine.step()
print("world", engine.world_size)
"""
LIGHTNING = """
import lightning
from lightning.pytorch.demos.boring_classes import BoringModel

trainer = lightning.Trainer(
    max_steps=4, accelerator="cpu", strategy="ddp", devices=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False,
)
trainer.fit(BoringModel())
print("world", trainer.world_size)
"""
NUMBA = """
import numba
import numba_mpi
import numpy as np

@numba.njit
def total():
    mine, sums = np.array([numba_mpi.rank() + 1.0]), np.empty(1)
    numba_mpi.allreduce(mine, sums, operator=numba_mpi.Operator.SUM)
    return sums[0]

print("total", total())
"""


def run(shanty: Shanty, text: str, *words: str, ranks: int = 2, python: Path | None = None) -> str:
    """What the script prints, by all ranks, with these words after it."""
    chosen = ["--python", str(python)] if python is not None else []
    line = ("run", "-q", "-n", str(ranks), "--oversubscribe", *chosen, shanty.script(text), *words)
    done = shanty(*line, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_mpi4py_s_own_programs(shanty: Shanty, flavour: str) -> None:
    for words in (["helloworld"], ["ringtest", "-l", "3"]):
        done = shanty(
            "run", "--mpi", flavour, "-n", "2", "--oversubscribe", "-m", "mpi4py.bench", *words
        )
        assert done.returncode == 0, done.stderr
        assert "process 1 of 2" in done.stdout or "2 processes" in done.stdout


def test_rpc(shanty: Shanty) -> None:
    assert "gradient [1.0, 1.0, 1.0]" in run(shanty, RPC)


@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_fsdp_and_distributed_checkpoints(shanty: Shanty, backend: str) -> None:
    assert run(shanty, FSDP, backend).count(f"restored True by {backend}") == 2


def test_joblib_of_scikit_learn(shanty: Shanty) -> None:
    assert "of 2" in run(shanty, JOBLIB)


@pytest.mark.parametrize(("text", "word"), [(EMCEE, "acceptance 0.6"), (NUMBA, "total 3.0")])
def test_pools_and_compiled_functions(shanty: Shanty, text: str, word: str) -> None:
    python = environment("pools", POOLS, beside=sys.executable)
    assert word in run(shanty, text, python=python)


@LONG
@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("text", "words", "ranks"),
    [
        (DASK, ["mean 1.0"], 3),
        (DEEPSPEED, ["world 2"], 2),
        (LIGHTNING, ["world 2"], 2),
        (RAY, ["squares [0, 1, 4, 9]"], 2),
    ],
    ids=["dask", "deepspeed", "lightning", "ray"],
)
def test_frameworks(
    shanty: Shanty, monkeypatch: pytest.MonkeyPatch, text: str, words: list[str], ranks: int
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else all nodes need one token
    # What a killed compiler leaves in the usual folder, all later ones wait for.
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(shanty.folder / "extensions"))
    python = environment("programs", PROGRAMS, beside=sys.executable)
    printed = run(shanty, text, ranks=ranks, python=python)
    assert all(word in printed for word in words), printed


@LONG
@pytest.mark.parametrize("part", ["test_script", "test_sync", "test_ops"])
def test_accelerate_s_own_tests(shanty: Shanty, part: str) -> None:
    python = environment("programs", PROGRAMS, beside=sys.executable)
    done = shanty(
        *("run", "-n", "2", "--oversubscribe", "--python", python, "-e", "ACCELERATE_USE_CPU=true"),
        *("-m", f"accelerate.test_utils.scripts.{part}"),
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
