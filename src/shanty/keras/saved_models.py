"""`load_model`: a model that was saved, with its optimizer made a distributed one."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from shanty.keras.compression import Compression
from shanty.keras.optimizer import DistributedMixin, DistributedOptimizer


def loader_of(keras: Any) -> Callable[..., Any]:
    """Return `load_model` for a module of Keras."""

    def load_model(
        filepath: Any,
        custom_optimizers: Any = None,
        custom_objects: Any = None,
        compression: Any = Compression.none,
        legacy_opts: bool = False,
    ) -> Any:
        """Load a model that was saved, with its optimizer, its state too, made a distributed one.

        custom_optimizers: classes of optimizers that are not Keras's. custom_objects: as of
        keras.models.load_model. compression: how gradients are sent. legacy_opts: has no
        effect.
        """
        known = {each.__name__: each for each in custom_optimizers or ()}
        known.update(custom_objects or {})
        model = keras.models.load_model(filepath, custom_objects=known or None)
        optimizer = getattr(model, "optimizer", None)
        if model.trainable_variables and not getattr(optimizer, "_trainable_variables", True):
            optimizer = model.optimizer = _built_again(optimizer, model, filepath)
        if optimizer is not None and not isinstance(optimizer, DistributedMixin):
            how = compression or Compression.none
            model.optimizer = DistributedOptimizer(optimizer, compression=how)
        return model

    return load_model


def _built_again(optimizer: Any, model: Any, filepath: Any) -> Any:
    """Return the optimizer with its state, which Keras 3 loses where it reads HDF5.

    It builds it for no variables then, so that it could make no step.
    """
    found = type(optimizer).from_config(optimizer.get_config())
    found.build(model.trainable_variables)
    legacy = import_module("keras.src.legacy.saving.legacy_h5_format")
    with import_module("h5py").File(filepath, "r") as file:
        if "optimizer_weights" in file:
            values = legacy.load_optimizer_weights_from_hdf5_group(file)
            for variable, value in zip(found.variables, values, strict=True):
                variable.assign(value)
    return found
