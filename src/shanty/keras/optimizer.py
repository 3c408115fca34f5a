"""`DistributedOptimizer`: an optimizer of Keras whose steps use the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from shanty.collectives import array_calls, reduction
from shanty.collectives.array_calls import Array
from shanty.collectives.compression import compressed
from shanty.collectives.gradient_groups import Groups, check_factor, check_groups
from shanty.collectives.process_sets import ProcessSet, global_process_set
from shanty.collectives.reduction import Reduction, variables_of
from shanty.collectives.request import Op, Request
from shanty.keras import backends, loss_scales, xla
from shanty.keras.backends import backend
from shanty.keras.compression import Compression

_HOLD = "_distribution"  # attribute of the optimizer, past Keras's tracking of attributes


class _DenseReduction(Reduction):
    """Reduces dense gradients, on PyTorch and JAX.

    `shanty.tensorflow_ops.gradients` does so on TensorFlow, with sparse gradients and graphs.
    """

    def reduced(self, name: str, gradients: Sequence[Any]) -> list[Any]:
        """Return these gradients, reduced by one operation."""
        how = self.op, 1.0 / self.predivide, self.predivide, self.process_set, True

        def prepare(*arrays: Array) -> Request:
            return array_calls.allreduce(arrays, name, *how)

        return compressed(backends.run, self.compression, gradients, prepare, self.process_set)


class Distribution:
    """What makes an optimizer a distributed one: how it reduces, and over how many passes.

    average: whether the sum of the passes is divided by their number. several: adds gradients up
    over passes, on Keras 2; Keras 3 does that itself, and averages.
    """

    def __init__(self, how: Reduction, passes: int, average: bool, several: Any = None) -> None:
        self.how = how
        self.passes = passes
        self.average = average
        self.several = several
        self.variables: Sequence[Any] = ()  # of the step that is being made


class DistributedMixin(reduction.DistributedOptimizer):
    """The methods that every distributed optimizer has of its own."""

    _distribution: Distribution

    @property
    def _reduction(self) -> Reduction:  # type: ignore[override]
        return self._distribution.how


class _Scaling(DistributedMixin):
    """A LossScaleOptimizer of Keras 3; the optimizer within it is distributed."""


class _Keras3(DistributedMixin):
    """Reduces in `apply`, as every backend's training calls it; over passes, after the last one."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Make a step with the gradients of all ranks."""
        own: Any = super()
        given = trainable_variables
        variables = list(getattr(self, "_trainable_variables", ()) if given is None else given)
        found = list(grads)
        held = self._distribution
        held.how.meet(variables)
        if getattr(self, "gradient_accumulation_steps", None):
            pairs = zip(found, variables, strict=True)
            held.variables = [variable for each, variable in pairs if each is not None]
        else:
            found = held.how.reduce(found, variables)
        return own.apply(found, trainable_variables)

    def _clip_gradients(self, grads: Any) -> Any:
        own: Any = super()
        held = self._distribution
        if getattr(self, "gradient_accumulation_steps", None):
            grads = held.how.reduce(grads, held.variables)
            if held.passes > 1 and not held.average:
                grads = [None if each is None else each * held.passes for each in grads]
        return own._clip_gradients(grads)


