"""Gradients travel as 16-bit floats: a multilayer perceptron reads digits."""

import argparse
import time

import horovod.torch as hvd
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fp16-allreduce", action=argparse.BooleanOptionalAction, default=True)
parser.add_argument("--num-groups", type=int, default=0, help="groups of gradients; 0: none")
parser.add_argument("--batch-size", type=int, default=48)
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--lr", type=float, default=1e-3)


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        correct = [float(c) for c in model(x).argmax(1) == y]
    gathered = hvd.allgather(torch.tensor(correct), name="correct")
    return gathered.mean().item()


def main():
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(7)
    torch.set_num_threads(1)

    digits = load_digits()
    x_train, x_test, y_train, y_test = train_test_split(
        (digits.data / 16).astype(np.float32), digits.target, test_size=360, random_state=0
    )
    x, y = torch.from_numpy(x_train), torch.from_numpy(y_train)
    x, y = x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]
    # Uneven shares: every process makes as many steps as the one that has the fewest batches.
    steps = hvd.allreduce(torch.tensor(len(x) // args.batch_size), op=hvd.Min, name="steps").item()

    model = nn.Sequential(
        *(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128)),
        *(nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128)),
        nn.Linear(128, 10),
    )
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=args.lr),
        named_parameters=model.named_parameters(),
        compression=compression,
        groups=args.num_groups or None,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    begun = time.perf_counter()
    for epoch in range(args.epochs):
        model.train()
        order = torch.randperm(len(x))
        for step in range(steps):
            chosen = order[step * args.batch_size : (step + 1) * args.batch_size]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
            loss.backward()
            optimizer.step()
        if hvd.rank() == 0 and epoch % 5 == 4:
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
    seconds = hvd.allgather_object(time.perf_counter() - begun)

    mine = slice(hvd.rank(), None, hvd.size())
    x_mine, y_mine = torch.from_numpy(x_test[mine]), torch.from_numpy(y_test[mine])
    accuracy = evaluate(model, x_mine, y_mine)
    if hvd.rank() == 0:
        print(f"{hvd.size()} processes, {steps} steps an epoch, at most {max(seconds):.1f} s")
        print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
