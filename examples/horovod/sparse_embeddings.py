"""Digits as bags of words: an embedding for each pixel's shade, with sparse gradients.

Two optimizers share one model, as SparseAdam takes no dense gradients.
"""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

SHADES = 17  # of each of 64 pixels: 0 to 16

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--sparse-as-dense", action="store_true")


class Bag(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.embedding = nn.EmbeddingBag(64 * SHADES, width, mode="mean", sparse=True)
        self.out = nn.Linear(width, 10)

    def forward(self, words):
        return self.out(self.embedding(words))


def bags():
    """Each image as the numbers of its 64 words (pixel and shade), and its label."""
    data = load_digits()
    words = torch.tensor(data.data, dtype=torch.int64) + SHADES * torch.arange(64)
    order = torch.randperm(len(words), generator=torch.Generator().manual_seed(0))
    return words[order], torch.tensor(data.target)[order]


def main():
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    words, labels = bags()
    train = range(360 + hvd.rank(), len(words) - len(words) % hvd.size(), hvd.size())

    model = Bag()
    named = list(model.named_parameters())
    sparse = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(model.embedding.parameters(), lr=2 * args.lr),
        named_parameters=[(name, p) for name, p in named if name.startswith("embedding")],
        sparse_as_dense=args.sparse_as_dense,
    )
    dense = hvd.DistributedOptimizer(
        torch.optim.Adam(model.out.parameters(), lr=args.lr),
        named_parameters=[(name, p) for name, p in named if name.startswith("out")],
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for optimizer in (sparse, dense):
        hvd.broadcast_optimizer_state(optimizer, root_rank=0, model=model)

    batches = len(train) // args.batch_size
    for epoch in range(args.epochs):
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(epoch))
        for batch in range(batches):
            chosen = [train[i] for i in order[batch::batches]]
            sparse.zero_grad()
            dense.zero_grad()
            loss = F.cross_entropy(model(words[chosen]), labels[chosen])
            loss.backward()
            sparse.step()
            dense.step()
        loss = hvd.allreduce(loss.detach(), name="loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}")

    assert model.embedding.weight.grad.is_sparse
    model.eval()
    with torch.no_grad():
        mine = slice(hvd.rank(), 360, hvd.size())
        correct = (model(words[mine]).argmax(1) == labels[mine]).sum()
    correct = hvd.allreduce(correct, op=hvd.Sum, name="correct")
    if hvd.rank() == 0:
        print(f"test accuracy {correct.item() / 360:.4f}")


if __name__ == "__main__":
    main()
