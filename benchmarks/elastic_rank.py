"""A rank of `elastic.py`: how it is lost, and which ranks; or `cost`, which times allreduces."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import shanty.torch as hvd
from shanty.collectives import survivors

HOW, LOST = sys.argv[1], [int(word) for word in sys.argv[2].split(",") if word]
SIZES = {"4 KiB": 1 << 10, "1 MiB": 1 << 18, "16 MiB": 1 << 22, "64 MiB": 1 << 24}
STEPS, AT = 60, 33

torch.set_num_threads(1)
hvd.init()
first = hvd.rank()


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


def die(number: int = signal.SIGKILL) -> None:
    Path(f"died-{first}").write_text(repr(time.monotonic()))
    os.kill(os.getpid(), number)


def lose() -> None:
    """End this process."""
    if HOW in ("exception", "exit0", "exit1"):
        Path(f"died-{first}").write_text(repr(time.monotonic()))
        if HOW == "exception":
            raise ValueError("planted")
        os._exit(int(HOW[-1]))
    number = signal.SIGSEGV if HOW == "segv" else signal.SIGKILL
    threading.Timer(0.003, die, (number,)).start()


def losses() -> None:
    """Train, and print when the first step after the last loss was over."""
    model = torch.nn.Linear(1000, 64)
    state = hvd.elastic.TorchState(model=model, step=0)
    stepped = [0.0]
    if HOW == "recovery" and first == LOST[-1]:
        survivors.shrink = die  # type: ignore[assignment]

    @hvd.elastic.run
    def train(state: Any) -> None:
        begins = True
        while state.step < STEPS:
            model.zero_grad()
            model(torch.ones(8, 1000)).square().mean().backward()
            for name, parameter in model.named_parameters():
                parameter.data -= 0.001 * hvd.allreduce(parameter.grad, name=name)
            state.step += 1
            if begins:
                begins, stepped[0] = False, time.monotonic()
            if state.step % 5 == 0:
                state.commit()
            if state.step == AT and first in (LOST[:1] if HOW == "recovery" else LOST):
                lose()

    train(state)
    print(json.dumps({"stepped": stepped[0]}), flush=True)


if HOW == "cost":
    cost()
else:
    losses()
