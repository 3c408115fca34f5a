"""A rank of `soak.py`: trains until the file `end` is there, and is lost when told to be.

Its argument is `torch` or `numpy`. `lose-N` in its folder holds how rank N is to be lost; `pid-N`
has its process.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SEAT = os.environ["RANK"]
ORDER, END, STEPPED = (Path(name).absolute() for name in (f"lose-{SEAT}", "end", "stepped"))


def lose(how: str) -> None:
    """End or stop this process."""
    if how == "exception":
        raise ValueError(f"planted {time.time()}")  # three of the same would be a bug
    if how == "sys.exit":
        sys.exit(0)
    if how == "os._exit":
        os._exit(0)
    faulthandler.disable()  # three crashes in the same place would be a bug, too
    number = getattr(signal, how)
    threading.Timer(0.003, os.kill, (os.getpid(), number)).start()  # in the next collective


def train(state: Any, step: Callable[[], bool], size: Callable[[], int]) -> None:
    """Make steps until one says that it is the last."""
    begins, over = True, False
    while not over:
        if ORDER.exists():
            how = ORDER.read_text()
            ORDER.unlink()
            lose(how)
        over = step()
        state.step += 1
        if begins:
            begins = False
            with STEPPED.open("a") as file:
                file.write(f"{time.monotonic()} {size()}\n")
        time.sleep(0.02)
        if state.step % 10 == 0:
            state.commit()


def with_torch() -> None:
    """Train a layer."""
    import torch

    import shanty.torch as hvd

    torch.set_num_threads(1)
    model = torch.nn.Linear(1000, 64)
    plain = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    hvd.init()
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

    def step() -> bool:
        optimizer.zero_grad()
        model(torch.ones(8, 1000)).square().mean().backward()
        optimizer.step()
        end = torch.full((1,), float(END.exists()))
        return bool(hvd.allreduce(end, name="over", op=hvd.Max))

    hvd.elastic.run(train)(state, step, hvd.size)


def with_numpy() -> None:
    """Add arrays up."""
    from shanty.collectives import array_calls, elastic, objects, world
    from shanty.collectives.api import init_of
    from shanty.collectives.process_sets import global_process_set as everyone
    from shanty.collectives.request import Op

    init = init_of("soak")
    init()
    arrays = [np.ones(64_000, np.float32), np.ones(64, np.float32)]
    state = elastic.ObjectState(
        lambda each: objects.broadcast_object(each, 0, "state", everyone), world.rank, step=0
    )

    def step() -> bool:
        given = [*arrays, np.full(1, float(END.exists()), np.float32)]
        how = (Op.SUM, 1.0, 1.0, everyone, False)
        requests = [array_calls.allreduce([each], f"{k}", *how) for k, each in enumerate(given)]
        for each in requests:
            array_calls.submit(each, everyone)
        return bool([each.wait() for each in requests][-1][0] > 0)

    form = elastic.Format(lambda path: pickle.loads(path.read_bytes()), pickle.dump)
    elastic.run_fn(train, lambda: world.restart(init), form)(state, step, world.size)


Path(f"pid-{SEAT}").write_text(str(os.getpid()))
{"torch": with_torch, "numpy": with_numpy}[sys.argv[1]]()
