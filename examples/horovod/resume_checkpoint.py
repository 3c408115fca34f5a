"""Train, save a checkpoint every epoch, and go on from the last one when called again."""

import argparse
import os

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--checkpoint-format", default="./checkpoint-{epoch}.pt")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--lr", type=float, default=3e-3)


def last_epoch(args):
    """The last epoch that has a checkpoint; 0 where there is none."""
    for epoch in range(args.epochs, 0, -1):
        if os.path.exists(args.checkpoint_format.format(epoch=epoch)):
            return epoch
    return 0


def save(args, epoch, model, optimizer):
    if hvd.rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, args.checkpoint_format.format(epoch=epoch))


def main():
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(hvd.rank())  # the broadcast makes all start from rank 0's
    torch.set_num_threads(1)
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], torch.tensor(data.target)[order]
    train_set = TensorDataset(images[360:], labels[360:])
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)

    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )
    lr = args.lr * hvd.size() ** 0.5
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, amsgrad=True)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    # Only rank 0 looks at the disk: it may be its own.
    begin = last_epoch(args) if hvd.rank() == 0 else 0
    begin = hvd.broadcast(torch.tensor(begin), root_rank=0, name="begin").item()
    if begin > 0 and hvd.rank() == 0:
        checkpoint = torch.load(args.checkpoint_format.format(epoch=begin))
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        print(f"goes on after epoch {begin}")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(begin, args.epochs):
        model.train()
        sampler.set_epoch(epoch)
        for image, label in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(image), label).backward()
            optimizer.step()
        save(args, epoch + 1, model, optimizer)

    model.eval()
    mine = slice(hvd.rank(), 360, hvd.size())
    with torch.no_grad():
        correct = (model(images[mine]).argmax(1) == labels[mine]).sum()
    correct = hvd.allreduce(correct, op=hvd.Sum, name="correct")
    steps = hvd.allgather_object(int(optimizer.state_dict()["state"][0]["step"]))
    assert len(set(steps)) == 1, steps
    if hvd.rank() == 0:
        print(f"{steps[0]} steps, test accuracy {correct.item() / 360:.4f}")


if __name__ == "__main__":
    main()
