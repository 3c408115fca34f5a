"""A small ResNet that adds up the gradients of several batches before each step.

With warm-up of the learning rate, clipped gradients and batch norm over all processes.
"""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WARMUP = 2  # epochs
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--batches-per-allreduce", type=int, default=2)
parser.add_argument("--base-lr", type=float, default=0.02, help="for one process and one batch")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--clip", type=float, default=2.0, help="largest norm of the gradients")


class Block(nn.Module):
    def __init__(self, inside, outside, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = hvd.SyncBatchNorm(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = hvd.SyncBatchNorm(outside)
        fits = inside == outside
        self.shortcut = nn.Identity() if fits else nn.Conv2d(inside, outside, 1, stride)

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


def digits():
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], torch.tensor(data.target)[order]
    return TensorDataset(images[360:], labels[360:]), images[:360], labels[:360]


def adjusted(step):
    """The factor of the learning rate: rises to the number of batches a step, then falls."""
    epoch, whole = step / steps, hvd.size() * args.batches_per_allreduce
    rising = 1 + epoch * (whole - 1) / WARMUP
    return min(rising, whole) * (0.1 if epoch >= 0.8 * args.epochs else 1)


def train(epoch):
    model.train()
    sampler.set_epoch(epoch)
    for data, target in loader:
        optimizer.zero_grad()
        for i in range(0, len(data), args.batch_size):
            part, labels = data[i : i + args.batch_size], target[i : i + args.batch_size]
            loss = F.cross_entropy(model(part), labels) / args.batches_per_allreduce
            loss.backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        with optimizer.skip_synchronize():
            optimizer.step()
        scheduler.step()
    return loss.item()


if __name__ == "__main__":
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    train_set, images, labels = digits()
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    images_a_step = args.batch_size * args.batches_per_allreduce
    loader = DataLoader(train_set, images_a_step, sampler=sampler, drop_last=True)
    steps = len(loader)

    body = nn.Sequential(Block(1, 12), Block(12, 24, stride=2), Block(24, 24))
    model = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), args.base_lr, momentum=0.9, weight_decay=5e-5),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=args.batches_per_allreduce,
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, adjusted)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    losses = [train(epoch) for epoch in range(args.epochs)]
    model.eval()
    with torch.no_grad():
        correct = (model(images).argmax(1) == labels).float()[hvd.rank() :: hvd.size()]
    accuracy = hvd.allreduce(correct.sum(), op=hvd.Sum, name="correct").item() / len(labels)
    if hvd.rank() == 0:
        print(f"last loss {losses[-1]:.4f}, test accuracy {accuracy:.4f}")
