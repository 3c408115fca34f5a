"""Learn to read handwritten digits with PyTorch, on as many processes as there are ranks.

    shanty run -n 2 examples/digits.py --epochs 20

The data are real (1,797 scans of 8 by 8 pixels) and come with scikit-learn. Each rank trains on
its share of them; DistributedDataParallel averages the gradients over MPI, so that all ranks
keep the same model. `python examples/digits.py` runs it on one process, unchanged.
"""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import shanty
import shanty.torch  # gives PyTorch its "mpi" backend


def load() -> tuple[TensorDataset, TensorDataset]:
    """Training and test set: images as (1, 8, 8) floats from 0 to 1, digits as integers."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:360], order[360:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def make_model() -> nn.Module:
    """A small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """The share of `data` that the model reads correctly; each rank looks at a part of it."""
    images, labels = data[dist.get_rank() :: dist.get_world_size()]
    correct = (model(images).argmax(dim=1) == labels).sum()
    dist.all_reduce(correct)
    return correct.item() / len(data)


def main() -> None:
    """Train, log, test, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--batch-size", type=int, default=64, help="images a step, on all ranks")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    dist.init_process_group("mpi")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)

    train, test = load()
    sampler = DistributedSampler(train, seed=options.seed)
    batches = DataLoader(train, batch_size=max(1, options.batch_size // world), sampler=sampler)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)

    step = 0
    for epoch in shanty.progress(range(options.epochs)):
        sampler.set_epoch(epoch)  # another shuffle every epoch
        for images, labels in batches:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        reached = accuracy(model.module, test)
        if rank == 0:
            shanty.log(step=step, epoch=epoch + 1, loss=loss.item(), accuracy=reached)

    if rank == 0:
        path = shanty.artifacts() / "digits.pt"
        torch.save(model.module.state_dict(), path)
        print(f"{world} ranks, {options.epochs} epochs, model saved to {path}")
        print(f"test accuracy {reached:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
