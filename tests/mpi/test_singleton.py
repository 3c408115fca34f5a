"""A process that no launcher has started trains by itself, and leaves no file of MPI behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.mpi]

STARTS = {
    "torch": "import shanty.torch, torch.distributed as d; d.init_process_group('mpi')",
    "horovod": "import shanty.torch as hvd; hvd.init(); assert hvd.size() == 1",
    "xgboost": "import shanty.xgboost as xgb; xgb.init(); assert xgb.size() == 1",
    "lightgbm": "import shanty.lightgbm as lgb; lgb.init(); assert lgb.size() == 1",
}


@pytest.mark.parametrize("package", STARTS)
def test_nothing_is_left(tmp_path: Path, package: str) -> None:
    pytest.importorskip("torch" if package == "horovod" else package)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_"))}
    folders = {"TMPDIR": str(tmp_path), "OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}
    script = (
        "import os; before = dict(os.environ); KEPT = 'TMPDIR', 'OMPI_MCA_btl'\n"
        f"{STARTS[package]}\n"
        "from mpi4py import MPI; assert MPI.Is_initialized()\n"
        "assert all(os.environ.get(name) == before.get(name) for name in KEPT)"
    )
    subprocess.run([sys.executable, "-c", script], env={**kept, **folders}, check=True, timeout=60)
    left = [each.name for each in tmp_path.rglob("*") if not each.name.startswith("torchinductor")]
    assert left == []
