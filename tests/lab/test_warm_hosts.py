"""`--warm` over several hosts: each has a fork server, and nothing is left of one."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LabHosts
from site_runs import Site

from runs import wait_for

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(400)]

GONE = 15  # seconds after the end by which nothing is left
SERVER = "rank/fork_server[.]py"
# The first attempt waits for its end; each says whether its modules were there.
AGAIN = """
import os, sys, time
early = "numpy" in sys.modules
from mpi4py import MPI
import numpy
MPI.COMM_WORLD.Barrier()
print("early" if early else "late", MPI.Get_processor_name(), flush=True)
if "SHANTY_ATTEMPT_DIR" not in os.environ:
    time.sleep(300)
"""
NOTE = "ranks of this host start without --warm"


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    here = Site(lab, tmp_path / "work")
    here.write("again.py", AGAIN)
    before = {host: here.files(host) for host in lab.hosts}
    yield here
    left = lambda: [host for host in lab.hosts if servers(here, host)]  # noqa: E731
    wait_for(lambda: not left() and not here.remains(here.last.id), GONE, f"left on {left()}")
    assert not [path for host in lab.hosts for path in here.files(host) - before[host]]


def servers(site: Site, host: str) -> list[str]:
    """The fork server of a host, with its watchers."""
    return site.lab.exec(host, "pgrep", "-f", SERVER).stdout.split()


def begun(site: Site, *words: str) -> subprocess.Popen[str]:
    """A run of two ranks on two hosts that wait."""
    known = set((site.lab.shanty.home / "runs").glob("*"))
    place = ("--on", "lab1,lab2", "-n", "2", "--ppn", "1")
    process = site.start("run", "-q", "--warm", *place, *words, "again.py")
    wait_for(lambda: set((site.lab.shanty.home / "runs").glob("*")) - known, 60, "no run")

    def up() -> bool:
        logs = [path.read_text() for path in site.last.rank_logs().values()]
        return sum("early" in log for log in logs) == 2

    wait_for(lambda: up() or process.poll() is not None, 120, "its ranks are not forked")
    return process


def is_on_lab2(event: dict[str, Any]) -> bool:
    return bool(event["report"]["host"] == "lab2")


@pytest.mark.sampled(1)
def test_a_server_is_killed(site: Site, flavour: str) -> None:
    """Its rank goes on; in the next attempt the host has another server."""
    process = begun(site, "--retries", "1", "--mpi", flavour)
    for pid in site.lab.exec("lab2", "pgrep", "-o", "-f", SERVER).stdout.split():
        assert site.lab.exec("lab2", "kill", "-KILL", pid).returncode == 0
    assert "again.py" in site("stacks").stdout
    (pid,) = (each["report"]["pid"] for each in site.events("rank-started") if is_on_lab2(each))
    assert site.lab.exec("lab2", "kill", "-KILL", str(pid)).returncode == 0
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "attempt 2 of 2 on lab1, lab2: rank 1 on lab2 was ended by SIGKILL" in err
    assert sorted(line.split()[1:] for line in out.splitlines() if "ly lab" in line) == [
        ["early", "lab1"], ["early", "lab1"], ["early", "lab2"], ["early", "lab2"],
    ]  # fmt: skip
    assert NOTE not in out + err


def test_ctrl_c(site: Site) -> None:
    process = begun(site)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
