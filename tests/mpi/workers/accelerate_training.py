"""Accelerate without a GPU: what it finds of the ranks, with nothing said."""

import sys

import torch
from accelerate import Accelerator, PartialState

if "state" in sys.argv:
    state = PartialState()
    print(f"ok {state.process_index} of {state.num_processes}", flush=True)
    sys.exit()

accelerator = Accelerator()
state = accelerator.state
torch.manual_seed(accelerator.process_index)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
for _ in range(3):
    loss = model(torch.full((4, 8), 1.0 + accelerator.process_index)).square().mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
weights = accelerator.gather(next(model.parameters()).detach().clone())
assert all(torch.equal(weights[0], row) for row in weights), weights
print(f"ok {accelerator.process_index} of {accelerator.num_processes}", flush=True)
