"""Messages of more than 2 GiB, and of more elements than 32 bits count. Started through
../test_long.py, on two ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

import shanty.torch  # noqa: F401

ELEMENTS = (1 << 31) + 5


def marked(rank: int) -> torch.Tensor:
    tensor = torch.zeros(ELEMENTS, dtype=torch.uint8)
    tensor[0], tensor[1 << 30], tensor[-1] = rank + 1, rank + 2, rank + 3
    return tensor


def ends(tensor: torch.Tensor) -> list[int]:
    return [int(tensor[0]), int(tensor[1 << 30]), int(tensor[-1]), int(tensor.count_nonzero())]


def check_all_reduce() -> None:
    tensor = marked(dist.get_rank())
    dist.all_reduce(tensor)
    assert ends(tensor) == [3, 5, 7, 3]


def check_broadcast() -> None:
    tensor = marked(dist.get_rank())
    dist.broadcast(tensor, 1)
    assert ends(tensor) == [2, 3, 4, 3]


def check_message() -> None:
    tensor = marked(dist.get_rank())
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    assert ends(tensor) == [1, 2, 3, 3]