class _Keras2(DistributedMixin):
    """Reduces in `compute_gradients`, which `fit` calls by `minimize`."""

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Any:
        """Return pairs of gradient and variable, with the gradients of all ranks."""
        own: Any = super()
        if not hasattr(own, "compute_gradients"):  # of an optimizer from before Keras 2.11
            return self._compute_gradients(loss, var_list, tape=tape)
        return self._reduced(own.compute_gradients(loss, var_list, tape=tape))

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> Any:
        own: Any = super()
        if not hasattr(own, "_compute_gradients"):  # of a later one, which knows no grad_loss
            return self.compute_gradients(loss, var_list, tape=tape)
        return self._reduced(own._compute_gradients(loss, var_list, grad_loss=grad_loss, tape=tape))

    def get_gradients(self, loss: Any, params: Any) -> Any:
        """Return the gradients of all ranks, in a graph of TensorFlow 1."""
        own: Any = super()
        pairs = list(zip(own.get_gradients(loss, params), params, strict=True))
        return [each for each, _ in self._reduced(pairs)]

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a step; where passes are added up, after the last of them."""
        own: Any = super()
        several = self._distribution.several
        if several is None:
            return own.apply_gradients(grads_and_vars, *args, **kwargs)
        pairs = list(grads_and_vars)
        if hasattr(self, "build") and not getattr(self, "_built", True):
            with import_module("tensorflow").init_scope():
                self.build([variable for _, variable in pairs])
        several.apply_if_last(
            lambda: own.apply_gradients(pairs, *args, **kwargs),
            lambda: self.iterations.assign_add(1),  # type: ignore[attr-defined]
        )
        return self.iterations  # type: ignore[attr-defined]

    def _reduced(self, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        found = list(pairs)
        held = self._distribution
        reduce = held.how.reduce if held.several is None else held.several.add
        variables = [variable for _, variable in found]
        return list(zip(reduce([each for each, _ in found], variables), variables, strict=True))


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Op.AVERAGE,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer of the same class whose steps use the gradients of all ranks.

    It takes the state of `optimizer`, and is saved with a model as one of that class is.

    optimizer: of Keras 2 or 3. name: by which the ranks find each other's gradients.
    compression: how gradients travel; `Compression.fp16` halves them.
    sparse_as_dense: reduce IndexedSlices as dense gradients.
    gradient_predivide_factor: divides before the sum and multiplies after it. Only with Average.
    op: Average or Sum.
    backward_passes_per_step: steps whose gradients are added up before they are reduced and
        applied. average_aggregated_gradients: whether their sum is divided by that number.
    groups: a number of groups, or lists of variables, that are reduced at once; None: all are.
        num_groups is its older name.
    process_set: the ranks that take part. Others make their own steps.
    scale_local_gradients: whether gradients of `register_local_var` are divided by the ranks.
    device_dense, device_sparse: where a graph's operations are.

    Raises ValueError for contradictory arguments, and for anything that is not an optimizer or is
    distributed already.
    """
    if op not in (Op.AVERAGE, Op.SUM):
        raise ValueError("op currently only supports Average and Sum.")
    check_factor(gradient_predivide_factor, op)
    if isinstance(optimizer, DistributedMixin):
        user = type(optimizer).__name__
        raise ValueError(f"This {user} is distributed already: wrap an optimizer once.")
    methods = _methods_for(optimizer)
    if methods is _Keras3 and hasattr(optimizer, "inner_optimizer"):
        inner = DistributedOptimizer(
            optimizer.inner_optimizer, name, device_dense, device_sparse, compression,
            sparse_as_dense, gradient_predivide_factor, op, backward_passes_per_step,
            average_aggregated_gradients, num_groups, groups, process_set, scale_local_gradients,
        )  # fmt: skip
        scaling = _wrapped(optimizer, _Scaling, inner._distribution)
        vars(scaling)["inner_optimizer"] = inner
        return scaling
    passes = backward_passes_per_step
    title = name or f"Distributed{type(optimizer).__name__}"
    groups = check_groups(num_groups, groups)
    arguments = (
        title, compression, Op(op), gradient_predivide_factor, groups, process_set,
        scale_local_gradients,
    )  # fmt: skip
    several = None
    how: Reduction
    if _on_tensorflow(optimizer):
        from shanty.tensorflow_ops import gradients as on_tensorflow

        how = on_tensorflow.Reduction(*arguments, device_dense, device_sparse, sparse_as_dense)
        if passes > 1 and methods is _Keras2:
            several = on_tensorflow.Accumulation(how, passes, average_aggregated_gradients)
    else:
        how = _DenseReduction(*arguments)
    made = _wrapped(
        optimizer, methods, Distribution(how, passes, average_aggregated_gradients, several)
    )
    if passes > 1 and methods is _Keras3:
        if optimizer.built:
            raise ValueError(
                "backward_passes_per_step: the optimizer has been built. Wrap it before it is "
                "used, or give it gradient_accumulation_steps when it is made."
            )
        made.gradient_accumulation_steps = passes
    if methods is _Keras3:
        loss_scales.agree(_held_by)
    if _on_tensorflow(optimizer):
        xla.switch_off(type(optimizer), _trains_distributed)
    return made


def PartialDistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Op.AVERAGE,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """A `DistributedOptimizer` that leaves the gradients of some layers alone.

    local_layers: a layer, or several; built before, so that they have their variables.
    Raises ValueError for anything else in it.
    """
    variables = variables_of(local_layers)
    made = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for variable in variables:
        made.register_local_var(variable)
    return made


def _methods_for(optimizer: Any) -> type:
    if hasattr(optimizer, "stateless_apply"):
        return _Keras3
    if hasattr(optimizer, "compute_gradients") or hasattr(optimizer, "_compute_gradients"):
        return _Keras2
    raise ValueError(
        f"DistributedOptimizer takes an optimizer of Keras, not {type(optimizer).__name__}: "
        "for the name of one, keras.optimizers.get(name)."
    )


def _on_tensorflow(optimizer: Any) -> bool:
    if _methods_for(optimizer) is _Keras2:
        return True
    return backend() == "tensorflow"


def _wrapped(optimizer: Any, methods: type, held: Distribution) -> Any:
    user = type(optimizer)
    names = {"__module__": user.__module__, "__doc__": user.__doc__}
    made: Any = type(user.__name__, (methods, user), names)
    found = made.__new__(made)
    vars(found).update(vars(optimizer))
    vars(found)[_HOLD] = held
    return found


def _held_by(optimizer: Any) -> Distribution | None:
    """Return what makes an optimizer, or the one within it, a distributed one; None: nothing."""
    inner = getattr(optimizer, "inner_optimizer", None)
    found = [each for each in (optimizer, inner) if isinstance(each, DistributedMixin)]
    return found[0]._distribution if found else None


def _trains_distributed(model: Any) -> bool:
    return _held_by(getattr(model, "optimizer", None)) is not None
