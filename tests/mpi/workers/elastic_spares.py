"""Trains by `hvd.elastic` in a run with spares, and loses the groups of ranks `1+2,0` one by one.

A group, by the numbers that its ranks begin with, is lost after ten steps with all ranks; a spare
that sleeps is ended by rank 0. With the word `recovery` the last rank of the first group is lost
while the others leave the first one behind, with `grow` lost ranks may be started again. Each rank
that comes to the end prints one line of JSON.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import shanty.torch as hvd
from shanty.collectives import regrowth, survivors

GROUPS = [[int(word) for word in group.split("+")] for group in sys.argv[1].split(",") if group]
STEPS = 10
if "grow" not in sys.argv:
    regrowth.Regrowth.look = lambda *_: False
place = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
began = [os.environ[name] for name in place]
pids = Path(os.environ["SHANTY_RUN_DIR"], "pids")
status = pids.with_name("status.json")
pids.mkdir(exist_ok=True)
(pids / began[0]).write_text(str(os.getpid()))
torch.set_num_threads(1)
first, size = map(int, began[:2])


def die():
    os.kill(os.getpid(), signal.SIGKILL)


if "recovery" in sys.argv and first == GROUPS[0][-1]:
    survivors.shrink = die
hvd.init()
model = torch.nn.Linear(100, 4)
state = hvd.elastic.TorchState(model=model, step=0, lost=0)
begins = []


@hvd.elastic.run
def train(state):
    begins.append((state.step, hvd.rank(), hvd.size()))
    steps = 0
    while steps < STEPS or state.lost < len(GROUPS):
        model.zero_grad()
        model(torch.ones(8, 100)).square().mean().backward()
        for name, parameter in model.named_parameters():
            parameter.data -= 0.001 * hvd.allreduce(parameter.grad, name=name)
        state.step += 1
        steps += hvd.size() == size
        if state.step % 5 == 0:
            state.commit()
        if steps == STEPS and state.lost < len(GROUPS):
            lost = GROUPS[state.lost]
            state.lost, steps = state.lost + 1, 0
            state.commit()
            if "recovery" in sys.argv:
                lost = lost[:1]
            if hvd.rank() == 0:
                for rank in lost:
                    if rank != first:
                        os.kill(int((pids / str(rank)).read_text()), signal.SIGKILL)
                    while rank >= size and f"rank {rank} (spare)" not in status.read_text():
                        time.sleep(0.01)  # reported before the next group is lost
            if first in lost:
                die()


train(state)
total = sum(each.detach().double().sum() for each in model.parameters())
told = {
    "first": first, "rank": hvd.rank(), "size": hvd.size(), "began": began, "begins": begins,
    "place": [os.environ[name] for name in place], "sum": total.item(), "step": state.step,
}  # fmt: skip
print(json.dumps(told), flush=True)
