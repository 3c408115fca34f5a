"""Optimizers of TensorFlow 1 in graphs and sessions, the broadcast hook, batch normalization, and
the states of elastic training. See run_checks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from checks import raised
from references import Array, adasum, close, given, reduced

import shanty.tensorflow as hvd

v1 = tf.compat.v1
START, RATE, MOMENTUM = 2.0, 0.125, 0.875  # which float32 has, too


def in_a_session(
    make: Callable[[Any], Any], steps: list[list[Array]], *, sparse: bool = False
) -> list[Array]:
    """The values of a variable after each step of an optimizer, whose gradients are given."""
    with tf.Graph().as_default():
        hvd.init()
        w = v1.get_variable("w", initializer=np.full(4, START), use_resource=True)
        other = v1.get_variable("other", initializer=1.0, use_resource=True)  # has no gradient
        slope = v1.placeholder(tf.float64, [4])
        used = tf.gather(w, [0, 1, 2, 3]) if sparse else w
        optimizer = make(v1.train.MomentumOptimizer(RATE, MOMENTUM))
        pairs = optimizer.compute_gradients(tf.reduce_sum(used * slope), [w, other])
        step = v1.train.get_or_create_global_step()
        train = optimizer.apply_gradients(pairs, global_step=step)
        found = []
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for slopes in steps:
                session.run(train, {slope: slopes[hvd.rank()]})
                found.append(session.run(w))
            assert session.run(step) == len(steps)
            if "Delta" not in optimizer.get_name():
                assert optimizer.get_slot_names() == ["momentum"]
                assert optimizer.get_slot(w, "momentum") is not None
        return found


def by_hand(gradients: list[Array | None]) -> list[Array]:
    """The same with these gradients; None: of a pass after which nothing is applied."""
    w, velocity, found = np.full(4, START), np.zeros(4), []
    for each in gradients:
        if each is not None:
            velocity = MOMENTUM * velocity + each
            w = w - RATE * velocity
        found.append(w)
    return found


def equal(found: list[Array], expected: list[Array], what: object = "") -> None:
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        close(one, other, (what, step), 1e-12)


STEPS = range(6)


def check_optimizer_in_a_session() -> None:
    steps = [given((4,), tf.float64, seed) for seed in STEPS]
    for op in (hvd.Average, hvd.Sum):
        found = in_a_session(lambda inner, op=op: hvd.DistributedOptimizer(inner, op=op), steps)
        equal(found, by_hand([reduced(each, op) for each in steps]), op.name)
    expected = by_hand([reduced(each, hvd.Average) for each in steps])
    for how in ({"groups": 1}, {"gradient_predivide_factor": 2.0}):
        found = in_a_session(lambda inner, how=how: hvd.DistributedOptimizer(inner, **how), steps)
        equal(found, expected, how)
    for as_dense in (False, True):
        make = lambda inner, d=as_dense: hvd.DistributedOptimizer(  # noqa: E731
            inner, sparse_as_dense=d
        )
        equal(in_a_session(make, steps, sparse=True), expected, as_dense)


def check_passes_in_a_session() -> None:
    """Gradients of two calls are added up; the second one applies them."""
    steps = [given((4,), tf.float64, seed) for seed in STEPS]
    for average in (False, True):
        make = lambda inner, average=average: hvd.DistributedOptimizer(  # noqa: E731
            inner, backward_passes_per_step=2, average_aggregated_gradients=average
        )
        gradients: list[Array | None] = []
        for first, second in zip(steps[::2], steps[1::2], strict=True):
            both = reduced(first, hvd.Average) + reduced(second, hvd.Average)
            gradients += [None, both / 2 if average else both]
        equal(in_a_session(make, steps), by_hand(gradients), average)


def check_adasum_in_a_session() -> None:
    """Each rank makes its step; the steps are combined, with each one's own momentum."""
    steps = [given((4,), tf.float64, seed) for seed in STEPS]
    found = in_a_session(lambda inner: hvd.DistributedOptimizer(inner, op=hvd.Adasum), steps)
    w, velocities, expected = np.full(4, START), [np.zeros(4)] * hvd.size(), []
    for slopes in steps:
        velocities = [MOMENTUM * v + g for v, g in zip(velocities, slopes, strict=True)]
        w = w + adasum([-RATE * v for v in velocities])
        expected.append(w)
    equal(found, expected)


