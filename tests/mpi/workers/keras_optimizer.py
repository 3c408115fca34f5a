"""`DistributedOptimizer` with each of its arguments: exact values. Run on 2 ranks with
HOROVOD_DYNAMIC_PROCESS_SETS=1, through ../test_keras.py.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from checks import raised
from on_keras import (
    BACKEND,
    KERAS2,
    ON_TENSORFLOW,
    Model,
    cross_entropy,
    digits,
    hvd,
    keras,
    line,
    mean_output,
    part,
    same_everywhere,
    step,
    value,
    weights,
)

SGD = keras.optimizers.SGD


def gradient(number: int, rank: int | None = None, wide: int = 4) -> Any:
    """Of a step, on this rank or another one: small whole numbers."""
    return np.arange(wide) + 10.0 * (hvd.rank() if rank is None else rank) + number


def average(number: int) -> Any:
    return np.mean([gradient(number, rank) for rank in range(hvd.size())], 0)


def close(found: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    assert np.allclose(found, wanted, rtol=tolerance, atol=tolerance), (found, wanted)


def check_average_and_sum() -> None:
    close(step(line(hvd.DistributedOptimizer(SGD(1.0))), gradient(1)), -average(1))
    model = line(hvd.DistributedOptimizer(SGD(1.0), op=hvd.Sum))
    close(step(model, gradient(1)), -hvd.size() * average(1))
    close(step(model, gradient(2)), -hvd.size() * (average(1) + average(2)))


def check_several_passes() -> None:
    for averaged in (False, True):
        made = hvd.DistributedOptimizer(
            SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=averaged
        )
        model = line(made)
        share = 2 if averaged else 1
        close(step(model, gradient(1)), 0)
        first = -(average(1) + average(2)) / share
        close(step(model, gradient(2)), first)
        close(step(model, gradient(3)), first)
        close(step(model, gradient(5)), first - (average(3) + average(5)) / share)
        assert int(value(made.iterations)) == (4 if KERAS2 else 2)  # Keras 3 counts what it applied
    model = line(hvd.DistributedOptimizer(SGD(1.0), op=hvd.Sum, backward_passes_per_step=3))
    for number in (1, 2):
        close(step(model, gradient(number)), 0)
    wanted = -hvd.size() * (average(1) + average(2) + average(3))
    close(step(model, gradient(3)), wanted)


def check_several_passes_by_fit() -> None:
    model = line(hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2))
    rows = np.stack([gradient(number) for number in range(6)]).astype("float32")
    model.fit(rows, np.zeros((6, 1)), batch_size=1, epochs=1, shuffle=False, verbose=0)
    close(value(model.weights[0])[:, 0], -sum(average(number) for number in range(6)))


def two_lines(optimizer: Any, **compiled: Any) -> Model:
    """Two kernels; each step's gradients are the two inputs."""
    dense = [keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros") for _ in range(2)]
    inputs = [keras.Input((3,)), keras.Input((5,))]
    outputs = [layer(each) for layer, each in zip(dense, inputs, strict=True)]
    model = keras.Model(inputs, keras.layers.Add()(outputs))
    model.compile(optimizer=optimizer, loss=mean_output, **compiled)
    return model


def step_both(model: Model) -> None:
    both = [gradient(1, wide=wide)[None].astype("float32") for wide in (3, 5)]
    model.train_on_batch(both, np.zeros((1, 1), "float32"))


def check_groups() -> None:
    def grouped(groups: Any) -> None:
        model = two_lines(SGD(1.0))
        how = groups(model) if callable(groups) else groups
        made = hvd.DistributedOptimizer(SGD(1.0), groups=how, gradient_predivide_factor=4.0)
        model.compile(optimizer=made, loss=mean_output)
        step_both(model)
        for variable in model.weights:
            rows = [gradient(1, rank, wide=len(value(variable))) for rank in range(hvd.size())]
            close(value(variable)[:, 0], -np.mean(rows, 0))

    for groups in (1, 2, 7):
        grouped(groups)
    grouped(lambda model: [model.trainable_variables])
    grouped(lambda model: [model.trainable_variables[:1]])
    raised(ValueError, lambda: hvd.DistributedOptimizer(SGD(1.0), groups=0), "groups=0")


def check_half_precision_on_the_way() -> None:
    model = line(hvd.DistributedOptimizer(SGD(1.0), compression=hvd.Compression.fp16))
    mine = np.array([1 / 3, 1e-3, 100.1, -7]) * (1 + hvd.rank())
    every = [np.array([1 / 3, 1e-3, 100.1, -7]) * (1 + rank) for rank in range(hvd.size())]
    found = step(model, mine)
    close(found, -np.mean(every, 0), 2e-3)
    assert not np.allclose(found, -np.mean(every, 0), rtol=1e-7, atol=0)
    assert same_everywhere(found)


def check_process_sets() -> None:
    alone = hvd.add_process_set([0])
    model = line(hvd.DistributedOptimizer(SGD(1.0), process_set=alone))
    close(step(model, gradient(1)), -gradient(1))  # each its own
    made = hvd.DistributedOptimizer(SGD(1.0), process_set=hvd.global_process_set)
    assert made.process_set is hvd.global_process_set
    close(step(line(made), gradient(1)), -average(1))
    hvd.remove_process_set(alone)


def check_registered_local_variables() -> None:
    for scaled in (True, False):
        made = hvd.DistributedOptimizer(SGD(1.0), scale_local_gradients=scaled)
        assert made.scale_local_gradients is scaled
        model = two_lines(made)
        made.register_local_var(model.trainable_variables[0])
        step_both(model)
        share = hvd.size() if scaled else 1
        close(value(model.weights[0])[:, 0], -gradient(1, wide=3) / share)
        wanted = np.mean([gradient(1, rank, wide=5) for rank in range(hvd.size())], 0)
        close(value(model.weights[1])[:, 0], -wanted)
    partial = hvd.PartialDistributedOptimizer
    words = "All local layers must be of tf.keras.layers.Layer type."
    raised(ValueError, lambda: partial(SGD(1.0), local_layers=[1]), words)


def check_gradients_that_are_none() -> None:
    """A variable that nothing depends on has none."""
    if BACKEND == "jax":
        return  # whose gradient is 0 there
    inputs = keras.Input((4,))
    used, unused = (keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros") for _ in "12")
    for passes in (1, 2):
        output = used(inputs)
        unused(inputs)
        model = keras.Model(inputs, output)
        model.extra = unused  # tracked
        made = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=passes)
        model.compile(optimizer=made, loss=mean_output)
        before = value(used.weights[0])[:, 0]
        with contextlib.redirect_stderr(io.StringIO()):
            for number in range(passes):
                step(model, gradient(number))
        wanted = before - sum(average(number) for number in range(passes))
        close(value(used.weights[0])[:, 0], wanted)


def check_sparse_gradients() -> None:
    """Rows of an embedding: a rank looks up 0 and 1, the other one 1 and 2, some of them twice."""
    if not ON_TENSORFLOW:
        return
    for dense in (False, True):
        for passes in (1, 2) if dense else (1,):
            inputs = keras.Input((3,), dtype="int32")
            table = keras.layers.Embedding(4, 2, embeddings_initializer="zeros")
            outputs = keras.layers.GlobalAveragePooling1D()(table(inputs))
            model = keras.Model(inputs, outputs)
            made = hvd.DistributedOptimizer(
                SGD(6.0), sparse_as_dense=dense, backward_passes_per_step=passes
            )
            model.compile(optimizer=made, loss=mean_output)
            mine = np.array([[0, 0, 1]], "int32") + hvd.rank()
            for _ in range(passes):
                model.train_on_batch(mine, np.zeros((1, 2), "float32"))
            # 1/3 by the pooling, 1/2 by the mean of two outputs: a look-up is worth 1
            looked_up = np.array([2, 1 + 2, 1, 0]) / 2 * passes
            close(value(model.weights[0]), -np.stack([looked_up] * 2, 1))


def check_run_eagerly() -> None:
    model = line(hvd.DistributedOptimizer(SGD(1.0)), run_eagerly=True)
    close(step(model, gradient(1)), -average(1))
    made = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2)
    model = line(made, run_eagerly=True)
    close(step(model, gradient(1)), 0)
    close(step(model, gradient(2)), -average(1) - average(2))


