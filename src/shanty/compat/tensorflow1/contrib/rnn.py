"""`tf.contrib.rnn`: the cells of tf.nn.rnn_cell, and the functions that unroll them."""

from __future__ import annotations

from typing import Any

from shanty.compat.tensorflow1 import absent
from shanty.compat.tensorflow1.installed import v1

_CELLS = (
    "BasicLSTMCell", "BasicRNNCell", "DeviceWrapper", "DropoutWrapper", "GRUCell", "LSTMCell",
    "LSTMStateTuple", "MultiRNNCell", "RNNCell", "ResidualWrapper",
)  # fmt: skip
_FUNCTIONS = ("static_bidirectional_rnn", "static_rnn", "static_state_saving_rnn")
__all__ = [*_CELLS, *_FUNCTIONS]


def __getattr__(name: str) -> Any:
    if name in _CELLS:
        return getattr(v1.nn.rnn_cell, name)
    if name in _FUNCTIONS:
        return getattr(v1.nn, name)
    raise AttributeError(absent.text(f"tf.contrib.rnn.{name}"))
