"""A sampler that knows which samples of an epoch are done, and deals the rest out."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from shanty.torch.hvd import world


class ElasticSampler(Sampler[int]):
    """Deals the samples of an epoch out to the ranks; those that were recorded come no more.

    dataset: what to sample, of constant length. shuffle: a new order in every epoch. seed: of
    that order, the same on all ranks. Put it into a TorchState, and it goes on from the last
    commit, in a run of another number of ranks, too.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas = 0
        self.rank = 0
        self.remaining_indices: list[int] = []
        self.num_samples = 0
        self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch with all samples. To be called at the end of the one before."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that each rank has done a batch of so many samples."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and how many samples of it all ranks together have done."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where that state was, with the ranks that there are now."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deal what is left of the epoch out to the ranks that there are now."""
        self.num_replicas, self.rank = world.size(), world.rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """This rank's samples; the first ones come again where the ranks' shares are uneven."""
        left = self.remaining_indices
        short = self.total_size - len(left)
        padded = left + [left[index % len(left)] for index in range(short)]
        return iter(padded[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        """How many samples are left for each rank."""
        return self.num_samples
