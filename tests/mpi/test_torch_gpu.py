"""CUDA tensors over the `mpi` backend, each way that this machine has."""

from __future__ import annotations

import pytest

from torch_runs import checks, launch, passed

torch = pytest.importorskip("torch")
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(GPUS == 0, reason="no GPU that PyTorch can use is in this machine"),
]


@pytest.mark.parametrize("name", checks("torch_gpu.py"))
def test_staged(name: str) -> None:
    done = launch(2, "torch_gpu.py", SHANTY_CUDA="staged")
    passed(done, name)
    assert "CUDA tensors go by MPI, by way of pinned host memory" in done.stderr


@pytest.mark.skipif(GPUS < 2, reason="NCCL needs a GPU for each of two ranks")
@pytest.mark.parametrize("name", checks("torch_gpu.py"))
def test_nccl(name: str) -> None:
    passed(launch(2, "torch_gpu.py", SHANTY_CUDA="nccl"), name)
