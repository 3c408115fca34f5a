"""Runs in the queue for the hosts of a lab: no host has two at once, and none is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LabHosts
from site_runs import Site

import runs
from runs import wait_for
from shanty.runtime import platform
from shanty.runtime.rundir import RunDir, read_json

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(900)]

COUNT = 40 if runs.LONG else 6
PORT = 47_811  # of which each host has one: who has it is alone there
SCRIPT = f"""
import socket, sys, time
from mpi4py import MPI
print("begins", MPI.COMM_WORLD.size, flush=True)
alone = socket.socket()
alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
alone.bind(("0.0.0.0", {PORT}))
alone.listen()
time.sleep(float(sys.argv[1]))
MPI.COMM_WORLD.barrier()
"""
KINDS = ("big:1", "big:2", "small:1", "small:1,big:1", "small:1,big:2")


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    site = Site(lab, tmp_path / "work")
    first, second, third = lab.hosts
    for name, on in (("big", f"{first},{second}"), ("small", third)):
        added = site("machines", "add", name, "--on", on, "--slots", "1")
        assert added.returncode == 0, added.stderr
    site.write("alone.py", SCRIPT)
    yield site
    for pid in of_the_queue(site):
        os.kill(pid, signal.SIGKILL)


def status(run: RunDir) -> dict[str, Any]:
    return read_json(run.status) or {}


def begins(run: RunDir) -> list[int]:
    """How often each rank has begun."""
    return [run.rank_log(rank).read_bytes().count(b"begins") for rank in run.rank_logs()]


def of_the_queue(site: Site) -> list[int]:
    """The processes that serve the queue, and those that start runs."""
    found = []
    for pid in platform.processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ours = f"SHANTY_HOME={site.lab.shanty.home}".encode() in environ
        if ours and any(word.startswith(b"shanty.launch.scheduler") for word in words):
            found.append(pid)
    return found


def test_nothing_is_lost_and_nothing_twice(site: Site) -> None:
    """Stops, priorities, and kills of the commands and of what serves the queue, at random."""
    chance = random.Random(COUNT)
    known: dict[str, str] = {}  # what each run that was promised wants
    stopped: set[str] = set()
    killed = 0

    def submit() -> subprocess.Popen[str]:
        wanted = chance.choice(KINDS)
        process = site.start(
            *("run", "-d", "-q", "--machines", wanted, "--priority", str(chance.randint(0, 3))),
            *("alone.py", f"{chance.random():.2f}"),
        )
        process.wanted = wanted  # type: ignore[attr-defined]
        return process

    def ended() -> bool:
        return all(
            status(RunDir(site.lab.shanty.home / "runs" / each)).get("ended") for each in known
        )

    pending: list[subprocess.Popen[str]] = []
    while len(known) < COUNT or not ended():
        if len(known) + len(pending) < COUNT:
            pending.append(submit())
        deed = chance.random()
        serving = of_the_queue(site)
        if deed < 0.1 and serving:
            os.kill(chance.choice(serving), signal.SIGKILL)
            killed += 1
        elif deed < 0.15 and pending:
            pending[-1].kill()  # it may have promised a run, or not
            killed += 1
        elif deed < 0.2 and known:
            one = chance.choice(sorted(known))
            if (
                site("stop", one).returncode == 0
                and status(RunDir(site.lab.shanty.home / "runs" / one)).get("state") == "stopped"
            ):
                stopped.add(one)
        for process in pending[:]:
            if process.poll() is not None:
                out, err = process.communicate()
                if process.returncode == 0 or out.strip():
                    known[out.strip()] = process.wanted  # type: ignore[attr-defined]
                else:
                    assert process.returncode == -signal.SIGKILL, err
                pending.remove(process)
        assert site("ps", "-q").returncode == 0
    found = {each: RunDir(site.lab.shanty.home / "runs" / each) for each in known}
    states = {each: status(run)["state"] for each, run in found.items()}
    log = (site.lab.shanty.home / "machines" / "scheduler.log").read_text()
    for each, run in found.items():
        wanted = "stopped" if each in stopped else "succeeded"
        assert states[each] == wanted, f"{each}: {status(run)}\n{log}"
        ranks = sum(int(part.rpartition(":")[2]) for part in known[each].split(","))
        if each not in stopped:
            assert begins(run) == [1] * ranks
        assert all(count <= 1 for count in begins(run))
    print(f"{len(found)} runs, {len(stopped)} stopped, {killed} kills")
    wait_for(lambda: not of_the_queue(site), 30, "the scheduler stays for ever")


def test_the_master_has_a_machine_of_its_own(site: Site) -> None:
    line = "mpirun -np 3 --hostfile $HOSTFILE python -c 'import os; print(os.uname().nodename)'"
    done = site("run", "-q", "--machines", "small:1,big:2", line)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()[1::2]) == sorted(site.lab.hosts)
    plan = read_json(site.last.plan) or {}
    assert plan["attempt"]["nodes"][0]["name"] == site.lab.hosts[2]
