"""`shard`: this rank's part of a data set."""

from __future__ import annotations

from typing import Any

from shanty.collectives import world


def shard(dataset: Any) -> Any:
    """Return this rank's part: every n-th element for n ranks, so that the parts cover the data.

    dataset: a tf.data.Dataset (before it is batched, so that batches keep their size), an array or
        a list; or a tuple, list of arrays or dict of these, all of which are divided alike. If the
        elements cannot be divided evenly, the first ranks have one more.
    Raises ValueError for anything else: a generator, for example, cannot be divided.
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
        "divide the data where it is made, by hvd.rank() and hvd.size()."
    )
