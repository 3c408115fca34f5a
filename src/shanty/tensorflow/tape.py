"""`DistributedGradientTape`: a tape whose gradients are those of all ranks."""

from __future__ import annotations

from typing import Any

from shanty.collectives.gradient_groups import Groups, check_factor, check_groups
from shanty.collectives.process_sets import ProcessSet, global_process_set
from shanty.collectives.reduction import Distributed, variables_of
from shanty.collectives.request import Op
from shanty.tensorflow.compression import Compression
from shanty.tensorflow_ops.gradients import Reduction, taped
from shanty.tensorflow_ops.installed import as_written, tf


class DistributedTape(Distributed):
    """What a distributed tape has of its own; its class derives from the user's, too."""

    def register_local_source(self, source: Any) -> None:
        """Leave the gradient of a source alone: it stays this rank's own."""
        self._reduction.register_local(source)

    @as_written
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Return the gradients of all ranks, in the structure of `sources`.

        target, sources, output_gradients, unconnected_gradients: as of tf.GradientTape.gradient.
        use_generic_names: has no effect, since the names are generic.
        """
        own: Any = super()
        found = own.gradient(target, sources, output_gradients, unconnected_gradients)
        flat, given = _flat(found), _flat(sources)
        reduced = self._reduction.reduce(flat, given)
        taped(given)
        if not isinstance(sources, (list, tuple, dict)):
            return reduced[0] if len(flat) == 1 else reduced
        return tf.nest.pack_sequence_as(found, reduced, expand_composites=False)

    @as_written
    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Return pairs of source and gradient: of those that are local, then of the others."""
        flat = _flat(sources)
        found = _flat(self.gradient(target, flat, output_gradients))
        pairs = list(zip(flat, found, strict=True))
        local = [pair for pair in pairs if self._reduction.is_local(pair[0])]
        return local, [pair for pair in pairs if not self._reduction.is_local(pair[0])]


@as_written
def DistributedGradientTape(  # noqa: N802 (Horovod's name)
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Op.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A tape of the same class, with what `gradtape` has recorded; its gradients are all ranks'.

    compression: how gradients travel; `Compression.fp16` halves them.
    sparse_as_dense: reduce IndexedSlices as dense gradients.
    op: Average, Sum or another.
    gradient_predivide_factor: divides before the sum and multiplies after it. Only with Average.
    groups: a number of groups, or lists of variables, that are reduced at once; None: all are.
        num_groups is its older name.
    process_set: the ranks that take part. Others keep their own gradients.
    scale_local_gradients: of `register_local_source`.
    device_dense, device_sparse: where the graph's operations are.

    Raises ValueError for contradictory arguments, and for a tape that is distributed already.
    """
    kind = type(gradtape)
    if isinstance(gradtape, DistributedTape):
        raise ValueError(f"This {kind.__name__} is distributed already: wrap a tape once.")
    check_factor(gradient_predivide_factor, op)
    made: Any = type(kind.__name__, (DistributedTape, kind), {"__doc__": kind.__doc__})
    tape: Any = made.__new__(made)
    vars(tape).update(vars(gradtape))
    tape._reduction = Reduction(
        "DistributedGradientTape",
        compression,
        Op(op),
        gradient_predivide_factor,
        check_groups(num_groups, groups),
        process_set,
        scale_local_gradients,
        device_dense,
        device_sparse,
        sparse_as_dense,
    )
    return tape


@as_written
def PartialDistributedGradientTape(  # noqa: N802 (Horovod's name)
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Op.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """A `DistributedGradientTape` that leaves the gradients of some layers alone.

    local_layers: a Keras layer, or several; built before, so that they have their variables.
    Raises ValueError for anything else in it.
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for variable in variables_of(local_layers):
        tape.register_local_source(variable)
    return tape


def _flat(structure: Any) -> list[Any]:
    """Return the leaves of a structure, with None as one; IndexedSlices are leaves."""
    if isinstance(structure, dict):
        return [leaf for key in sorted(structure) for leaf in _flat(structure[key])]
    if isinstance(structure, (list, tuple)):
        return [leaf for each in structure for leaf in _flat(each)]
    return [structure]
