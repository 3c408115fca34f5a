"""A training as Horovod documents it: epochs over an ElasticSampler, a commit every 5 batches.

Rank 2 is killed in the first epoch, 3 batches after a commit, and comes back; `check_host_updates`
is asked after each batch. Another epoch follows when all are there. Each rank prints what happens
as a list in JSON, and in the end one object.
"""

import json
import os
import signal

import horovod.torch as hvd
import torch

SAMPLES, BATCH, LOST, AT = 1203, 4, 2, 13

torch.set_num_threads(1)
hvd.init()
seat = int(os.environ["SHANTY_SEAT"])
joined = hvd.rank() != seat  # it takes the place of a lost one, behind those that are left


def note(what, *values):
    print(json.dumps([joined, what, *values]), flush=True)


torch.manual_seed(seat)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), groups=1)
sampler = hvd.elastic.ElasticSampler(range(SAMPLES), seed=1)


class State(hvd.elastic.TorchState):
    def restore(self):
        super().restore()
        note("restore", self.step)

    def sync(self):
        super().sync()
        note("sync", self.step)

    def reset(self):
        note("reset", self.step)


def scale():
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * hvd.size()


state = State(model, optimizer, sampler=sampler, epoch=0, step=0, last=10**9)
state.register_reset_callbacks([lambda: note("first", hvd.size()), lambda: note("second"), scale])


@hvd.elastic.run
def train(state):
    note("begin", state.step, hvd.rank(), hvd.size(), weight())
    while state.epoch < state.last:
        indices = list(state.sampler)
        assert len(indices) == len(state.sampler)
        for number in range(0, len(indices), BATCH):
            part = indices[number : number + BATCH]
            optimizer.zero_grad()
            model(torch.ones(len(part), 8)).square().mean().backward()
            optimizer.step()
            state.sampler.record_batch(number // BATCH, len(part))
            state.step += 1
            note("batch", state.step, state.epoch, part)
            if state.step == AT and seat == LOST and not joined:
                os.kill(os.getpid(), signal.SIGKILL)
            if state.step % 5 == 0:
                state.commit()
            else:
                state.check_host_updates()
        if state.step > AT and hvd.size() == 4 and state.last > state.epoch + 2:
            state.last = state.epoch + 2
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)


def weight():
    return sum(each.detach().double().sum().item() for each in model.parameters())


train(state)
place = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
told = {"first": seat, "rank": hvd.rank(), "size": hvd.size(), "place": place, "sum": weight()}
print(json.dumps(told), flush=True)
