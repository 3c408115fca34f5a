"""`shard`: this rank's part of a data set."""

from __future__ import annotations

from typing import Any

from shanty.collectives import world


def shard(dataset: Any) -> Any:
    """Return this rank's part: every so-manieth element, so that all ranks together have it all.

    dataset: a tf.data.Dataset (not batched yet, so that batches stay as large as they are), an
        array or a list; or a tuple, list of arrays or dict of such, all of which are cut alike.
        The first ranks have one more where it does not divide.
    Raises ValueError for anything else: a generator, for example, cannot be cut.
    """
    rank, size = world.rank(), world.size()
    if hasattr(dataset, "shard") and hasattr(dataset, "element_spec"):
        return dataset.shard(size, rank)
    if isinstance(dataset, dict):
        return {name: shard(each) for name, each in dataset.items()}
    if isinstance(dataset, tuple):
        return tuple(map(shard, dataset))
    if hasattr(dataset, "shape") or (
        isinstance(dataset, list) and not any(hasattr(each, "shape") for each in dataset)
    ):
        return dataset[rank::size]
    if isinstance(dataset, list):
        return list(map(shard, dataset))
    raise ValueError(
        f"shard takes a tf.data.Dataset, arrays and lists, not {type(dataset).__name__}: "
        "cut it where it is made, by hvd.rank() and hvd.size()."
    )
