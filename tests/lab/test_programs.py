"""Programs that know nothing of shanty, over several hosts: MLX and mpi4py.futures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

from environments import MLX, environment
from runs import WORKERS

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]

POOL = """
from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor, get_comm_workers

def where(_):
    get_comm_workers().barrier()  # so each worker has one of them
    return MPI.Get_processor_name()

if __name__ == "__main__":
    with MPIPoolExecutor() as pool:
        print("hosts", *pool.map(where, range(2)))
"""


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    here = Site(lab, tmp_path / "work")
    shutil.copy(WORKERS / "mlx_sums.py", here.folder)
    yield here


@pytest.fixture
def mlx() -> Path:
    return environment("mlx", MLX)


@pytest.mark.parametrize("flavour", ["openmpi5", "openmpi4"])
def test_mlx(site: Site, mlx: Path, flavour: str) -> None:
    where = ["--on", "lab", "--mpi", flavour, "--python", mlx]
    done = site("run", "-q", *where, "-n", "3", "--ppn", "1", "mlx_sums.py", timeout=200)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] ok {rank} of 3" for rank in range(3)]
    assert site.status()["joined"] == 3


@pytest.mark.parametrize("flavour", ["openmpi5", "openmpi4"])
def test_mlx_in_a_shell(site: Site, mlx: Path, flavour: str) -> None:
    """The line of a tutorial for two machines.

    By its name only: hosts may have the environment elsewhere, as where it lies in /tmp here.
    """
    command = "python mlx_sums.py; true"
    line = ["mpirun", "--hostfile", "$HOSTFILE", "-np", "2", "bash", "-c", command]
    where = ["--on", "lab", "--mpi", flavour, "--python", mlx]
    done = site("run", "-q", *where, "--", *line, timeout=200)
    said = [f"[{rank}] ok {rank} of 2" for rank in range(2)]
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, said), done.stderr
    assert site.status()["joined"] == 2


def test_mlx_launch(site: Site, mlx: Path) -> None:
    line = ["mlx.launch", "--backend", "mpi", "mlx_sums.py"]
    done = site("run", "-q", "--on", "lab", "--python", mlx, "--", *line, timeout=200)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] ok {rank} of 3" for rank in range(3)]


def test_a_pool_of_ranks(site: Site, flavour: str) -> None:
    site.write("pool.py", POOL)
    words = ["--on", "lab", "--mpi", flavour, "-n", "3", "--ppn", "1", "-m", "mpi4py.futures"]
    done = site("run", "-q", *words, "pool.py", timeout=200)
    assert done.returncode == 0, done.stderr
    hosts = done.stdout.split("hosts")[1].split()
    assert len(set(hosts)) == len(hosts) == 2, done.stdout  # the third hands the work out