@contextlib.contextmanager
def stderr() -> Iterator[io.StringIO]:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        yield said


def check_jit_compile() -> None:
    """XLA cannot call MPI: that is said once, and training goes on without it."""
    if BACKEND == "torch" and "SHANTY_TEST_LONG" not in os.environ:
        return  # torch.compile takes a minute
    with stderr() as said:
        for _ in range(2):
            model = line(hvd.DistributedOptimizer(SGD(1.0)), jit_compile=True)
            close(step(model, gradient(1)), -average(1))
            made = hvd.DistributedOptimizer(SGD(1.0, jit_compile=True) if KERAS2 else SGD(1.0))
            close(step(line(made, jit_compile=True), gradient(1)), -average(1))
    lines = said.getvalue().splitlines()
    if ON_TENSORFLOW and hvd.rank() == 0:
        assert lines == ["shanty.keras: jit_compile is off: XLA cannot call MPI."], lines
    else:
        assert not any("shanty" in each for each in lines), lines


def check_mixed_precision() -> None:
    """A step that overflows on one rank is left out by all, and the scale is the same on all."""
    x, y = digits()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        for outside in (True, False):
            keras.utils.set_random_seed(1)
            model = keras.Sequential(
                [
                    keras.layers.InputLayer((64,)),
                    keras.layers.Dense(32, activation="relu"),
                    keras.layers.Dense(10, dtype="float32"),
                ]
            )
            scale = keras.mixed_precision.LossScaleOptimizer
            if outside:
                optimizer = scale(hvd.DistributedOptimizer(SGD(0.5)))
            else:
                optimizer = hvd.DistributedOptimizer(scale(SGD(0.5)))
            model.compile(optimizer=optimizer, loss=cross_entropy(), metrics=["accuracy"])
            rows = x.copy()
            if hvd.rank() == 1:
                rows[:1] = 1e8  # too much for float16: the first batch of this rank has no gradient
            rows, labels = part(rows[:1024], 128), part(y[:1024], 128)
            if hvd.rank() == 1:
                rows[0] = 1e8
            before = weights(model)
            model.train_on_batch(rows[:64], labels[:64])
            assert np.all(np.isfinite(weights(model)))
            assert np.array_equal(before, weights(model))
            model.fit(rows[64:], labels[64:], batch_size=64, epochs=4, verbose=0)
            assert same_everywhere(weights(model))
            assert not np.array_equal(before, weights(model))
            accuracy = model.evaluate(x, y, verbose=0)[1]
            assert accuracy > 0.7, accuracy
    finally:
        keras.mixed_precision.set_global_policy("float32")


