"""Lines for dmlc-submit over several hosts: by ssh, which DMLC's own tracker never did."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

from runs import LONG, WORKERS

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(400)]

HOST = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
print(os.environ["DMLC_TASK_ID"], os.environ["WORD"], world.size, MPI.Get_processor_name())
"""


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    here = Site(lab, tmp_path / "work")
    shutil.copy(WORKERS / "dmlc_line.py", here.folder)
    here.write("host.py", HOST)
    here.write("hosts", "# for ssh\n" + "\n".join(lab.hosts) + "\n")
    yield here


def hosts_of(done: subprocess.CompletedProcess[str], ranks: int) -> list[str]:
    """The host of each rank; every one has its number and the variable of the line."""
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines())
    words = [line.split() for line in lines]
    assert [line[:-1] for line in words] == [
        [f"[{rank}]", str(rank), "a:b", str(ranks)] for rank in range(ranks)
    ], done.stdout
    return [line[-1] for line in words]


def test_by_ssh(site: Site, flavour: str) -> None:
    """The verb takes the hosts of the file, evenly, and writes down what they write."""
    ranks = len(site.lab.hosts)
    line = (
        f"--cluster ssh --host-file hosts --num-workers {ranks} --env WORD=a:b "
        f"--sync-dst-dir /tmp/x --log-file log.txt --mpi {flavour} python host.py"
    )
    done = site("dmlc-submit", *line.split(), timeout=200)
    assert len(set(hosts_of(done, ranks))) == ranks
    assert "--sync-dst-dir /tmp/x (the workspace is brought to all hosts" in done.stderr
    log = (site.folder / "log.txt").read_text()
    assert sorted(log.splitlines()) == sorted(done.stdout.splitlines())


def test_in_a_run_on_hosts(site: Site) -> None:
    """The shim takes the hosts of the run."""
    path = "/dmlc-core/tracker/dmlc-submit"
    line = "--cluster ssh --host-file hosts --num-workers 3 --env WORD=a:b python host.py"
    words = ["run", "--on", "lab", "--", path, *line.split()]
    done = site(*words, timeout=200)
    hosts_of(done, 3)
    assert "--host-file (the run has its hosts)" in done.stderr


@pytest.mark.skipif(not LONG, reason="takes long: SHANTY_TEST_LONG=1 runs it")
def test_a_configuration_file(site: Site) -> None:
    """Each host has its share of the rows; the model comes back, once."""
    pytest.importorskip("xgboost")
    rows = [f"{row % 2} 0:{row * 37 % 101} 2:{row % 2 * 5 + row % 3}" for row in range(999)]
    site.write("train.txt", "\n".join(rows) + "\n")
    site.write("a.conf", 'objective = binary:logistic\ndata = "train.txt?format=libsvm"\n')
    line = "--cluster ssh -H hosts -n 3 xgboost a.conf eval_train=1 model_out=last.json"
    done = site("dmlc-submit", *line.split(), timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("train-logloss:") == 10
    assert [path.name for path in site.last.artifacts.iterdir()] == ["last.json"]
