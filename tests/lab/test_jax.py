"""JAX over three hosts, on every MPI, and the addresses that frameworks are given there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts, lab_in
from site_runs import Site

from environments import JAX, environment
from runs import WORKERS

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]

PLACES = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
rank = config["task"]["index"]
assert rank == int(os.environ["RANK"])
own = config["cluster"]["worker"][rank]
host, port = own.rsplit(":", 1)
with socket.socket() as listener:  # it is this host's, and free
    listener.bind((host, int(port)))
print(json.dumps([rank, os.environ["SHANTY_ADDRESS"], own]), flush=True)
"""


@pytest.fixture(scope="module")
def roomy(lab: LabHosts) -> Iterator[LabHosts]:
    """The lab, whose hosts are emptied before it ends."""
    yield lab
    empty(lab)


def empty(lab: LabHosts) -> None:
    """Remove what hosts were sent: JAX takes 2 GB, whose removal is no part of a lab's end."""
    for host in lab.hosts:
        done = lab.ssh(host, "rm -rf ~/.shanty/store", timeout=120)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def site(roomy: LabHosts, tmp_path: Path) -> Iterator[Site]:
    here = Site(roomy, tmp_path / "work")
    shutil.copy(WORKERS / "jax_training.py", here.folder)
    yield here


@pytest.fixture
def jax() -> Path:
    return environment("jax", JAX)


def said(out: str) -> list[str]:
    return sorted(line for line in out.splitlines() if "[Gloo]" not in line)


@pytest.mark.sampled(12)  # it takes 2 GB to the hosts
def test_jax(site: Site, jax: Path, flavour: str) -> None:
    where = ["--on", "lab", "--mpi", flavour, "--python", jax]
    done = site("run", "-q", *where, "-n", "3", "--ppn", "1", "jax_training.py", timeout=200)
    assert done.returncode == 0, done.stderr
    assert said(done.stdout) == [f"[{rank}] ok {rank} of 3" for rank in range(3)]


@pytest.mark.sampled(12)  # it takes 2 GB to the hosts
def test_a_users_line(site: Site, jax: Path, flavour: str) -> None:
    """Which host a rank is on is for the launcher to say; rank 0's is known."""
    line = ["mpirun", "-np", "2", "bash", "-c", "python jax_training.py; true"]
    where = ["--on", "lab", "--mpi", flavour, "--python", jax]
    done = site("run", "-q", *where, "--", *line, timeout=200)
    assert done.returncode == 0, done.stderr
    assert said(done.stdout) == ["[0] ok 0 of 2", "[1] ok 1 of 2"]


@pytest.mark.parametrize("ranks", [("-n", "3", "--ppn", "1"), ("-n", "4"), ("--ppn", "2")])
def test_each_rank_has_an_address_of_its_host(
    site: Site, flavour: str, ranks: tuple[str, ...]
) -> None:
    (site.folder / "places.py").write_text(PLACES)
    done = site("run", "-q", "--on", "lab", "--mpi", flavour, *ranks, "places.py")
    assert done.returncode == 0, done.stderr
    places = [json.loads(line.split(" ", 1)[1]) for line in done.stdout.splitlines()]
    assert sorted(rank for rank, _, _ in places) == list(range(len(places)))
    assert all(own.startswith(f"{address}:") for _, address, own in places)
    assert len({own for _, _, own in places}) == len(places)


@pytest.mark.sampled(12)  # it takes 2 GB to the hosts
def test_hosts_whose_names_mean_themselves(jax: Path, tmp_path: Path) -> None:
    """As Debian has it: a host's own name is 127.0.1.1, where no other one finds it."""
    (tmp_path / "home").mkdir()
    with lab_in(tmp_path / "home", 2, "--name", "own") as lab:
        for host in lab.hosts:
            own = f"told=$(sed 's/^[^ ]* {host}$/127.0.1.1 {host}/' /etc/hosts)"
            words = f'{own}; echo "$told" > /etc/hosts; getent hosts {host}'
            done = lab.exec(host, "sh", "-c", words)
            assert done.stdout.startswith("127.0.1.1"), done.stdout + done.stderr
        site = Site(lab, tmp_path / "work")
        shutil.copy(WORKERS / "jax_training.py", site.folder)
        where = ["--on", "own", "--python", jax, "-n", "2", "--ppn", "1"]
        done = site("run", "-q", *where, "jax_training.py", timeout=100)
        assert done.returncode == 0, done.stderr
        assert said(done.stdout) == ["[0] ok 0 of 2", "[1] ok 1 of 2"]
        empty(lab)
