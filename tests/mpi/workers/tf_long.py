"""Many steps of a tf.function with a distributed tape: memory stays flat, and no thread, file or
request is left. Argument: the number of steps. Run through ../test_tf_long.py.
"""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path
from typing import Any

import tensorflow as tf
from tf_harness import raised, run

import shanty.tensorflow as hvd

STEPS = int(sys.argv[1])
WARM = STEPS // 5  # steps after which everything that stays is there
GROWTH = 2 << 20  # bytes that resident memory may grow by afterwards
BOUND = 550.0  # seconds
OBJECTS = 250  # of Python that may be there afterwards and were not before


def resident() -> int:
    """Bytes of this process in memory, without shared segments: these have one size from the start,
    and of their pages ever more are used.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon:")))


def held() -> tuple[int, int]:
    """Threads of Python and open files."""
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


def measured() -> tuple[int, int, tuple[int, int]]:
    """Objects of Python, bytes and what is held; the list of all objects is memory itself."""
    objects = len(gc.get_objects())
    return objects, resident(), held()


def check_steps() -> None:
    weights = [tf.Variable(tf.ones((64, 64)) / 64), tf.Variable(tf.ones((64, 1)))]
    batch = tf.random.stateless_normal((8, 64), [1, hvd.rank()])

    @tf.function
    def step(x: Any) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((tf.nn.relu(x @ weights[0]) @ weights[1]) ** 2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-3 * gradient)
        return hvd.allreduce(loss, name="loss")

    before = measured()
    for number in range(STEPS):
        if number % 500 == 0:
            gc.collect()  # of so many objects it takes its time to do so by itself
        if number == WARM:
            before = measured()
        step(batch)
        if number % 10 == 0:
            hvd.allreduce(tf.ones(900, tf.bfloat16), name=f"new.{number}")
            hvd.allgather(tf.ones((hvd.rank() + 1, 2)))
            # in a graph, TensorFlow itself would keep a list of each failure
            raised(ValueError, lambda: hvd.alltoall(batch, splits=[99] * hvd.size()))
    gc.collect()
    after = measured()
    objects, grown = after[0] - before[0], after[1] - before[1]
    print(f"rank {hvd.rank()}: {grown} bytes and {objects} objects more", flush=True)
    assert objects < OBJECTS, f"{objects} objects more"
    assert after[2] == before[2], (after, before)
    assert grown < GROWTH, f"{grown} bytes more after {STEPS} steps than after {WARM}"
    sums = [each.numpy().tobytes() for each in weights]
    assert all(each == sums for each in hvd.allgather_object(sums)), "the models have parted"


if __name__ == "__main__":
    hvd.init()
    run([check_steps], bound=BOUND)
    hvd.shutdown()
