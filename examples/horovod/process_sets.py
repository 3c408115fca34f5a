"""Two networks at once, each trained by its own set of processes; then they vote."""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batch-size", type=int, default=64, help="of all processes of a set")
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--lr", type=float, default=2e-3)


def wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))


def convolutional():
    layers = [nn.Conv2d(1, 20, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(20 * 16, 10))


def train(name, model, process_set, images, labels, args):
    """Train on the processes of the set; every one of them takes its part of each batch."""
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=args.lr),
        named_parameters=[(f"{name}.{key}", p) for key, p in model.named_parameters()],
        process_set=process_set,
    )
    first = process_set.ranks[0]
    for key, parameter in model.state_dict().items():
        hvd.broadcast_(parameter, first, f"{name}.{key}", process_set=process_set)
    for epoch in range(args.epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(args.batch_size):
            batch = batch[: len(batch) - len(batch) % process_set.size()]
            mine = batch[process_set.rank() :: process_set.size()]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[mine]), labels[mine])
            loss.backward()
            optimizer.step()
    loss = hvd.allreduce(loss.detach(), name=f"{name}.loss", process_set=process_set)
    if hvd.rank() == first:
        print(f"{name}: trained by ranks {process_set.ranks}, loss {loss.item():.4f}", flush=True)


def main():
    args = parser.parse_args()
    hvd.init(process_sets="dynamic")
    torch.manual_seed(hvd.rank())
    torch.set_num_threads(1)
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], torch.tensor(data.target)[order]

    if hvd.size() == 1:
        sets = [hvd.global_process_set] * 2
    else:
        half = hvd.size() // 2
        sets = [hvd.ProcessSet(range(half)), hvd.ProcessSet(range(half, hvd.size()))]
        for process_set in sets:
            hvd.add_process_set(process_set)
    members = {"wide": wide(), "convolutional": convolutional()}
    for (name, model), process_set in zip(members.items(), sets, strict=True):
        if process_set.included():
            train(name, model, process_set, images[360:], labels[360:], args)
    hvd.barrier()

    votes = torch.zeros(360, 10)
    for (name, model), process_set in zip(members.items(), sets, strict=True):
        with torch.no_grad():
            vote = model(images[:360]).softmax(1)
        votes += hvd.broadcast(vote, process_set.ranks[0], name=f"vote.{name}")
    accuracy = (votes.argmax(1) == labels[:360]).float().mean().item()
    if hvd.size() > 1:
        for process_set in sets:
            hvd.remove_process_set(process_set)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
