"""Record what Horovod does during some steps of a training, and look at the record."""

import argparse
import collections
import json

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--timeline", default="timeline.json", help="for chrome://tracing, Perfetto")
parser.add_argument("--first", type=int, default=20, help="step from which it is recorded")
parser.add_argument("--count", type=int, default=30, help="steps that are recorded")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--steps", type=int, default=600, help="of one process; fewer on more")
parser.add_argument("--lr", type=float, default=0.05, help="of one process")


def events(path):
    """How often each event was begun, on any tensor."""
    with open(path) as file:
        text = file.read().strip().rstrip(",")
    recorded = json.loads(text if text.endswith("]") else text + "]")
    return collections.Counter(each["name"] for each in recorded if each.get("ph") == "B")


def main():
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(11)
    torch.set_num_threads(1)
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], torch.tensor(data.target)[order]

    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    chance = torch.Generator().manual_seed(hvd.rank())
    for step in range(args.steps // hvd.size()):
        if step == args.first:
            hvd.start_timeline(args.timeline, mark_cycles=True)
        batch = torch.randint(360, len(images), (args.batch_size,), generator=chance)
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        if step == args.first + args.count:
            hvd.stop_timeline()

    with torch.no_grad():
        correct = (model(images[:360]).argmax(1) == labels[:360])[hvd.rank() :: hvd.size()].sum()
    correct = hvd.allreduce(correct, op=hvd.Sum, name="correct")
    if hvd.rank() == 0:
        if hvd.size() > 1:
            for name, often in events(args.timeline).most_common():
                print(f"{often:6} {name}")
        print(f"test accuracy {correct.item() / 360:.4f}")


if __name__ == "__main__":
    main()
