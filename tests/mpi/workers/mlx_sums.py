"""All that MLX does by MPI, on every rank; prints `ok` when the numbers are right."""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

group = mx.distributed.init(backend="mpi")
rank, size = group.rank(), group.size()

total = mx.distributed.all_sum(mx.full((1000,), rank + 1.0))
assert mx.all(total == size * (size + 1) / 2).item()
gathered = mx.distributed.all_gather(mx.array([[rank, -rank]]))
assert gathered.tolist() == [[other, -other] for other in range(size)]
assert mx.distributed.all_max(mx.array(rank)).item() == size - 1
half = mx.distributed.all_sum(mx.full((3,), 0.5, dtype=mx.bfloat16))
assert half.tolist() == [0.5 * size] * 3

# One step of training: each rank its own rows, the same model everywhere.
mx.random.seed(1)
model = nn.Linear(4, 1)
optimizer = optim.SGD(0.1)
rows = mx.random.normal((8, 4), key=mx.random.key(rank))


def loss(model, rows):
    return mx.mean(mx.square(model(rows) - mx.sum(rows, axis=1, keepdims=True)))


first = None
for _ in range(20):
    value, gradients = nn.value_and_grad(model, loss)(model, rows)
    optimizer.update(model, nn.average_gradients(gradients))
    mx.eval(model.parameters(), value)
    first = first or value.item()
weights = mx.distributed.all_gather(model.weight)
assert mx.all(weights == weights[0]).item()
assert value.item() < first / 2
print(f"ok {rank} of {size}", flush=True)
