"""Horovod's scripts and lines over several hosts: the stand-in is there, and so are commits."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

from runs import WORKERS

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(400)]

SCRIPTS = ("hvd_elastic.py", "hvd_line.py", "elastic_loss.py")
PLACE = ("--on", "lab", "-n", "2", "--ppn", "1")


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    here = Site(lab, tmp_path / "work")
    for name in SCRIPTS:
        shutil.copy(WORKERS / name, here.folder)
    yield here


def test_a_horovodrun_line(site: Site, flavour: str) -> None:
    line = ["horovodrun", "-np", "3", "--cycle-time-ms", "4", "python", "hvd_line.py"]
    done = site("run", "--on", "lab", "--mpi", flavour, "--", *line, timeout=200)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] world 6" for rank in range(3)]
    said = [line for line in done.stderr.splitlines() if re.match(r"\[\d+\] ", line)]  # of ranks
    assert sorted(said) == [f"[{rank}] HOROVOD_CYCLE_TIME=4" for rank in range(3)]


def test_the_verb_takes_its_hosts(site: Site) -> None:
    line = ["horovodrun", "-np", "3", "-H", "lab", "--log-level", "ERROR", "python", "hvd_line.py"]
    done = site(*line, timeout=200)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] world 6" for rank in range(3)]
    assert done.stderr.count("HOROVOD_LOG_LEVEL=ERROR") == 3


def test_the_others_go_on_without_a_rank_of_another_host(site: Site) -> None:
    wanted = ("-q", "--on", "lab", "--mpi", "openmpi5", "-n", "3", "--ppn", "1", "--elastic=2")
    done = site("run", *wanted, "elastic_loss.py", "exception", "1", timeout=300)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line.partition("] ")[2]) for line in done.stdout.splitlines()]
    assert {(each["first"], each["rank"], each["size"]) for each in told} == {(0, 0, 2), (2, 1, 2)}
    lost = r"shanty: rank 1 on lab2 ended with exit code 1: ValueError: planted \([\d:]+\); 2 of 3"
    assert re.search(lost, done.stderr), done.stderr


def test_a_training_that_is_killed_goes_on(site: Site) -> None:
    """Its script knows of Horovod only, which is there on the hosts."""
    words = ("hvd_elastic.py", "200", "120", "0")
    done = site("run", "-q", *PLACE, *words, timeout=300)
    assert done.returncode == 137, done.stderr
    done = site("run", "-q", *PLACE, "-e", "UNHARMED=1", *words, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "goes on from the commit of" in done.stderr
    assert "begins at 100" in done.stdout or "begins at 50" in done.stdout
    assert "ends with" in done.stdout


def test_another_attempt_goes_on_from_the_copy_on_another_host(site: Site, flavour: str) -> None:
    """As if rank 0's host had lost its disk and its memory."""
    words = ("hvd_elastic.py", "300", "220", "0")
    more = ("--retries", "1", "--mpi", flavour, "-e", "FORGET=host")
    done = site("run", "-q", *PLACE, *more, *words, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "attempt 2 of 2 on lab1, lab2" in done.stderr
    assert done.stdout.count("forgotten") == 2, done.stdout
    assert done.stderr.count("goes on from the commit of") == 1
    again = done.stdout.rpartition("begins at ")[2].split()[0]
    assert int(again) in range(50, 201, 50)  # a commit that takes long may be left out
    for host in ("lab1", "lab2"):
        assert not [path for path in site.files(host) if path.startswith("/dev/shm/shanty-")]


CALL = """
import shanty.compat
shanty.compat.install()
import horovod

def where(word):
    import os
    from mpi4py import MPI
    return MPI.COMM_WORLD.rank, os.uname().nodename, word

if __name__ == "__main__":
    print(horovod.run(where, ("a",), num_proc=3, hosts="lab"))
"""


def test_run_on_hosts(site: Site) -> None:
    site.write("call.py", CALL)
    done = subprocess.run(
        [sys.executable, "call.py"],
        cwd=site.folder,
        env=site.lab.shanty.environ,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = ast.literal_eval(done.stdout.splitlines()[-1])
    assert [(rank, word) for rank, _, word in found] == [(0, "a"), (1, "a"), (2, "a")]
    assert len({host for _, host, _ in found}) > 1
