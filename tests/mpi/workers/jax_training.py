"""JAX on the ranks of a run, as its own documents have it: nothing of shanty, nothing said.

Each rank has one device; sums over all of them, and a data-parallel training whose result is that
of one process.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()

rank, size = jax.process_index(), jax.process_count()
devices = jax.devices()
assert len(devices) == size, devices
assert [device.process_index for device in devices] == list(range(size))
assert jax.local_devices() == [devices[rank]]
mesh = Mesh(np.array(devices), ("ranks",))
split, whole = NamedSharding(mesh, P("ranks")), NamedSharding(mesh, P())

everyone = jax.make_array_from_process_local_data(split, np.array([rank + 1.0], np.float32))
total = jax.shard_map(
    lambda part: jax.lax.psum(part, "ranks"), mesh=mesh, in_specs=P("ranks"), out_specs=P()
)(everyone)
assert float(total[0]) == size * (size + 1) / 2, total

summed = jax.pmap(lambda part: jax.lax.psum(part, "i"), axis_name="i")(np.array([rank + 1.0]))
assert float(summed.addressable_data(0)[0]) == size * (size + 1) / 2, summed

random = np.random.default_rng(0)
inputs = random.normal(size=(48, 8)).astype(np.float32)
targets = (inputs @ random.normal(size=(8, 1))).astype(np.float32)


@jax.jit
def step(weights: jax.Array, batch: jax.Array, wanted: jax.Array) -> jax.Array:
    def loss(weights: jax.Array) -> jax.Array:
        return jnp.mean((batch @ weights - wanted) ** 2)

    return weights - 0.1 * jax.grad(loss)(weights)


each = len(inputs) // size
mine = slice(rank * each, (rank + 1) * each)
batch, wanted = (
    jax.make_array_from_process_local_data(split, array[mine]) for array in (inputs, targets)
)
weights = jax.device_put(jnp.zeros((8, 1)), whole)
reference = np.zeros((8, 1), np.float32)
for _ in range(20):
    weights = step(weights, batch, wanted)
    reference -= 0.1 * 2 * inputs.T @ (inputs @ reference - targets) / len(inputs)
np.testing.assert_allclose(np.asarray(weights.addressable_data(0)), reference, atol=1e-5)
print(f"ok {rank} of {size}", flush=True)