def check_local_variables_in_a_session() -> None:
    steps = [given((4,), tf.float64, seed) for seed in STEPS]

    def make(inner: Any) -> Any:
        made = hvd.DistributedOptimizer(inner, scale_local_gradients=False)
        made.register_local_var(v1.global_variables()[0])
        return made

    equal(in_a_session(make, steps), by_hand([each[hvd.rank()] for each in steps]))


def check_operations_in_a_session() -> None:
    """Also in another order on another rank, and many at once, on a single thread."""
    count = 30
    order = list(range(count))
    if hvd.rank() % 2:
        order.reverse()
    lots = [given((3,), seed=n) for n in range(count)]
    with tf.Graph().as_default():
        hvd.init()
        made = {
            n: hvd.allreduce(tf.constant(lots[n][hvd.rank()]), op=hvd.Sum, name=f"s.{n}")
            for n in order
        }
        every = hvd.allgather(tf.fill([hvd.rank() + 1], hvd.rank()), name="g")
        threads = v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
        with v1.Session(config=threads) as session:
            for _ in range(3):
                for n, each in session.run(made).items():
                    close(each, reduced(lots[n], hvd.Sum), n)
                ranks = [rank for rank in range(hvd.size()) for _ in range(rank + 1)]
                assert session.run(every).tolist() == ranks


def check_broadcast_hook() -> None:
    root = hvd.size() - 1
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=np.full(3, float(hvd.rank())), use_resource=True)
        old = v1.get_variable("old", initializer=float(hvd.rank()), use_resource=False)
        hook = hvd.BroadcastGlobalVariablesHook(root)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            close(session.run(w), np.full(3, root))
            close(session.run(old), root)
    raised(RuntimeError, lambda: hvd.broadcast_global_variables(0))


def check_optimizer_where_eager() -> None:
    """An optimizer of TensorFlow 1 in TensorFlow 2, as it is and in a graph."""
    for wrap in (lambda each: each, tf.function):
        w = tf.Variable(np.full(4, START))
        optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(RATE, MOMENTUM))
        steps = [given((4,), tf.float64, seed) for seed in range(4)]

        def train(slope: Any, w: Any = w, optimizer: Any = optimizer) -> None:
            optimizer.minimize(lambda: tf.reduce_sum(w * slope), var_list=[w])

        step = wrap(train)
        found = []
        for slopes in steps:
            step(tf.constant(slopes[hvd.rank()]))
            found.append(w.numpy())
        equal(found, by_hand([reduced(each, hvd.Average) for each in steps]))


# ------------------------------------------------------------------- batch normalization


def batches(rows: list[int], *rest: int) -> list[Array]:
    return [given((count, *rest), seed=n, ranks=1)[0] for n, count in enumerate(rows)]


