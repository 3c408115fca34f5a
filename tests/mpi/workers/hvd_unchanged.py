"""A script as people have it, which knows of Horovod only. With `alone`, shanty is out of sight.

Its loader's workers are processes of their own, which import this file again.
"""

import sys
from pathlib import Path

if "alone" in sys.argv:  # an interpreter of the user's, in which shanty is not installed
    sys.path[:] = [path for path in sys.path if not Path(path, "shanty").exists()]
    sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in repr(each)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "shanty"]:
        del sys.modules[name]

import horovod.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812
from horovod.torch.mpi_ops import allreduce_async_, synchronize
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def data():
    torch.manual_seed(1)
    inputs = torch.randn(64, 4)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def main():
    hvd.init()
    torch.manual_seed(hvd.rank())
    sampler = DistributedSampler(data(), num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(
        data(),
        batch_size=8,
        sampler=sampler,
        num_workers=1,
        multiprocessing_context="forkserver",
        persistent_workers=True,
    )
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16,
        op=hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), target)
            loss.backward()
            optimizer.step()
    total = torch.full((3,), float(hvd.rank() + 1))
    synchronize(allreduce_async_(total, op=hvd.Sum, name="total"))
    means = hvd.allgather(torch.stack([p.detach().mean() for p in model.parameters()])[None])
    assert torch.equal(means[0], means[-1])
    print("sum", int(total[0]), "loss", hvd.allreduce(loss.detach(), name="loss").item() < 0.6)
    hvd.shutdown()


if __name__ == "__main__":
    main()
