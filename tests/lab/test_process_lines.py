"""A torchrun line over several hosts: given once, its processes are the ranks on all of them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

from runs import WORKERS

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(400)]
RDZV = "--rdzv-backend c10d --rdzv-endpoint 10.0.0.9:29400 --rdzv-id 7"


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    here = Site(lab, tmp_path / "work")
    shutil.copy(WORKERS / "launcher_line.py", here.folder)
    yield here


def check(done: subprocess.CompletedProcess[str], hosts: int, each: int, said: str) -> None:
    """So many ranks on each host, in its order."""
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = hosts * each
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] {rank} of {ranks}{said} | GROUP_RANK={rank // each} GROUP_WORLD_SIZE={hosts} "
        f"LOCAL_RANK={rank % each} LOCAL_WORLD_SIZE={each} ROLE_RANK={rank}"
        for rank in range(ranks)
    ]


def test_torchrun_trains_over_all_hosts(site: Site, flavour: str) -> None:
    hosts = len(site.lab.hosts)
    line = f"torchrun --nnodes {hosts} --nproc-per-node 1 {RDZV} launcher_line.py train"
    done = site("run", "--on", "lab", "--mpi", flavour, "--", *line.split(), timeout=300)
    check(done, hosts, 1, f" sum {hosts * (hosts + 1) // 2} train")
    assert "--rdzv-endpoint 10.0.0.9:29400" in done.stderr


def test_as_many_on_each_host(site: Site, flavour: str) -> None:
    """As the run's own line, and in a script that calls it, by name and as a module."""
    hosts = len(site.lab.hosts)
    place = ("--on", "lab", "--mpi", flavour, "--oversubscribe")
    line = "torchrun --nproc-per-node 2 launcher_line.py"
    check(site("run", "-q", *place, "--", *line.split(), timeout=200), hosts, 2, "")
    for name in ("torchrun", "python -m torch.distributed.run"):
        site.write("x.sh", f"{name} --nnodes 1:2 --nproc-per-node 2 launcher_line.py\n")
        done = site("run", "-q", *place, "--raw", "bash", "x.sh", timeout=200)
        check(done, 2, 2, "")


def test_what_does_not_fit(site: Site) -> None:
    line = "torchrun --nnodes 9 --nproc-per-node 1 launcher_line.py"
    done = site("run", "--on", "lab", "--", *line.split(), timeout=100)
    assert done.returncode == 2
    assert "9 ranks do not fit with 1 a host" in done.stderr
    site.write("x.sh", f"{line}\n")
    done = site("run", "-q", "--on", "lab", "--raw", "bash", "x.sh", timeout=100)
    assert done.returncode == 2
    assert f"--nnodes asks for 9 hosts, and the run has {len(site.lab.hosts)}" in done.stderr
