"""CUDA tensors over the `mpi` backend, each way that this machine has."""

from __future__ import annotations

import pytest

from launches import Launches

torch = pytest.importorskip("torch")
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(GPUS == 0, reason="no GPU that PyTorch can use is in this machine"),
]


def test_staged(launches: Launches) -> None:
    done = launches.check("openmpi5", 2, "distributed", "torch_gpu", SHANTY_CUDA="staged")
    assert "CUDA tensors go by MPI, by way of pinned host memory" in done.stderr


@pytest.mark.skipif(GPUS < 2, reason="NCCL needs a GPU for each of two ranks")
def test_nccl(launches: Launches) -> None:
    launches.check("openmpi5", 2, "distributed", "torch_gpu", SHANTY_CUDA="nccl")
