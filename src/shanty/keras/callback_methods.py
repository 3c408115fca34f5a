"""The methods of the callbacks, without Keras's base class, of which there are two.

`callbacks` adds that of `keras`, `shanty.tensorflow.keras.callbacks` that of `tf.keras`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from shanty.collectives import world
from shanty.collectives.request import Op
from shanty.keras import evaluation, values, variables


class Broadcast:
    """Gives all ranks the model's and the optimizer's variables of one rank, once.

    That is before the first batch if all ranks have their variables by then, else after it.
    """

    model: Any

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        """root_rank: the rank that sends. device: has no effect.
        local_variables: a variable, or several, that each rank keeps.
        """
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local: list[Any] = []
        if local_variables is not None:
            many = isinstance(local_variables, Iterable) and not hasattr(local_variables, "assign")
            for each in local_variables if many else [local_variables]:
                if not hasattr(each, "assign"):
                    raise ValueError("All local variables must be of tf.Variable type.")
                self.register_local_var(each)

    def register_local_var(self, var: Any) -> None:
        """Leave a variable alone: it stays this rank's own."""
        self._local.append(var)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before the first batch."""
        if self.broadcast_done or _session(self.model) is not None:
            return
        built = self.model.built and variables.build(self.model.optimizer, self.model)
        if values.reduced(np.array(built, np.int32), "variables.are.built", Op.SUM) == world.size():
            self._send()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """After the first batch."""
        if not self.broadcast_done:
            self._send()

    def _send(self) -> None:
        self.broadcast_done = True
        session = _session(self.model)
        if session is not None:
            variables.broadcast_globals(self.root_rank, session)
            return
        variables.settle(self.model)
        local = {id(each) for each in self._local}
        own = [each for each in variables.of_model(self.model) if id(each) not in local]
        known = {id(each) for each in own}
        its = variables.of_optimizer(self.model.optimizer)
        its = [each for each in its if id(each) not in known]
        variables.broadcast([*own, *its], self.root_rank)


class MetricAverage:
    """Averages the metrics of an epoch over the ranks; those of `validation_data` are exact.

    Each sample counts the same, even if the parts of the validation data have different sizes (see
    `evaluation`). Put it before callbacks that use metrics.
    """

    model: Any

    def __init__(self, device: str = "") -> None:
        """device: has no effect."""
        super().__init__()
        self.device = device
        self._validated: dict[str, float] = {}

    def on_test_end(self, logs: Any = None) -> None:
        """Take the metrics of all ranks, for the end of the epoch."""
        if _session(self.model) is None:
            self._validated = evaluation.results(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replace each value in `logs` by that of all ranks."""
        if not logs:
            return
        names = sorted(logs)
        mine = np.array([float(logs[name]) for name in names], np.float64)
        averages = values.reduced(mine, "MetricAverageCallback", Op.AVERAGE)
        logs.update(zip(names, map(float, averages), strict=True))
        exact = {f"val_{name}": value for name, value in self._validated.items()}
        logs.update({name: value for name, value in exact.items() if name in logs})
        self._validated = {}


