"""A rank of `elastic.py`: how it is lost, which ranks, the framework, steps; or `cost`: allreduces.

`none` loses no rank. A rank that comes to the end prints when its first step after the last loss
was over, the loss of the model on rows that none has trained on, and a hash of the parameters.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from shanty.collectives import regrowth, survivors

HOW, LOST = sys.argv[1], [int(word) for word in sys.argv[2].split(",") if word]
FRAMEWORK = sys.argv[3] if len(sys.argv) > 3 else "torch"
STEPS = int(sys.argv[4]) if len(sys.argv) > 4 else 60
SIZES = {"4 KiB": 1 << 10, "1 MiB": 1 << 18, "16 MiB": 1 << 22, "64 MiB": 1 << 24}
AT, COMMIT, RATE = 33, 5, 0.05
ROWS, COLUMNS, OUTPUTS = 128, 100, 64
GROUPS = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")

hvd: Any = import_module({"keras": "shanty.tensorflow.keras"}.get(FRAMEWORK, f"shanty.{FRAMEWORK}"))
hvd.init()
first = int(os.environ["SHANTY_SEAT" if "SHANTY_SEAT" in os.environ else "RANK"])
if HOW != "cost":
    regrowth.Regrowth.look = lambda *_: False  # type: ignore[method-assign]  # who is left goes on


def rows(seed: int) -> tuple[Any, Any]:
    """Return rows and their targets, noisy, of one function for all seeds."""
    function = np.random.default_rng(0).normal(0, 0.1, (COLUMNS, OUTPUTS))
    chance = np.random.default_rng(seed)
    x = chance.normal(size=(ROWS, COLUMNS))
    y = x @ function + chance.normal(0, 0.2, (ROWS, OUTPUTS))
    return x.astype(np.float32), y.astype(np.float32)


def best(call: Callable[[], object], repeats: int) -> float:
    """Return the seconds of a call: the mean of so many, the best of five of these."""
    times = []
    for _ in range(5):
        hvd.barrier()
        begun = time.perf_counter()
        for _ in range(repeats):
            call()
        times.append((time.perf_counter() - begun) / repeats)
    return min(times)


def cost() -> None:
    """Print the seconds of an allreduce of each size, and of training steps with 33 MB."""
    import torch

    torch.set_num_threads(1)
    told = {}
    for name, elements in SIZES.items():
        tensor = torch.ones(elements)
        repeats = max(3, min(200, (1 << 24) // elements))
        told[name] = best(partial(hvd.allreduce_, tensor, name="x"), repeats)
    made = [torch.nn.Linear(2048, 2048) for _ in range(2)]
    data, model = torch.ones(64, 2048), torch.nn.Sequential(*made)
    plain = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step(trained: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        trained(data).square().mean().backward()
        optimizer.step()

    torch.distributed.init_process_group("mpi")
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    hvd.elastic.ddp(ddp)
    step(ddp, plain)
    told["step with DDP"] = best(partial(step, ddp, plain), 5)
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(2)))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-6), model.named_parameters()
    )
    step(model, optimizer)
    told["step with hvd"] = best(partial(step, model, optimizer), 5)
    if first == 0:
        print(json.dumps(told), flush=True)


def died() -> None:
    Path(f"died-{first}").write_text(repr(time.monotonic()))


def die(number: int = signal.SIGKILL) -> None:
    died()
    os.kill(os.getpid(), number)


def exhaust() -> None:
    """Go into a control group with little memory, and take more."""
    groups = next(each for each in GROUPS if (each / "cgroup.procs").exists())
    group = groups / f"shanty-benchmark-{os.getppid()}-{first}"  # `elastic.py` removes it
    group.mkdir()
    limit = "memory.limit_in_bytes" if (group / "memory.limit_in_bytes").exists() else "memory.max"
    (group / limit).write_text(str(32 << 20))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    Path(f"group-{first}").write_text(str(group))
    died()
    taken = []
    while True:
        taken.append(np.ones(1 << 20))


def lose() -> None:
    """End this process; by a signal during the next collective."""
    if HOW in ("exception", "exit0", "exit1"):
        died()
        if HOW == "exception":
            raise ValueError("planted")
        os._exit(int(HOW[-1]))
    if HOW == "memory":
        exhaust()
    number = {"segv": signal.SIGSEGV, "stop": signal.SIGSTOP}.get(HOW, signal.SIGKILL)
    threading.Timer(0.003, die, (number,)).start()


class Steps:
    """What is done after each step."""

    def __init__(self) -> None:
        self.stepped = 0.0
        self.begins = True

    def after(self, step: int) -> None:
        if self.begins:
            self.begins, self.stepped = False, time.monotonic()
        doomed = LOST[:1] if HOW == "recovery" else LOST
        if HOW != "none" and step == AT and first in doomed:
            lose()


steps = Steps()


def of_torch() -> Callable[[], list[Any]]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(first)
    x, y = map(torch.from_numpy, rows(1 + first))
    model = torch.nn.Linear(COLUMNS, OUTPUTS)
    state = hvd.elastic.TorchState(model=model, step=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        steps.begins = True
        while state.step < STEPS:
            model.zero_grad()
            (model(x) - y).square().sum(1).mean().backward()
            for name, parameter in model.named_parameters():
                parameter.data -= RATE * hvd.allreduce(parameter.grad, name=name)
            state.step += 1
            if state.step % COMMIT == 0:
                state.commit()
            steps.after(state.step)

    train(state)
    return lambda: [model.weight.detach().numpy().T, model.bias.detach().numpy()]


def of_tensorflow() -> Callable[[], list[Any]]:
    import tensorflow as tf

    x, y = map(tf.constant, rows(1 + first))
    tf.random.set_seed(first)
    w = tf.Variable(tf.random.normal((COLUMNS, OUTPUTS), 0, 0.1))
    b = tf.Variable(tf.zeros(OUTPUTS))

    @tf.function
    def step() -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.reduce_sum(tf.square(x @ w + b - y), 1))
        for variable, gradient in zip((w, b), tape.gradient(loss, [w, b]), strict=True):
            variable.assign_sub(RATE * gradient)

    @hvd.elastic.run
    def train(state: Any) -> None:
        steps.begins = True
        while state.step < STEPS:
            step()
            state.step += 1
            if state.step % COMMIT == 0:
                state.commit()
            steps.after(state.step)

    train(hvd.elastic.TensorFlowState([w, b], step=0))
    return lambda: [w.numpy(), b.numpy()]


def of_keras() -> Callable[[], list[Any]]:
    import tensorflow as tf

    keras = tf.keras
    x, y = rows(1 + first)
    keras.utils.set_random_seed(first)
    model = keras.Sequential([keras.layers.Input((COLUMNS,)), keras.layers.Dense(OUTPUTS)])
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(RATE)),
        loss=lambda wanted, found: tf.reduce_sum(tf.square(found - wanted), 1),
    )
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    whole = 12  # steps of an epoch

    class After(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            steps.after(int(model.optimizer.iterations.numpy()))

    @hvd.elastic.run
    def train(state: Any) -> None:
        steps.begins = True
        model.fit(
            tf.data.Dataset.from_tensors((x, y)).repeat(),
            steps_per_epoch=whole,
            epochs=STEPS // whole - state.epoch,
            verbose=0,
            callbacks=[
                hvd.elastic.CommitStateCallback(state, COMMIT),
                hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.UpdateEpochStateCallback(state),
                After(),
            ],
        )

    train(state)
    return model.get_weights


def losses() -> None:
    """Train, and print what came of it."""
    if HOW == "recovery" and first == LOST[-1]:
        survivors.shrink = die  # type: ignore[assignment]
    train = {"torch": of_torch, "tensorflow": of_tensorflow, "keras": of_keras}[FRAMEWORK]
    w, b = train()()
    x, y = rows(99)
    digest = hashlib.sha256(np.ascontiguousarray(w).tobytes() + b.tobytes()).hexdigest()
    loss = float(np.square(x @ w + b - y).sum(1).mean())
    print(json.dumps({"stepped": steps.stepped, "loss": loss, "digest": digest}), flush=True)


if HOW == "cost":
    cost()
else:
    losses()
