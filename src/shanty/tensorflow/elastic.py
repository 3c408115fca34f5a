"""`hvd.elastic`: training that goes back to its last commit.

The state of a training in TensorFlow: variables, a Keras model with its optimizer, and plain
objects. What is the same on any backend is in `shanty.keras.elastic_state`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shanty.collectives import survivors
from shanty.collectives.array_calls import Array
from shanty.collectives.elastic import HostsUpdatedInterrupt, ObjectState, State
from shanty.collectives.errors import HorovodInternalError
from shanty.keras.elastic_state import KerasState, VariablesState, run
from shanty.tensorflow import functions
from shanty.tensorflow_ops.installed import tf, v1

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State"]
__all__ += ["TensorFlowKerasState", "TensorFlowState", "run"]


class TensorFlowKerasState(KerasState):
    """The state of a training of a Keras model: `TensorFlowKerasState(model, batch=0, epoch=0)`.

    model: built. optimizer: the model's own where it is None. backend: not needed. kwargs:
    anything else, each an attribute by its name, such as pickle can write.
    Raises ValueError for a model that has not been built.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(model, optimizer, **kwargs)


class TensorFlowState(VariablesState):
    """The state of a training with variables of its own: `TensorFlowState([v, w], epoch=0)`.

    variables: None: the global ones, of a graph of TensorFlow 1. session: that of such a graph.
    kwargs: anything else, each an attribute by its name, such as pickle can write.
    """

    def __init__(
        self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        self._own = list(v1.global_variables() if variables is None else variables)
        self.session = session or (None if tf.executing_eagerly() else v1.get_default_session())
        self._operation: Any = None  # that broadcasts in the session
        super().__init__(**kwargs)
        if survivors.is_elastic():
            self.save()  # when a new rank comes here, the others are training
        else:
            self.sync()

    def variables(self) -> Sequence[Any]:
        """Return the variables."""
        return self._own

    def _read(self) -> Sequence[Array]:
        if self.session is None:
            return super()._read()
        found: Sequence[Array] = self.session.run(self._own)
        return found

    def _write(self, values: Sequence[Array]) -> None:
        if self.session is None:
            super()._write(values)
            return
        for variable, value in zip(self._own, values, strict=False):
            variable.load(value, self.session)

    def _broadcast(self) -> None:
        if self.session is None:
            super()._broadcast()
            return
        if self._operation is None:
            self._operation = functions.broadcast_variables(self._own, root_rank=0)
        self.session.run(self._operation)
