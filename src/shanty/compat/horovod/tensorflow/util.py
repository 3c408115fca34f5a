"""`horovod.tensorflow.util`: variables as keys of dictionaries, and back."""

from __future__ import annotations

from typing import Any

from shanty.tensorflow_ops.installed import tf

_executing_eagerly = tf.executing_eagerly


def vars_to_refs(vars: Any) -> Any:
    """Return what stands for a variable and can be hashed; for a list of them a tuple."""
    if isinstance(vars, list):
        return tuple(map(vars_to_refs, vars))
    return vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Return the variables for which `vars_to_refs` returned this."""
    if isinstance(refs, tuple):
        return list(map(refs_to_vars, refs))
    return refs.deref()