def check_batch_normalization() -> None:
    """Values, moving moments and gradients as those of one process with the whole batch."""
    size, rank = hvd.size(), hvd.rank()
    for rows, rest, axis in (
        ([4] * size, (3,), -1),
        ([2 + n for n in range(size)], (5,), -1),
        ([3 + n % 2 for n in range(size)], (4, 4, 3), -1),
        ([2] * size, (3, 4, 4), 1),
    ):
        many = batches(rows, *rest)
        weights = batches([10 * each for each in rows], *rest)
        weights = [each[: len(own)] for each, own in zip(weights, many, strict=True)]
        whole, factors = np.concatenate(many), np.concatenate(weights)
        start = sum(rows[:rank])
        mine = slice(start, start + rows[rank])
        single = tf.keras.layers.BatchNormalization(axis=axis, epsilon=1e-3)
        together = hvd.SyncBatchNormalization(axis=axis, epsilon=1e-3)
        assert together.name.startswith("sync_batch_normalization")
        values, gradients = [], []
        for layer, x, w in ((single, whole, factors), (together, many[rank], weights[rank])):
            compute = tf.function(training) if layer is together and rows[0] == 4 else training
            value, gradient, by_weights = compute(layer, tf.constant(x), tf.constant(w))
            values.append(value)
            gradients.append((gradient, by_weights))
        close(values[1], values[0].numpy()[mine], rows, 2e-4)
        close(gradients[1][0], gradients[0][0].numpy()[mine], rows, 2e-3)
        for one, other in zip(gradients[1][1], gradients[0][1], strict=True):
            close(hvd.allreduce(one, op=hvd.Sum), other, rows, 2e-3)
        close(together.moving_mean, single.moving_mean, rows, 1e-4)
        close(together.moving_variance, single.moving_variance, rows, 1e-4)
        still = together(tf.constant(many[rank]), training=False)
        close(still, single(tf.constant(whole), training=False).numpy()[mine], rows, 1e-4)
    raised(ValueError, lambda: hvd.SyncBatchNormalization(fused=True))


def training(layer: Any, x: Any, w: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = layer(x, training=True)
        loss = tf.reduce_sum(value * w)
    gradient, by_weights = tape.gradient(loss, [x, layer.trainable_variables])
    return value, gradient, by_weights


# --------------------------------------------------------------------------------- elastic


def check_elastic_variables() -> None:
    """A collective that fails in a graph takes all ranks back to the last commit."""
    w = tf.Variable(np.full(1, float(hvd.rank())))
    state = hvd.elastic.TensorFlowState([w], step=0)
    close(w, np.zeros(1))
    begun: list[int] = []

    @tf.function
    def step(rows: Any) -> None:
        w.assign_add(hvd.allreduce(rows, op=hvd.Sum, name="elastic")[:1])

    @hvd.elastic.run
    def train(state: Any) -> str:
        begun.append(state.step)
        while state.step < 10:
            # the third step has another shape on the last rank, once
            odd = hvd.rank() == hvd.size() - 1 and len(begun) == 1 and state.step == 7
            step(tf.ones(1 if odd else 2, tf.float64))
            state.step += 1
            if state.step % 5 == 0:
                state.commit()
        return "trained"

    assert train(state) == "trained"
    assert begun == [0, 5], begun
    close(w, np.full(1, 10.0 * hvd.size()))


def check_elastic_keras() -> None:
    tf.keras.utils.set_random_seed(hvd.rank())
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    unbuilt = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    raised(ValueError, lambda: hvd.elastic.TensorFlowKerasState(unbuilt))
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0)
    kept: list[list[Array]] = []
    begun: list[int] = []

    def values() -> list[Array]:
        return [each.numpy().copy() for each in state.variables()]

    @tf.function
    def step(x: Any, bad: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x) ** 2)
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
        hvd.allreduce(x[: 2 - tf.cast(bad, tf.int32)], name="elastic.keras")

    @hvd.elastic.run
    def train(state: Any) -> None:
        if begun:
            for one, other in zip(values(), kept[-1], strict=True):
                close(one, other)
        begun.append(state.epoch)
        while state.epoch < 6:
            bad = len(begun) == 1 and state.epoch == 4 and hvd.rank() == 0
            step(tf.fill((2, 2), hvd.rank() + 1.0), tf.constant(bad))
            state.epoch += 1
            if state.epoch == 3:
                state.commit()
                kept.append(values())

    train(state)
    assert begun == [0, 3], begun
    every = hvd.allgather_object([each.tobytes() for each in values()])
    assert all(each == every[0] for each in every)
