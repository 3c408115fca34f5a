"""Every operation in a process set, whatever the framework: its members and the rest stay apart.

See framework.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from checks import raised
from framework import fw, hvd, ones
from references import close, given, reduced


def exercise(chosen: Any) -> None:
    ranks, own, size = chosen.ranks, hvd.rank(), len(chosen.ranks)
    where = {"process_set": chosen}
    assert chosen.included() is (own in ranks) and chosen.size() == size
    if own not in ranks:
        raised(ValueError, lambda: hvd.allreduce(ones(2), **where), f"ank {own}")
        raised(ValueError, chosen.rank)
        return
    place = chosen.rank()
    assert ranks[place] == own
    tensors = given((2 * size, 3), seed=20)
    members = [tensors[each] for each in ranks]
    mine = fw.tensor(tensors[own])
    rows = [np.full(each + 1, each) for each in ranks]
    sent = fw.tensor(np.arange(size) + 10 * own)

    def call() -> list[Any]:
        return [
            *(hvd.allreduce(mine, op=op, **where) for op in (hvd.Average, hvd.Sum, hvd.Max)),
            *hvd.grouped_allreduce([mine], op=hvd.Sum, **where),
            hvd.allgather(fw.tensor(rows[place]), **where),
            *(hvd.broadcast(mine, root, **where) for root in ranks),
            hvd.alltoall(sent, **where),
            *hvd.alltoall(sent, [1] * size, **where),
            hvd.reducescatter(mine, op=hvd.Sum, **where),
        ]

    received = np.array([10 * each + place for each in ranks])
    expected = [
        *(reduced(members, op) for op in (hvd.Average, hvd.Sum, hvd.Max, hvd.Sum)),
        np.concatenate(rows),
        *members,
        *(received, received, np.ones(size)),
        reduced(members, hvd.Sum)[2 * place : 2 * place + 2],
    ]
    for way, attempt in fw.both(call):
        for found, exact in zip(attempt(), expected, strict=True):
            close(found, exact, way)
    x, w = np.ones((2 * size, 3)), np.arange(6.0 * size**2).reshape(-1, 3)
    part = w[2 * size * place :][: 2 * size]
    for function, weights, exact in (
        (lambda one: hvd.allreduce(one, **where), x * (place + 1), x * (size + 1) / 2),
        (lambda one: hvd.allgather(one, **where), w, part),
        (lambda one: hvd.broadcast(one, ranks[-1], **where), x, x * (own == ranks[-1])),
    ):
        for way, (found,) in fw.gradients(function, weights, x):
            close(found, exact, way)
    assert hvd.broadcast_object(own, ranks[0], **where) == ranks[0]
    if size < hvd.size():
        outside = next(each for each in range(hvd.size()) if each not in ranks)
        raised(ValueError, lambda: hvd.broadcast(mine, outside, **where))
        raised(NotImplementedError, lambda: hvd.allreduce(mine, op=hvd.Adasum, **where))
