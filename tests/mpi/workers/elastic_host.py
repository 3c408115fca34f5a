"""Trains by `hvd.elastic` until enough steps are made, at 20 a second, while hosts are lost.

Every rank notes in its home, in `noted.K`, by a clock that all hosts of a lab share: each beginning
of the training, each step and each commit; and in `alive.K`, from a thread of its own, that it is
at work. Argument: the number of steps.
"""

import sys
import threading
import time
from pathlib import Path

import torch

import shanty.torch as hvd

STEPS = int(sys.argv[1])
torch.set_num_threads(1)
hvd.init()
first = hvd.rank()
notes = (Path.home() / f"noted.{first}").open("w")
model = torch.nn.Linear(100, 4)
state = hvd.elastic.TorchState(model=model, step=0)


def note(what):
    print(time.monotonic(), what, hvd.size(), file=notes, flush=True)


def write():
    with (Path.home() / f"alive.{first}").open("w") as file:
        while True:
            print(time.monotonic(), file=file, flush=True)
            time.sleep(0.02)


threading.Thread(target=write, daemon=True).start()


@hvd.elastic.run
def train(state):
    note("begins")
    while state.step < STEPS:
        model.zero_grad()
        model(torch.ones(8, 100)).square().mean().backward()
        for name, parameter in model.named_parameters():
            parameter.data -= 0.001 * hvd.allreduce(parameter.grad, name=name)
        state.step += 1
        note("step")
        time.sleep(0.05)
        if state.step % 5 == 0:
            state.commit()
            note("commit")


train(state)
note("saves")
print("done", first, hvd.rank(), hvd.size(), flush=True)
