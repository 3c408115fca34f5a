"""A training as Horovod's documentation writes it: commits every 50 steps, and may be killed.

Arguments: steps in all, the step at which rank 1 is killed in the first attempt (0: never), whether
collectives fail. FORGET: another attempt finds no commit of rank 0's on its disk; with "host",
nor in its memory.
Rank 0 prints where it began and a hash of the parameters at the end.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import horovod.torch as hvd
import torch

STEPS, KILL_AT, FAIL_AT = (int(word) for word in sys.argv[1:4])
again = "SHANTY_ATTEMPT_DIR" in os.environ
kill_at = 0 if os.environ.get("UNHARMED") or again else KILL_AT

hvd.init()
if again and hvd.rank() == 0 and "FORGET" in os.environ:
    folders = [Path(os.environ.get("SHANTY_HOME") or Path.home() / ".shanty") / "commits"]
    if os.environ["FORGET"] == "host":
        folders.append(Path("/dev/shm", f"shanty-{os.environ['SHANTY_RUN_ID']}"))
    for path in [path for folder in folders for path in folder.glob("*.pt")]:
        path.unlink()
        print("forgotten", path, flush=True)
torch.manual_seed(hvd.rank())  # the broadcast makes them the same
generator = torch.Generator().manual_seed(7)
data = torch.randn(96, 5, generator=generator)
target = data @ torch.randn(5, 1, generator=generator)
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(range(96), seed=3)
failed = []


@hvd.elastic.run
def train(state):
    if hvd.rank() == 0:
        print("begins at", state.step, flush=True)
    while state.step < STEPS:
        indices = list(state.sampler)
        for start in range(0, len(indices), 8):
            batch = indices[start : start + 8]
            if kill_at and state.step == kill_at and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if FAIL_AT and state.step == FAIL_AT and not failed:
                failed.append(state.step)
                raise hvd.HorovodInternalError("as if a collective had failed")
            state.optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(state.model(data[batch]), target[batch])
            loss.backward()
            state.optimizer.step()
            state.sampler.record_batch(start // 8, len(batch))
            state.step += 1
            if state.step % 50 == 0:
                state.commit()
            if state.step == STEPS:
                break
        else:
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
    return "trained"


resets = []
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, step=0)
state.register_reset_callbacks([lambda: resets.append(state.step)])
assert train(state) == "trained"
weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
same = hvd.allgather(weights.unsqueeze(0))
assert torch.equal(same[0], same[-1])
assert len(resets) == len(failed)
if hvd.rank() == 0:
    print("ends with", hashlib.sha256(weights.numpy().tobytes()).hexdigest(), flush=True)
hvd.shutdown()
