"""`tf.contrib.layers.optimize_loss`: the whole training step in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shanty.compat.tensorflow1.installed import v1

_OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Adagrad": v1.train.AdagradOptimizer,
    "Adam": v1.train.AdamOptimizer,
    "Ftrl": v1.train.FtrlOptimizer,
    "Momentum": lambda rate: v1.train.MomentumOptimizer(rate, momentum=0.9),
    "RMSProp": v1.train.RMSPropOptimizer,
    "SGD": v1.train.GradientDescentOptimizer,
}


def optimize_loss(
    loss: Any,
    global_step: Any,
    learning_rate: Any,
    optimizer: Any,
    gradient_noise_scale: float | None = None,
    gradient_multipliers: Any = None,
    clip_gradients: Any = None,
    learning_rate_decay_fn: Callable[[Any, Any], Any] | None = None,
    update_ops: Sequence[Any] | None = None,
    variables: Sequence[Any] | None = None,
    name: str | None = None,
    summaries: Sequence[str] | None = None,
    colocate_gradients_with_ops: bool = False,
    increment_global_step: bool = True,
) -> Any:
    """Return an operation that makes one step, whose value is the loss.

    optimizer: a name ("Adam"), a class, an instance, or a function of the learning rate.
    clip_gradients: the global norm to clip to, or a function of pairs (gradient, variable).
    update_ops run before; None: the collection UPDATE_OPS. The summaries "learning_rate" and "loss"
    are supported. Noise and multipliers raise ValueError.
    """
    if gradient_noise_scale is not None or gradient_multipliers is not None:
        raise ValueError(
            "shanty's stand-in for optimize_loss has no gradient_noise_scale and no "
            "gradient_multipliers: change the gradients with a function as clip_gradients"
        )
    with v1.variable_scope(name, "OptimizeLoss", [loss, global_step]):
        if update_ops is None:
            update_ops = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        with v1.control_dependencies(list(update_ops)):
            loss = v1.identity(loss)
        rate = learning_rate
        if rate is not None and learning_rate_decay_fn is not None:
            rate = learning_rate_decay_fn(rate, global_step)
        written = ("learning_rate", "loss") if summaries is None else summaries
        if "learning_rate" in written and rate is not None:
            v1.summary.scalar("learning_rate", rate)
        if "loss" in written:
            v1.summary.scalar("loss", loss)
        steps = _optimizer(optimizer, rate)
        pairs = steps.compute_gradients(
            loss, variables, colocate_gradients_with_ops=colocate_gradients_with_ops
        )
        step = steps.apply_gradients(
            _clipped(pairs, clip_gradients),
            global_step=global_step if increment_global_step else None,
            name="train",
        )
        with v1.control_dependencies([step]):
            return v1.identity(loss)


def _optimizer(optimizer: Any, rate: Any) -> Any:
    if isinstance(optimizer, str):
        if optimizer not in _OPTIMIZERS:
            known = ", ".join(_OPTIMIZERS)
            raise ValueError(f"unknown optimizer {optimizer!r}; known: {known}")
        optimizer = _OPTIMIZERS[optimizer]
    if not isinstance(optimizer, type) and hasattr(optimizer, "compute_gradients"):
        return optimizer
    if rate is None:
        return optimizer()
    return optimizer(rate)


def _clipped(pairs: Sequence[tuple[Any, Any]], clip: Any) -> Any:
    if clip is None:
        return pairs
    if callable(clip):
        return clip(pairs)
    gradients, variables = zip(*pairs, strict=True)
    return list(zip(v1.clip_by_global_norm(gradients, clip)[0], variables, strict=True))
