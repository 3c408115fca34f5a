"""Hosts that are cut off or frozen and parts that are killed: the run ends, by the host's name."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

from runs import wait_for
from shanty.runtime.mpi.processes import DAEMONS
from shanty.runtime.rundir import read_json

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

BOUND = 15  # seconds from the fault to the end of the run
GONE = 10  # seconds after the fault is over, by which nothing is left


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    """Runs on the lab; afterwards nothing of them is there."""
    here = Site(lab, tmp_path / "work")
    before = {host: here.files(host) for host in lab.hosts}
    yield here
    wait_for(lambda: not here.remains(here.last.id), GONE, f"left: {here.remains(here.last.id)}")
    for host in lab.hosts:
        wait_for(lambda host=host: here.files(host) == before[host], GONE, f"files on {host}")
        # The next contact finds nothing of the run that could still be used.
        assert "shanty:" not in lab.exec(host, "sh", "-c", "cat ~/.ssh/authorized_keys").stdout


def ends_by(site: Site, process: object, host: str, began: float) -> str:
    """Wait for the run's end; it must be in time and name the host. Returns what it says."""
    wait_for(lambda: process.poll() is not None, BOUND - (time.monotonic() - began), "it goes on")
    status = site.status()
    assert status["state"] == "failed"
    assert host in status["failure"]["what"]
    what: str = status["failure"]["what"]
    return what


@pytest.mark.parametrize(("fault", "cure"), [("cut", "join"), ("freeze", "thaw")])
def test_a_worker_falls_silent(site: Site, flavour: str, fault: str, cure: str) -> None:
    with site.running(flavour) as process:
        began = time.monotonic()
        site.lab.do(fault, "lab2")
        try:
            what = ends_by(site, process, "lab2", began)
        finally:
            site.lab.do(cure, "lab2")
    assert re.fullmatch("host lab2 has sent nothing for [1-9][0-9] s", what)


@pytest.mark.parametrize(("fault", "cure"), [("cut", "join"), ("freeze", "thaw")])
def test_the_lead_host_falls_silent(site: Site, fault: str, cure: str) -> None:
    with site.running("openmpi5") as process:
        began = time.monotonic()
        site.lab.do(fault, "lab1")
        try:
            what = ends_by(site, process, "lab1", began)
        finally:
            site.lab.do(cure, "lab1")
    assert what == "the lead host lab1 cannot be reached"


def test_a_host_is_started_anew(site: Site) -> None:
    with site.running("openmpi5") as process:
        began = time.monotonic()
        site.lab.do("reboot", "lab3")
        ends_by(site, process, "lab3", began)
    # Nobody was left there to take the run's key out: the next contact does.
    assert site("run", "-q", "--on", "lab", "-n", "3", "hostname").returncode == 0


@pytest.mark.parametrize(
    ("host", "program", "named"),
    [
        (
            "lab2",
            f"^[^ ]*/({'|'.join(DAEMONS)})",
            "the launcher's daemon on host lab2 was ended by SIGKILL",
        ),
        # What stands for the launcher's ssh; the daemon itself is on.
        (
            "lab1",
            "rank[.]rsh_client",
            "the launcher's connection to host lab[23] was ended on lab1",
        ),
        (
            "lab1",
            "^[^ ]*/(prterun|mpirun|mpiexec)",
            "the launcher on host lab1 was ended by SIGKILL",
        ),
    ],
    ids=["daemon", "connection", "launcher"],
)
def test_a_part_of_the_launcher_is_killed(
    site: Site, flavour: str, host: str, program: str, named: str
) -> None:
    with site.running(flavour) as process:
        began = time.monotonic()
        done = site.lab.exec(host, "pkill", "-KILL", "-f", program)
        assert done.returncode == 0, done.stderr
        what = ends_by(site, process, host, began)
    assert re.fullmatch(named, what)


def test_a_workers_agent_is_killed(site: Site, flavour: str) -> None:
    with site.running(flavour) as process:
        began = time.monotonic()
        done = site.lab.exec("lab3", "pkill", "-KILL", "-f", "agent[.]worker_agent")
        assert done.returncode == 0, done.stderr
        ends_by(site, process, "lab3", began)


def left_in_work(site: Site, host: str) -> list[str]:
    """The folders of runs that a host still has."""
    return sorted(path.name for path in (site.lab.home(host) / ".shanty" / "work").glob("*"))


def test_a_workers_agent_is_stopped(site: Site) -> None:
    """As by SIGSTOP: the host is well, so the end of the run removes all that is there."""
    with site.running("openmpi5") as process:
        began = time.monotonic()
        done = site.lab.exec("lab3", "pkill", "-STOP", "-f", "agent[.]worker_agent")
        assert done.returncode == 0, done.stderr
        what = ends_by(site, process, "lab3", began)
    assert re.fullmatch("host lab3 has sent nothing for [1-9][0-9] s", what)
    assert not [name for name in left_in_work(site, "lab3") if name.startswith(site.last.id)]


