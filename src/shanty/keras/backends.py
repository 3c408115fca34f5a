"""The tensors of Keras's backends as arrays, and collectives as steps of their computations.

Nothing is imported but the backend that is in use. PyTorch's tensors in host memory are shared;
those on a GPU are copied to the host and back. JAX, whose steps are compiled, calls back to the
host in the order of the program. What TensorFlow needs is in `shanty.tensorflow_ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import numpy as np

from shanty.collectives import array_calls
from shanty.collectives.array_calls import Array
from shanty.collectives.process_sets import ProcessSet
from shanty.collectives.request import Request

Prepare = Callable[..., Request]
"""Makes a request from arrays; its results have the shapes and types of these."""


def backend() -> str:
    """Return what Keras computes with: "tensorflow", "torch" or "jax". Keras 2 has the first."""
    found: str = import_module("keras").backend.backend()
    return found


def run(tensors: Sequence[Any], prepare: Prepare, process_set: ProcessSet) -> list[Any]:
    """Return the results of a collective of these tensors, which are as large as they."""
    return _RUN[backend()](tensors, prepare, process_set)


def raising() -> AbstractContextManager[object]:
    """Return a context that raises the errors of collectives as the backend's, too."""
    if backend() != "tensorflow":
        return nullcontext()
    from shanty.tensorflow_ops.errors import of_tensorflow

    return of_tensorflow()


def array_of(value: Any) -> Array:
    """Return the elements of a tensor of the backend, a variable or a number, to be read."""
    inner = getattr(value, "value", None)
    if inner is not None and not callable(inner):
        value = inner  # a variable of Keras 3
    if hasattr(value, "detach"):
        return _array_of_torch(value)
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def tensor_of(array: Array) -> Any:
    """Return a tensor over the memory of an array; in a graph of TensorFlow 1 the array."""
    if backend() == "torch":
        return _torch_of(array, None)
    if backend() == "jax":
        return import_module("jax.numpy").asarray(array)
    if not import_module("tensorflow").executing_eagerly():
        return array
    from shanty.tensorflow_ops import memory

    return memory.tensor_of(array)


def cast(tensor: Any, dtype: str) -> Any:
    """Return a tensor in another type, also within a computation."""
    if hasattr(tensor, "astype"):
        return tensor.astype(dtype)
    if hasattr(tensor, "detach"):
        return tensor.to(getattr(import_module("torch"), dtype))
    return import_module("tensorflow").cast(tensor, dtype)


def kind_of(tensor: Any) -> str:
    """Return the name of a tensor's type, as "float32"."""
    name = getattr(tensor.dtype, "name", None) or str(tensor.dtype)
    return str(name).removeprefix("torch.")


def _on_tensorflow(tensors: Sequence[Any], prepare: Prepare, process_set: ProcessSet) -> list[Any]:
    from shanty.tensorflow_ops import steps

    outcomes = [steps.Outcome(each.dtype, each.shape) for each in tensors]
    return steps.run(tensors, prepare, outcomes, process_set)


def _on_torch(tensors: Sequence[Any], prepare: Prepare, process_set: ProcessSet) -> list[Any]:
    torch = import_module("torch")

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def step() -> list[Any]:
        results = array_calls.done(prepare(*map(_array_of_torch, tensors)), process_set)
        pairs = zip(results, tensors, strict=True)
        return [_torch_of(array, each.dtype).to(each.device) for array, each in pairs]

    found: list[Any] = step()
    return found


def _array_of_torch(tensor: Any) -> Array:
    torch = import_module("torch")
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype is torch.bfloat16:  # which NumPy has from a package of its own
        kind = import_module("ml_dtypes").bfloat16
        words: Array = plain.view(torch.int16).numpy()
        return words.view(kind)
    return np.asarray(plain.numpy())


def _torch_of(array: Array, dtype: Any) -> Any:
    torch = import_module("torch")
    if dtype is torch.bfloat16 or array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _on_jax(tensors: Sequence[Any], prepare: Prepare, process_set: ProcessSet) -> list[Any]:
    jax = import_module("jax")
    experimental = import_module("jax.experimental")

    def step(*arrays: Any) -> list[Array]:
        return list(array_calls.done(prepare(*map(np.asarray, arrays)), process_set))

    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in tensors]
    found: list[Any] = list(experimental.io_callback(step, shapes, *tensors, ordered=True))
    return found


_RUN = {"tensorflow": _on_tensorflow, "torch": _on_torch, "jax": _on_jax}
