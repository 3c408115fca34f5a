"""A rank of `soak.py`: trains until the file `end` is there, and is lost when it is told so.

`lose-N` in the run's folder holds how rank N is to be lost; `pid-N` has its process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

import shanty.torch as hvd

torch.set_num_threads(1)
SEAT = os.environ["RANK"]
ORDER, END, STEPPED = (Path(f"{name}").absolute() for name in (f"lose-{SEAT}", "end", "stepped"))
Path(f"pid-{SEAT}").write_text(str(os.getpid()))
hvd.init()


def lose(how: str) -> None:
    """End or stop this process."""
    if how == "exception":
        raise ValueError(f"planted {time.time()}")  # three of the same would be a bug
    if how == "sys.exit":
        sys.exit(0)
    if how == "os._exit":
        os._exit(0)
    number = getattr(signal, how)
    threading.Timer(0.003, os.kill, (os.getpid(), number)).start()  # in the next collective


def main() -> None:
    """Train."""
    model = torch.nn.Linear(1000, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        begins, over = True, torch.zeros(1)
        while not over:
            if ORDER.exists():
                how = ORDER.read_text()
                ORDER.unlink()
                lose(how)
            optimizer.zero_grad()
            model(torch.ones(8, 1000)).square().mean().backward()
            optimizer.step()
            state.step += 1
            over = hvd.allreduce(torch.full((1,), float(END.exists())), name="over", op=hvd.Max)
            if begins:
                begins = False
                with STEPPED.open("a") as file:
                    file.write(f"{time.monotonic()} {hvd.size()}\n")
            time.sleep(0.02)
            if state.step % 10 == 0:
                state.commit()

    train(state)


main()