def test_what_a_stopped_agent_left_is_named_and_removed(site: Site) -> None:
    """Its host was cut off as well at the end of the run, so that nobody could remove it."""
    with site.running("openmpi5") as process:
        began = time.monotonic()
        done = site.lab.exec("lab3", "pkill", "-STOP", "-f", "agent[.]worker_agent")
        assert done.returncode == 0, done.stderr
        site.lab.do("cut", "lab3")
        try:
            ends_by(site, process, "lab3", began)
        finally:
            site.lab.do("join", "lab3")
    run = f"{site.last.id}.2"
    assert run in left_in_work(site, "lab3")
    old = time.time() - 600  # by then every controller would have given it up
    folder = site.lab.home("lab3") / ".shanty/work" / run
    for path in (folder, folder / "heard"):
        os.utime(path, (old, old))
    found = json.loads(site("doctor", "lab", "--json").stdout)["findings"]
    assert ("strays", "lab3") in [(one["code"], one["host"]) for one in found], found
    done = site("run", "--on", "lab", "-n", "3", "--ppn", "1", "hostname")
    assert done.returncode == 0, done.stderr
    assert f"lab3: removed what run {run} left" in done.stderr
    assert run not in left_in_work(site, "lab3")


@pytest.mark.parametrize("agent", ["controller", "node_agent"])
def test_an_agent_of_the_lead_host_is_killed(site: Site, agent: str) -> None:
    with site.running("openmpi5") as process:
        began = time.monotonic()
        text = site.lab.exec(
            "lab1", "sh", "-c", f"cat ~/.shanty/work/{site.last.id}.0/agents.json"
        ).stdout
        path = site.folder / "agents.json"
        path.write_text(text)
        pid = (read_json(path) or {})[agent]["pid"]
        assert site.lab.exec("lab1", "kill", "-KILL", str(pid)).returncode == 0
        ends_by(site, process, "lab1", began)


REMOVES = """
import os, shutil
from mpi4py import MPI
world = MPI.COMM_WORLD
print("before", world.rank, flush=True)
world.barrier()
if world.rank == {rank}:
    shutil.rmtree(os.path.expanduser("~/.shanty/work"), ignore_errors=True)
world.barrier()
for number in range(1000):
    print("after", world.rank, number)
"""


def test_the_folder_of_a_worker_is_removed(site: Site) -> None:
    """All that its ranks write is kept, and the loss of the rest is not taken for success."""
    site.write("removes.py", REMOVES.format(rank=1))
    done = site("run", "-q", "--on", "lab", "-n", "3", "--ppn", "1", "removes.py")
    wanted = [f"[{rank}] before {rank}" for rank in range(3)]
    wanted += [f"[{rank}] after {rank} {number}" for rank in range(3) for number in range(1000)]
    assert sorted(done.stdout.splitlines()) == sorted(wanted)
    assert done.returncode == 71
    failure = site.status()["failure"]
    folder = f"/.shanty/work/{site.last.id}.1"
    assert failure["what"].startswith("the run's folder on host lab2 was removed during the run: ")
    assert failure["what"].endswith(folder)


def test_the_folder_of_the_lead_host_is_removed(site: Site) -> None:
    site.write("removes.py", REMOVES.format(rank=0) + "world.recv(source=0)\n")
    done = site("run", "-q", "--on", "lab", "-n", "3", "--ppn", "1", "removes.py")
    assert done.returncode in (71, 75), done.stderr
    failure = site.status()["failure"]
    assert "lab1" in failure["what"]
    assert "was removed" in failure["what"]


def test_a_host_that_cannot_be_reached_is_named_before_the_run(site: Site) -> None:
    site.write("up.py", "print(1)")
    site("run", "-q", "--on", "lab", "-n", "3", "hostname")
    runs = set((site.lab.shanty.home / "runs").iterdir())
    site.lab.do("cut", "lab3")
    try:
        done = site("run", "--on", "lab", "-n", "3", "up.py")
    finally:
        site.lab.do("join", "lab3")
    assert done.returncode == 69
    assert "lab3" in done.stderr
    assert "lab2" not in done.stderr.partition("cannot be")[2]
    assert set((site.lab.shanty.home / "runs").iterdir()) == runs


def test_ctrl_c_while_hosts_are_prepared(site: Site) -> None:
    """It leaves no run, no key and no agent."""
    site("run", "-q", "--on", "lab", "-n", "3", "hostname")
    runs = set((site.lab.shanty.home / "runs").iterdir())
    site.lab.do("freeze", "lab3")
    try:
        process = site.start("run", "--on", "lab", "-n", "3", "hostname")
        assert process.stderr is not None
        process.stderr.readline()  # it has begun to connect
        process.send_signal(2)
        process.communicate(timeout=20)
    finally:
        site.lab.do("thaw", "lab3")
    assert process.returncode == 130
    assert set((site.lab.shanty.home / "runs").iterdir()) == runs


def test_a_loss_that_becomes_nan_on_another_host(site: Site) -> None:
    site.write(
        "nan.py",
        "import shanty\nfrom mpi4py import MPI\n\nrank = MPI.COMM_WORLD.rank\n"
        "for step in range(3):\n"
        "    shanty.log({'loss': float('nan') if rank and step else 1.0}, step=step)\n"
        "    MPI.COMM_WORLD.barrier()\n",
    )
    done = site("run", "-q", "--on", "lab", "-n", "2", "--ppn", "1", "nan.py")
    assert done.returncode == 0, done.stderr
    assert site.status()["not_finite"] == "loss became NaN on rank 1 at step 1"
