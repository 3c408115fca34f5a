"""TensorFlow's eager tensors as NumPy arrays and back, without a copy where that can be.

A tensor in host memory shows it by the buffer protocol, and takes over that of an array by DLPack.
A tensor on a GPU is copied to the host, and what comes back is in host memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shanty.collectives.errors import ArgumentError
from shanty.tensorflow_ops.installed import tf

Array = NDArray[Any]

# Types that neither protocol knows travel as integers of their size.
_HIDDEN = {tf.bfloat16: (tf.uint16, np.uint16)}
_ALIGNMENT = 64  # bytes; TensorFlow ends the process where a tensor's memory is aligned to less


def array_of(tensor: Any) -> Array:
    """Return the elements of an eager tensor, to be read. ArgumentError for strings."""
    if tensor.dtype in (tf.string, tf.resource, tf.variant):
        raise ArgumentError(f"A tensor of type {tensor.dtype.name} cannot be sent.")
    if "GPU" in tensor.device:
        return np.asarray(tensor.numpy())
    if tensor.dtype in _HIDDEN:
        plain, _ = _HIDDEN[tensor.dtype]
        words = np.asarray(memoryview(tf.bitcast(tensor, plain)))
        return words.view(tensor.dtype.as_numpy_dtype)
    return np.asarray(memoryview(tensor))


def tensor_of(array: Array) -> Any:
    """Return a tensor over the memory of an array, which must not be written to afterwards.

    If TensorFlow cannot use the memory of the array, the tensor is a copy.
    """
    kind = tf.as_dtype(array.dtype)
    if kind in _HIDDEN:
        _, plain = _HIDDEN[kind]
        return tf.bitcast(tensor_of(array.view(plain)), kind)
    unaligned = array.__array_interface__["data"][0] % _ALIGNMENT
    if kind is tf.bool or not array.size or unaligned:  # DLPack does not know bool everywhere
        return tf.convert_to_tensor(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