def check_saved_models() -> None:
    """Loaded with hvd.load_model they go on as they would have; Keras alone loads them, too."""
    x, y = digits()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.InputLayer((64,)), keras.layers.Dense(10)])
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(1e-2)), loss=cross_entropy()
    )
    mine = part(x[:256], 128), part(y[:256], 128)
    model.fit(*mine, batch_size=64, epochs=2, shuffle=False, verbose=0)
    with TemporaryDirectory() as folder:
        files = [Path(folder, "model.keras"), Path(folder, "model.h5")]
        for file in files:
            with stderr():
                model.save(file)
        plain = keras.models.load_model(files[0])
        assert type(plain.optimizer).__name__ == "Adam"
        assert not hasattr(plain.optimizer, "register_local_var")
        loaded = [hvd.load_model(file) for file in files]
    steps = int(value(model.optimizer.iterations))
    model.fit(*mine, batch_size=64, epochs=2, shuffle=False, verbose=0)
    for each in loaded:
        assert hasattr(each.optimizer, "register_local_var")
        assert int(value(each.optimizer.iterations)) == steps
        each.fit(*mine, batch_size=64, epochs=2, shuffle=False, verbose=0)
        close(weights(each), weights(model))
        assert same_everywhere(weights(each))


class OwnSGD(SGD):  # type: ignore[misc]
    """An optimizer that is not Keras's."""


