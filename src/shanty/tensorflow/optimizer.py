"""`DistributedOptimizer`: of TensorFlow 1's optimizers here, of Keras's in `keras`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shanty.collectives import reduction
from shanty.collectives.gradient_groups import Groups, check_factor, check_groups
from shanty.collectives.process_sets import ProcessSet, global_process_set
from shanty.collectives.request import Op
from shanty.tensorflow.compression import Compression
from shanty.tensorflow_ops import ops
from shanty.tensorflow_ops.gradients import Accumulation, Reduction
from shanty.tensorflow_ops.installed import tf, v1

_Pairs = Sequence[tuple[Any, Any]]


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Op.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer whose steps use the gradients of all ranks.

    optimizer: one of tf.compat.v1.train, or of Keras: for that see `keras.DistributedOptimizer`.
    name: of its own; "Distributed" and its class otherwise. use_locking: for TensorFlow 1's.
    compression: how gradients travel; `Compression.fp16` halves them.
    sparse_as_dense: reduce IndexedSlices as dense gradients.
    backward_passes_per_step: calls whose gradients are added up before they are reduced and
        applied. average_aggregated_gradients: whether their sum is divided by that number.
    op: Average, Sum or another. Adasum makes the step on each rank and combines the steps.
    gradient_predivide_factor: divides before the sum and multiplies after it. Only with Average.
    groups: a number of groups, or lists of variables, that are reduced at once; None: all are.
        num_groups is its older name.
    process_set: the ranks that take part. Others make their own steps.
    scale_local_gradients: whether gradients of `register_local_var` are divided by the ranks.
    device_dense, device_sparse: where the graph's operations are.

    Raises ValueError for contradictory arguments, and for anything that is not an optimizer or is
    distributed already.
    """
    check_factor(gradient_predivide_factor, op)
    if op == Op.ADASUM and average_aggregated_gradients:
        raise ValueError("average_aggregated_gradients does not go with op=Adasum.")
    groups = check_groups(num_groups, groups)
    if not isinstance(optimizer, v1.train.Optimizer):
        if op == Op.ADASUM:
            raise ValueError("op == Adasum is not supported yet with Keras: it is with v1.train.")
        from shanty.keras import optimizer as of_keras  # it loads Keras

        return of_keras.DistributedOptimizer(
            optimizer,
            name,
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            gradient_predivide_factor,
            op,
            backward_passes_per_step,
            average_aggregated_gradients,
            0,
            groups,
            process_set,
            scale_local_gradients,
        )
    if isinstance(optimizer, (_Reducing, _AdasumReducing)):
        raise ValueError(f"{optimizer.get_name()} is distributed already: wrap an optimizer once.")
    if op == Op.ADASUM:
        if process_set != global_process_set:
            raise NotImplementedError("op=Adasum works with the global process set only.")
        return _AdasumReducing(optimizer, name, use_locking, compression, backward_passes_per_step)
    if backward_passes_per_step > 1 and tf.executing_eagerly():
        raise ValueError(
            "backward_passes_per_step > 1 with an optimizer of tf.compat.v1.train needs a graph: "
            "use one of Keras's optimizers where TensorFlow is eager."
        )
    title = name or f"Distributed{type(optimizer).__name__}"
    how = Reduction(
        title,
        compression,
        Op(op),
        gradient_predivide_factor,
        groups,
        process_set,
        scale_local_gradients,
        device_dense,
        device_sparse,
        sparse_as_dense,
    )
    passes = backward_passes_per_step
    several = Accumulation(how, passes, average_aggregated_gradients) if passes > 1 else None
    return _Reducing(optimizer, title, use_locking, how, several)


class _Wrapper(v1.train.Optimizer):  # type: ignore[misc]
    """An optimizer around another one, whose variables and slots are its own."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """As of the optimizer within."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """As of the optimizer within."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """As of the optimizer within."""
        return self._optimizer.variables(*args, **kwargs)


class _Reducing(reduction.DistributedOptimizer, _Wrapper):
    """`compute_gradients` reduces; `apply_gradients` applies what that returned."""

    def __init__(
        self,
        optimizer: Any,
        name: str,
        use_locking: bool,
        how: Reduction,
        accumulation: Accumulation | None,
    ) -> None:
        super().__init__(optimizer, name, use_locking)
        self._reduction = how
        self._accumulation = accumulation

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return the pairs of the optimizer within, with the gradients of all ranks."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients, variables = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        reduce = self._reduction.reduce if self._accumulation is None else self._accumulation.add
        return list(zip(reduce(gradients, variables), variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: _Pairs, global_step: Any = None, name: str | None = None
    ) -> Any:
        """As of the optimizer within; where passes are added up, after the last of them."""
        pairs = list(grads_and_vars)
        if self._accumulation is None:
            return self._optimizer.apply_gradients(pairs, global_step, name)
        needed = [pair[0] for pair in pairs if pair[0] is not None]

        def apply() -> Any:
            with tf.control_dependencies([self._optimizer.apply_gradients(pairs, global_step)]):
                return tf.constant(0)

        def otherwise() -> Any:
            counted = [] if global_step is None else [v1.assign_add(global_step, 1).op]
            with tf.control_dependencies(counted):
                return tf.constant(0)

        with tf.control_dependencies(needed):
            return v1.cond(self._accumulation.is_last(), apply, otherwise).op


class _AdasumReducing(_Wrapper):
    """Makes the step of the optimizer within, then replaces it by the Adasum of all ranks' steps.

    State such as momentum stays each rank's own.
    """

    def __init__(
        self, optimizer: Any, name: str | None, use_locking: bool, compression: Any, passes: int
    ) -> None:
        title = name or f"DistributedDelta{type(optimizer).__name__}"
        super().__init__(optimizer, title, use_locking)
        self._compression = compression
        self._passes = passes  # has no effect: the steps are combined

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """As of the optimizer within: this rank's gradients."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars: _Pairs, *args: Any, **kwargs: Any) -> Any:
        """Make the step, and replace it by that of all ranks together."""
        pairs = [pair for pair in grads_and_vars if pair[0] is not None]
        variables = [variable for _, variable in pairs]
        starts = [tf.identity(each) for each in variables]
        with tf.control_dependencies(starts):
            applied = self._optimizer.apply_gradients(pairs, *args, **kwargs)
        with tf.control_dependencies([applied] if applied is not None else []):
            steps = [
                tf.convert_to_tensor(variable.read_value()) - start
                for variable, start in zip(variables, starts, strict=True)
            ]
        combined = ops.grouped_allreduce(
            steps, compression=self._compression, op=Op.ADASUM, name=f"{self.get_name()}.steps"
        )
        return tf.group(
            *(
                variable.assign(start + step)
                for variable, start, step in zip(variables, starts, combined, strict=True)
            )
        )
