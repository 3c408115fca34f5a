"""Callbacks, exact metrics and `shard`. Run on 2 ranks, through ../test_keras.py."""

from __future__ import annotations

import contextlib
import io
from types import SimpleNamespace
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
    same_everywhere,
    value,
)

RANK_OF = hvd.rank
UNEVEN = {0: slice(0, 70), 1: slice(70, 101)}  # of the first 101 images


def classifier(metrics: bool = True) -> Model:
    model = keras.Sequential([keras.layers.InputLayer((64,)), keras.layers.Dense(10)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-2))
    model.compile(
        optimizer=optimizer, loss=cross_entropy(), metrics=["accuracy"] if metrics else None
    )
    return model


class Logs(keras.callbacks.Callback):  # type: ignore[misc]
    """What the callbacks before this one have made of the logs of epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[dict[str, float]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append({name: float(each) for name, each in logs.items()})


class Rates(keras.callbacks.Callback):  # type: ignore[misc]
    """The learning rate of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.found.append(float(value(self.model.optimizer.learning_rate)))


def mine(array: Any) -> Any:
    return array[UNEVEN[RANK_OF()]]


def close(found: float, wanted: float) -> None:
    assert abs(found - wanted) < 1e-6 * max(1, abs(wanted)), (found, wanted)


def check_metrics_are_averaged() -> None:
    """Those of the training; those of validation are exact, though the parts are not alike."""
    x, y = digits()
    model = classifier()
    own, all_ranks = Logs(), Logs()
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), own]
    callbacks += [hvd.callbacks.MetricAverageCallback(), all_ranks]
    part = slice(101 + 64 * RANK_OF(), 165 + 64 * RANK_OF())
    done = model.fit(
        x[part], y[part], batch_size=16, epochs=1, verbose=0, callbacks=callbacks,
        validation_data=(mine(x), mine(y)),
    )  # fmt: skip
    (before,), (after,) = own.epochs, all_ranks.epochs
    assert set(before) == set(after) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert not same_everywhere(before["loss"])
    for name in ("loss", "accuracy"):
        close(after[name], float(hvd.allreduce(np.float64(before[name]))))
        close(done.history[name][0], after[name])
    whole = model.evaluate(x[:101], y[:101], batch_size=101, verbose=0, return_dict=True)
    for name in ("loss", "accuracy"):
        close(after[f"val_{name}"], whole[name])


def check_several_metrics_and_none() -> None:
    x, y = digits()
    model = classifier(metrics=False)
    logs = Logs()
    callbacks = [hvd.callbacks.MetricAverageCallback(), logs]
    model.fit(mine(x), mine(y), batch_size=31, epochs=1, steps_per_epoch=1, verbose=0,
              callbacks=callbacks)  # fmt: skip
    assert set(logs.epochs[0]) == {"loss"}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, None)
    top = keras.metrics.SparseTopKCategoricalAccuracy(3, name="top3")
    model.compile(optimizer=model.optimizer, loss=cross_entropy(), metrics=["accuracy", top])
    assert set(evaluated(model, batch_size=16, return_dict=True)) == {"loss", "accuracy", "top3"}


def evaluated(model: Model, **how: Any) -> list[Any]:
    """The names, or places, of what `hvd.evaluate` finds: what Keras finds on all images."""
    x, y = digits()
    both = (
        hvd.evaluate(model, mine(x), mine(y), verbose=0, **how),
        model.evaluate(x[:101], y[:101], verbose=0, **how),
    )
    assert np.shape(both[0]) == np.shape(both[1])
    found, whole = (e if isinstance(e, dict) else dict(enumerate(np.ravel(e))) for e in both)
    assert set(found) == set(whole)
    for name in whole:
        close(found[name], whole[name])
    return list(whole)


def check_evaluate() -> None:
    """The last batches are uneven, and the ranks have other numbers of batches: 5 and 2."""
    x, y = digits()
    model = classifier()
    model.set_weights([np.asarray(hvd.broadcast(each, 0)) for each in model.get_weights()])
    assert len(evaluated(model, batch_size=16)) == 2
    model.compile(optimizer=model.optimizer, loss=cross_entropy())
    evaluated(model)
    own = model.evaluate(mine(x), mine(y), verbose=0)
    assert not same_everywhere(np.float32(own))


def check_warmup() -> None:
    x, y = digits()
    model = classifier()
    rates, logs = Rates(), Logs()
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.5, warmup_epochs=2, verbose=1)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        model.fit(x[:80], y[:80], batch_size=16, epochs=3, verbose=0,
                  callbacks=[warmup, rates, logs])  # fmt: skip
    size, steps = hvd.size(), 5
    for epoch in range(3):
        for batch in range(steps):
            past = epoch + batch / steps + 1 / steps
            wanted = 0.5 / size * (past * (size - 1) / 2 + 1) if epoch < 2 else 0.5
            close(rates.found[epoch * steps + batch], wanted)
        close(logs.epochs[epoch]["lr"], rates.found[epoch * steps + steps - 1])
    close(rates.found[2 * steps - 1], 0.5)  # exactly where the warmup ends
    line = "\nEpoch 2: finished gradual learning rate warmup to 0.5.\n"
    assert said.getvalue() == (line if hvd.rank() == 0 else ""), said.getvalue()


