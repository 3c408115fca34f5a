"""Stalls over three hosts: the straggler and its host are named first, whatever it does."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

from runs import wait_for
from shanty.runtime import platform
from shanty.runtime.errors import STALL_EXIT
from shanty.runtime.mpi.processes import DAEMONS

AFTER = 3  # seconds; a user's bound is a minute
SCRIPT = """
import fcntl, os, subprocess, sys, time
import numpy
from mpi4py import MPI
world, value = MPI.COMM_WORLD, numpy.zeros(1)
case = sys.argv[1]

def train():
    while True:
        pass

def save():
    with open("/tmp/stall-lock", "w") as mine, open("/tmp/stall-lock", "w") as other:
        fcntl.flock(mine, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_EX)

def step():
    return sum(i * i for i in range(300_000))

OTHERS = '''
import os, socket, time
end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    end.sendto(bytes(60000), (os.environ["MASTER_ADDR"], 9))
    time.sleep(0.02)
'''

world.Barrier()
if case == "traffic":
    if world.rank == 2: subprocess.Popen([sys.executable, "-c", OTHERS])
    world.Recv(value, source=(world.rank + 1) % world.size)
if world.rank == 2:
    if case == "loop": train()
    if case == "lock": save()
print("on", flush=True)
while case == "cpu":
    value[0] = step()
    world.Allreduce(MPI.IN_PLACE, value)
while case == "end" and world.bcast(not os.path.exists("/tmp/stall-end"), 2):
    time.sleep(0.1)
world.Allreduce(MPI.IN_PLACE, value)
"""
CASES = {
    "loop": r"busy in train \(stuck\.py:\d+\), ranks 0, 1 wait in MPI_Allreduce",
    "lock": r"waiting in save \(stuck\.py:15\) for the lock on /tmp/stall-lock, which rank 2 holds",
}


@pytest.fixture(scope="module")
def site(lab: LabHosts, tmp_path_factory: pytest.TempPathFactory) -> Site:
    found = Site(lab, tmp_path_factory.mktemp("work"))
    found.write("stuck.py", SCRIPT)
    return found


def words(site: Site, case: str, *more: str) -> tuple[str, ...]:
    return (
        *("run", "--on", site.lab.name, "-n", "3", "--ppn", "1", "--stall-after", str(AFTER)),
        *(*more, "stuck.py", case),
    )


@pytest.mark.parametrize("case", CASES)
def test_the_odd_rank_and_its_host_come_first(site: Site, case: str) -> None:
    done = site(*words(site, case, "--on-stall", "stop"))
    assert done.returncode == STALL_EXIT, done.stderr
    first = next(line for line in done.stderr.splitlines() if "no progress for" in line)
    host = site.lab.hosts[2]
    assert re.search(rf"no progress for {AFTER} s: rank 2 on {host} is {CASES[case]}", first), first
    assert re.search(
        r"\nrank 2:  ← out of step\n.*\nranks 0-1:\n  MPI_Allreduce\n", done.stderr, re.S
    )
    assert all(f"\n{name}: load " in done.stderr for name in site.lab.hosts)
    assert (site.status()["failure"]["rank"], site.status()["failure"]["host"]) == (2, host)


def test_what_other_programs_send_says_nothing(site: Site) -> None:
    """3 MB/s between the hosts: that of the ranks themselves would be on its way."""
    done = site(*words(site, "traffic", "--on-stall", "stop"))
    assert done.returncode == STALL_EXIT, done.stderr
    assert f"no progress for {AFTER} s: all ranks wait in MPI_Recv\n" in done.stderr


def test_a_daemon_of_the_launcher_is_stopped(site: Site, flavour: str) -> None:
    """The ranks do not need it before their end."""
    before = set((site.lab.shanty.home / "runs").glob("*"))
    process = site.start(*words(site, "end", "--mpi", flavour, "--on-stall", "stop"))
    wait_for(lambda: set((site.lab.shanty.home / "runs").glob("*")) - before, 90)
    wait_for(lambda: b"on" in b"".join(p.read_bytes() for p in site.last.rank_logs().values()), 60)
    host = site.lab.hosts[2]
    daemons = "|".join(DAEMONS)
    done = site.lab.exec(host, "pkill", "-STOP", "-f", f"^[^ ]*/({daemons})")
    assert done.returncode == 0, done.stderr
    try:
        site.lab.exec(host, "touch", "/tmp/stall-end")
        _, said = process.communicate(timeout=60)
    finally:
        site.lab.exec(host, "rm", "-f", "/tmp/stall-end")
    assert process.returncode == STALL_EXIT, said
    stopped = rf"the launcher's ({daemons}) \(pid \d+\) on host {host} is stopped, as by SIGSTOP"
    assert re.search(stopped, said), said


@pytest.fixture
def cpu_group() -> Iterator[Path]:
    """A control group that may use a thousandth of a core."""
    roots = [Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")]
    root = next((path for path in roots if (path / "cgroup.procs").exists()), None)
    if root is None or not os.access(root / "cgroup.procs", os.W_OK):
        pytest.skip("no control groups can be made here")
    group = root / f"shanty-test-{os.getpid()}"
    group.mkdir()
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text("1000 1000000")
        elif (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text("1000000")
            (group / "cpu.cfs_quota_us").write_text("1000")
        else:
            pytest.skip("no control group for CPU time here")
        yield group
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), 20, "the group is not empty")
        group.rmdir()


def processes_of(site: Site, rank: int) -> list[int]:
    """The processes of a rank, seen from outside of its host."""
    found = []
    for entry in platform.marked("SHANTY_RUN_ID", site.last.id):
        try:
            environ = Path(f"/proc/{entry.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"RANK={rank}".encode() in environ:
            found.append(entry.pid)
    return found


def started(site: Site, *more: str) -> object:
    """A run of the last case that is on."""
    before = set((site.lab.shanty.home / "runs").glob("*"))
    process = site.start(*words(site, "cpu", *more))
    wait_for(lambda: set((site.lab.shanty.home / "runs").glob("*")) - before, 30)
    wait_for(lambda: b"on" in b"".join(p.read_bytes() for p in site.last.rank_logs().values()), 60)
    return process


def test_a_host_whose_cpu_is_taken_away(site: Site, cpu_group: Path) -> None:
    process = started(site, "--on-stall", "stop")
    ranks = processes_of(site, 2)
    assert ranks
    for pid in ranks:
        (cpu_group / "cgroup.procs").write_text(str(pid))
    _, said = process.communicate(timeout=60)
    assert process.returncode == STALL_EXIT, said
    assert re.search(
        rf"no progress for 3 s: rank 2 on {site.lab.hosts[2]} is ready to run, but gets 0\.\d % of",
        said,
    ), said


def test_ranks_that_are_stopped_and_go_on(site: Site) -> None:
    process = started(site)
    ranks = processes_of(site, 1)
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: site.status().get("stalled"), 30, "no stall")
    (stall,) = site.events("stall")
    assert f"rank 1 on {site.lab.hosts[1]} is stopped, as by SIGSTOP" in stall["what"]
    assert "(stalled)" in site("ps").stdout
    for pid in ranks:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: site.status().get("stalled", 1) is None, 30, "the stall goes on")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert said.count("no progress for") == 1