def check_saved_models_with_classes_of_ones_own() -> None:
    model = line(hvd.DistributedOptimizer(OwnSGD(1.0)))
    model.compile(optimizer=model.optimizer, loss="mse")
    model.train_on_batch(np.ones((1, 4), "float32"), np.zeros((1, 1), "float32"))
    with TemporaryDirectory() as folder:
        file = Path(folder, "model.keras")
        model.save(file)
        found = hvd.load_model(file, custom_optimizers=[OwnSGD])
        assert isinstance(found.optimizer, OwnSGD)
        again = hvd.load_model(file, custom_objects={"OwnSGD": OwnSGD})
        assert isinstance(again.optimizer, OwnSGD)


class Falling(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """1, 1/2, 1/3 …"""

    def __call__(self, step: Any) -> Any:
        return 1.0 / ((keras.backend if KERAS2 else keras.ops).cast(step, "float32") + 1.0)

    def get_config(self) -> dict[str, Any]:
        return {}


def check_a_schedule_of_ones_own() -> None:
    model = line(hvd.DistributedOptimizer(SGD(Falling())))
    close(step(model, gradient(1)), -average(1))
    close(step(model, gradient(4)), -average(1) - average(4) / 2)


def check_what_is_refused() -> None:
    made = hvd.DistributedOptimizer(SGD(1.0))
    assert isinstance(made, SGD)
    assert type(made).__name__ == "SGD"
    wrap = hvd.DistributedOptimizer
    raised(ValueError, lambda: wrap(made), "SGD is distributed already")
    raised(ValueError, lambda: wrap("sgd"), "not str", "keras.optimizers.get")
    raised(ValueError, lambda: wrap(SGD(1.0), op=3), "Average and Sum")
    words = "gradient_predivide_factor works with op=Average only"
    raised(ValueError, lambda: wrap(SGD(1.0), op=hvd.Sum, gradient_predivide_factor=2.0), words)


def check_the_state_is_taken_over() -> None:
    """Wrapped after some steps, also of its momentum."""
    plain = SGD(1.0, momentum=0.5)
    model = line(plain)
    step(model, average(1))
    made = hvd.DistributedOptimizer(plain)
    model.compile(optimizer=made, loss=mean_output)
    found = step(model, gradient(2))
    close(found, -average(1) - (average(2) + 0.5 * average(1)))
    assert int(value(made.iterations)) == 2


def check_steps_of_ones_own() -> None:
    """In a loop of one's own Keras 3 reduces in `apply`; Keras 2 in `minimize`."""
    if KERAS2:
        import tensorflow as tf

        variable = tf.Variable(np.zeros(4, np.float32))
        made = hvd.DistributedOptimizer(SGD(1.0))
        row = tf.constant(gradient(1), tf.float32)
        made.minimize(lambda: tf.reduce_sum(variable * row), [variable])
        for legacy in (False, True):  # which has the one or the other of these methods
            kinds = keras.optimizers.legacy if legacy else keras.optimizers
            other = hvd.DistributedOptimizer(kinds.SGD(1.0))
            for compute in (other.compute_gradients, other._compute_gradients):
                ((found, _),) = compute(lambda: tf.reduce_sum(variable * row), [variable])
                close(found, average(1))
    else:
        variable = keras.Variable(np.zeros(4, np.float32))
        made = hvd.DistributedOptimizer(SGD(1.0))
        made.build([variable])
        row = keras.ops.convert_to_tensor(gradient(1), "float32")
        if BACKEND == "torch":
            import torch

            with torch.no_grad():
                made.apply([row], [variable])
        else:
            made.apply_gradients([(row, variable)])
    close(value(variable), -average(1))


def check_a_tape_and_an_optimizer() -> None:
    """Both wrapped, gradients are reduced twice with Keras 3: that is said once."""
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    import shanty.tensorflow as on_tensorflow

    made = hvd.DistributedOptimizer(SGD(1.0))
    variable = keras.Variable(np.zeros(4, np.float32))
    made.build([variable])
    row = tf.constant(gradient(1), tf.float32)
    with stderr() as said:
        for _ in range(2):
            with on_tensorflow.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(variable * row)
            made.apply_gradients([(tape.gradient(loss, variable.value), variable)])
    lines = [each for each in said.getvalue().splitlines() if "reduced twice" in each]
    assert len(lines) == (hvd.rank() == 0), lines
    close(value(variable), -2 * average(1))
    sys.stderr.flush()
