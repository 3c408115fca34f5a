"""A rank of `elastic_hosts.py`: trains by `hvd.elastic`, for longer than it is needed.

It notes in files of its home, by the clock that all hosts of a lab share: in `noted.K` its process,
each beginning of the training and each step, with the size of the world; in `alive.K`, from a
thread of its own, that it is at work.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

import shanty.torch as hvd

PAUSE = 0.01  # seconds after a step
torch.set_num_threads(1)
hvd.init()
first, prefix = hvd.rank(), sys.argv[1] if "SHANTY_CONTINUES" not in os.environ else "again-"
model = torch.nn.Linear(100, 4)
state = hvd.elastic.TorchState(model=model, step=0)
noted = (Path.home() / f"{prefix}noted.{first}").open("w")


def note(what: object) -> None:
    print(time.monotonic(), what, hvd.size(), file=noted, flush=True)


def write() -> None:
    with (Path.home() / f"{prefix}alive.{first}").open("w") as file:
        while True:
            print(time.monotonic(), file=file, flush=True)
            time.sleep(0.01)


threading.Thread(target=write, daemon=True).start()
note(os.getpid())


@hvd.elastic.run
def train(state: Any) -> None:
    note("begins")
    while state.step < 3000:
        model.zero_grad()
        model(torch.ones(8, 100)).square().mean().backward()
        for name, parameter in model.named_parameters():
            parameter.data -= 0.001 * hvd.allreduce(parameter.grad, name=name)
        state.step += 1
        note("step")
        time.sleep(PAUSE)
        if state.step % 5 == 0:
            state.commit()


train(state)