class Schedule:
    """Sets the learning rate while `start_epoch` <= epoch < `end_epoch`."""

    model: Any
    params: Any

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """initial_lr: what is multiplied. multiplier: a function of the epoch, which is a fraction
        unless `staircase`; or a number, whose power by the epochs since the start is meant.
        momentum_correction: whether the momentum of a batch is changed in proportion.
        steps_per_epoch: asked of Keras where it is None. Raises ValueError where that has none.
        """
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._momentum: Any = None
        if callable(multiplier):
            self.multiplier: Callable[[float], float] = multiplier
        else:
            factor = float(multiplier)
            self.multiplier = lambda epoch: factor ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Find out the number of steps of an epoch."""
        if self.staircase or self.steps_per_epoch:
            return
        steps = self.params.get("steps")
        if not steps and self.params.get("samples") and self.params.get("batch_size"):
            steps = self.params["samples"] // self.params["batch_size"]
        if not steps:
            raise ValueError(
                "Could not autodetect the number of steps per epoch. Please specify the "
                f"steps_per_epoch parameter to the {type(self).__name__}()."
            )
        self.steps_per_epoch = steps

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Take note of the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate, of this batch or, where it is a staircase, of the epoch."""
        end = self.end_epoch
        if self.current_epoch < self.start_epoch or (end is not None and self.current_epoch >= end):
            return
        if not self.staircase:
            self._set(self.current_epoch + batch / (self.steps_per_epoch or 1))
        elif batch == 0:
            self._set(self.current_epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Put the momentum back."""
        if self._momentum is not None:
            self.model.optimizer.momentum = self._momentum
            self._momentum = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note the rate in `logs`, as "lr"."""
        if logs is not None:
            logs["lr"] = self._rate()

    def _set(self, epoch: float) -> None:
        before, now = self._rate(), self.initial_lr * self.multiplier(epoch)
        optimizer = self.model.optimizer
        variables.settle(self.model)
        optimizer.learning_rate = now
        # A number in a compiled step cannot be changed any more.
        momentum = getattr(optimizer, "momentum", None)
        if self.momentum_correction and hasattr(momentum, "assign") and before:
            held = self._number(momentum)
            if held:
                self._momentum = held
                optimizer.momentum = held * now / before

    def _rate(self) -> float:
        return self._number(self.model.optimizer.learning_rate)

    def _number(self, variable: Any) -> float:
        session = _session(self.model)
        return float(
            session.run(variable) if session is not None else variables.read([variable])[0]
        )


class Warmup(Schedule):
    """Raises the learning rate from `initial_lr` / ranks to `initial_lr`, batch by batch.

    Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """initial_lr: that of all ranks together. warmup_epochs: how long it takes.
        verbose: 1 for a line on rank 0 at its end. The others: as of the schedule.
        """
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

        def multiplier(epoch: float) -> float:
            ranks = world.size()
            passed = epoch + 1 / (self.steps_per_epoch or 1)
            return (1 + passed * (ranks - 1) / warmup_epochs) / ranks

        how = 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        super().__init__(initial_lr, multiplier, *how)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note the rate, and say where the warmup has ended."""
        super().on_epoch_end(epoch, logs)
        if epoch == self.warmup_epochs - 1 and self.verbose > 0 and world.rank() == 0:
            rate = self._rate()
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class CommitState:
    """Commits a state after every so many batches, and at the end of an epoch."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        """state: of `elastic`. batches_per_commit: how many there are between two commits."""
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Start to count again."""
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit if enough batches have passed."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit."""
        self.commit()

    def commit(self) -> None:
        """Commit the state now."""
        self.state.commit()


class UpdateBatchState:
    """Keeps in `state.batch` which batch of an epoch is next, so that a training goes on there."""

    params: Any

    def __init__(self, state: Any) -> None:
        """state: of `elastic`, with an attribute `batch`."""
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Forget the number of steps."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Let an interrupted epoch end after its remaining batches."""
        if self.params.get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Take note."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The next epoch begins with its first batch."""
        self.state.batch = 0


class UpdateEpochState:
    """Keeps in `state.epoch` which epoch is next, over all calls of `fit`."""

    def __init__(self, state: Any) -> None:
        """state: of `elastic`, with an attribute `epoch`."""
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Count on from where the state is."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Take note."""
        self.state.epoch = self.initial_epoch + epoch + 1


def _session(model: Any) -> Any:
    """Return the session of a graph of TensorFlow 1, in which Keras 2 trains there; else None."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or "keras.src.backend" in type(model).__module__:
        return None
    if tensorflow.compat.v2.executing_eagerly():
        return None
    return tensorflow.compat.v1.keras.backend.get_session()