def check_schedules() -> None:
    """The rates of the steps, 2 an epoch."""
    schedule = hvd.callbacks.LearningRateScheduleCallback
    falling = lambda epoch: 1 / (1 + epoch)  # noqa: E731
    rising = schedule(0.2, lambda epoch: 1 + epoch, staircase=False, steps_per_epoch=4)
    x, y = digits()
    for callback, wanted in (
        # a number is a base; after the last epoch it stays
        (schedule(0.2, 0.5, start_epoch=1, end_epoch=3), [0.01] * 2 + [0.2] * 2 + [0.1] * 4),
        (schedule(0.2, falling), [0.2, 0.2, 0.1, 0.1, 0.2 / 3, 0.2 / 3, 0.05, 0.05]),
        (schedule(0.2, falling, staircase=False), [0.2, 0.2 / 1.5, 0.1, 0.2 / 2.5]),
        (rising, [0.2, 0.25, 0.4, 0.45]),
    ):
        rates, epochs = Rates(), len(wanted) // 2
        classifier().fit(
            x[:32], y[:32], batch_size=16, epochs=epochs, verbose=0, callbacks=[callback, rates]
        )
        for one, other in zip(rates.found, wanted, strict=True):
            close(one, other)


def check_schedules_that_are_refused() -> None:
    schedule = hvd.callbacks.LearningRateScheduleCallback
    raised(ValueError, lambda: schedule(None, 0.5), "`initial_lr` is required")
    callback = schedule(0.1, lambda epoch: 1.0, staircase=False)
    callback.set_params({})
    words = "steps_per_epoch parameter to the LearningRateScheduleCallback"
    raised(ValueError, callback.on_train_begin, words)


def check_momentum_correction() -> None:
    """With optimizers whose momentum is a variable; a number has become a part of the step."""
    schedule = hvd.callbacks.LearningRateScheduleCallback
    optimizers = keras.optimizers
    old = getattr(optimizers, "legacy", optimizers) if KERAS2 else optimizers
    seen: list[float] = []

    class Momenta(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.append(float(value(self.model.optimizer.momentum)))

    x, y = digits()
    for corrected in (True, False):
        seen.clear()
        model = classifier(False)
        made = hvd.DistributedOptimizer(old.SGD(0.1, momentum=0.8))
        model.compile(optimizer=made, loss=cross_entropy())
        callback = schedule(0.1, lambda epoch: (1, 0.5)[int(epoch)], momentum_correction=corrected)
        model.fit(x[:32], y[:32], batch_size=16, epochs=2, verbose=0,
                  callbacks=[callback, Momenta()])  # fmt: skip
        changed = 0.4 if corrected and KERAS2 else 0.8
        for one, other in zip(seen, [0.8, 0.8, changed, 0.8], strict=True):
            close(one, other)


class State(SimpleNamespace):
    """Counts its commits."""

    def commit(self) -> None:
        self.commits.append((self.epoch, self.batch))


def check_callbacks_of_states() -> None:
    x, y = digits()
    model = classifier()
    state = State(epoch=0, batch=0, commits=[])
    elastic = hvd.elastic
    callbacks = [elastic.UpdateBatchStateCallback(state), elastic.UpdateEpochStateCallback(state)]
    callbacks.append(elastic.CommitStateCallback(state, batches_per_commit=2))
    assert callbacks[-1].batches_remaining == 2
    model.fit(x[:80], y[:80], batch_size=16, epochs=2, verbose=0, callbacks=callbacks)
    # after batches 1 and 3, at the end of the epoch; then after batches 0, 2 and 4, and the end
    assert state.commits == [(0, 1), (0, 3), (1, 0), (1, 0), (1, 2), (1, 4), (2, 0)], state.commits
    model.fit(x[:80], y[:80], batch_size=16, epochs=1, verbose=0, callbacks=callbacks[:2])
    assert state.epoch == 3


def check_shard() -> None:
    whole = np.arange(7)
    want = whole[hvd.rank() :: hvd.size()]
    assert np.array_equal(hvd.shard(whole), want)
    assert hvd.shard(list(range(7))) == want.tolist()
    x, y = hvd.shard((np.stack([whole, whole], 1), whole))
    assert np.array_equal(x[:, 1], want)
    assert np.array_equal(y, want)
    named = hvd.shard({"a": whole, "b": (whole, [whole])})
    assert np.array_equal(named["b"][1][0], want)
    assert np.array_equal(named["a"], want)
    assert hvd.shard([]) == []
    raised(ValueError, lambda: hvd.shard(iter([1, 2])), "hvd.rank() and hvd.size()")
    if ON_TENSORFLOW:
        import tensorflow as tf

        data = hvd.shard(tf.data.Dataset.from_tensor_slices(whole)).batch(2)
        assert np.array_equal(np.concatenate(list(data.as_numpy_iterator())), want)
    if BACKEND == "torch":
        import torch

        assert torch.equal(hvd.shard(torch.arange(7)), torch.from_numpy(want))


def check_best_model_checkpoint() -> None:
    callback = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    assert callback.filepath is None
    assert callback.save_best_only


def check_values() -> None:
    total = hvd.size() * (hvd.size() + 1) / 2
    mine = np.full(3, hvd.rank() + 1, np.float32)
    assert np.allclose(hvd.allreduce(mine), total / hvd.size())
    assert np.allclose(hvd.allreduce(mine, op=hvd.Sum), total)
    tensor = keras.backend.variable(mine) if KERAS2 else keras.ops.convert_to_tensor(mine)
    assert np.allclose(hvd.allreduce(tensor, op=hvd.Sum), total)
    assert np.allclose(hvd.allreduce(mine, compression=hvd.Compression.fp16), total / hvd.size())
    assert hvd.allgather(mine).shape == (3 * hvd.size(),)
    assert np.allclose(hvd.broadcast(mine, 1), 2)
    rows = np.arange(hvd.size(), dtype=np.float64)
    assert np.allclose(hvd.reducescatter(rows, op=hvd.Sum), hvd.rank() * hvd.size())
    model = line(keras.optimizers.SGD(0.1))
    assert np.allclose(hvd.broadcast(model.weights[0], 0), 0)
