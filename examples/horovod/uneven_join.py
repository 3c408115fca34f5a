"""Processes with unequal shares of the data: who is through joins, the others go on."""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--lr", type=float, default=0.02, help="of one process")


def share(count):
    """This process's part of `count` things: rank r has r + 1 parts where rank 0 has one."""
    parts = hvd.size() * (hvd.size() + 1) // 2
    begin = hvd.rank() * (hvd.rank() + 1) // 2
    return slice(count * begin // parts, count * (begin + hvd.rank() + 1) // parts)


def main():
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(5)
    torch.set_num_threads(1)
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], torch.tensor(data.target)[order]
    test_images, test_labels = images[:360], labels[:360]
    mine = share(len(images) - 360)
    images, labels = images[360:][mine], labels[360:][mine]

    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(args.epochs):
        for batch in torch.randperm(len(images)).split(args.batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        # The others have gone on without those that joined: these take up the newest model.
        last = hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        hvd.broadcast_optimizer_state(optimizer, root_rank=last)
        if hvd.rank() == last:
            print(f"epoch {epoch + 1}: rank {last} was last, loss {loss.item():.4f}", flush=True)

    with torch.no_grad():
        correct = (model(test_images).argmax(1) == test_labels)[hvd.rank() :: hvd.size()].sum()
    correct = hvd.allreduce(correct, op=hvd.Sum, name="correct")
    shares = hvd.allgather(torch.tensor([len(images)]), name="shares").tolist()
    if hvd.rank() == 0:
        print(f"images on each process: {shares}")
        print(f"test accuracy {correct.item() / len(test_images):.4f}")


if __name__ == "__main__":
    main()
