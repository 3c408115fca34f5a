"""One home on all hosts, as by NFS; and two users who start at one instant on the same hosts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import LabHome, LabHosts, lab_in
from faults_world import World
from site_runs import Site

from launches import LONG
from runs import wait_for

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]

RUN = ("run", "--on", "lab", "--ppn", "1", "-n", "3")
HELLO = """
import getpass
import shanty
from mpi4py import MPI
world = MPI.COMM_WORLD
(shanty.artifacts() / f"of-{world.rank}").write_text("x" * 1000)
print("sum", world.allreduce(1), getpass.getuser(), MPI.Get_processor_name(), flush=True)
"""
FAILS = """
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 2:
    raise RuntimeError("a fault of this rank")
MPI.COMM_WORLD.Barrier()
"""
WAITS = """
from mpi4py import MPI
import time
print("up", flush=True)
while True:
    MPI.COMM_WORLD.Barrier()
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHosts]:
    with lab_in(tmp_path_factory.mktemp("shared"), 3, "--shared-home") as found:
        yield found


@pytest.fixture
def site(shared: LabHosts, tmp_path: Path) -> Site:
    here = Site(shared, tmp_path / "work")
    here.write("hello.py", HELLO)
    return here


def left_in(home: Path) -> list[str]:
    """What runs have left in a home, but for the store and what is kept to be sent less."""
    work = home / ".shanty" / "work"
    return [str(path) for path in work.iterdir()] if work.is_dir() else []


def test_runs_from_one_home(site: Site, flavour: str) -> None:
    home = site.lab.home("lab1")
    before = (home / ".ssh/authorized_keys").read_bytes()
    shutil.rmtree(home / ".shanty", ignore_errors=True)
    for _ in ("nothing is there yet", "all is there"):
        done = site(*RUN, "--mpi", flavour, "hello.py")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("sum 3") == 3
        assert {each for each in ("lab1", "lab2", "lab3") if each in done.stdout} == {
            "lab1", "lab2", "lab3",
        }  # fmt: skip
        assert sorted(path.name for path in site.last.artifacts.iterdir()) == [
            "of-0", "of-1", "of-2",
        ]  # fmt: skip
        assert "warning" not in done.stderr
    assert left_in(home) == []
    assert (home / ".ssh/authorized_keys").read_bytes() == before


def test_several_runs_at_once(site: Site) -> None:
    words = (*RUN, "-q", "--oversubscribe", "hello.py")
    running = [site.start(*words) for _ in range(3)]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert out.count("sum 3") == 3
    assert left_in(site.lab.home("lab1")) == []


def test_a_run_that_fails_and_one_that_is_stopped(site: Site) -> None:
    site.write("fails.py", FAILS)
    done = site(*RUN, "fails.py")
    assert "rank 2 on lab3" in done.stderr
    assert "a fault of this rank" in done.stderr
    site.write("waits.py", WAITS)
    running = site.start(*RUN, "waits.py")
    wait_for(lambda: site.status().get("state") == "running", 60)
    run = site.last.id
    beside = site(*RUN, "-q", "--oversubscribe", "hello.py")  # its sweeps leave the other alone
    assert beside.returncode == 0, beside.stderr
    assert running.poll() is None
    assert site("doctor", "lab").returncode == 0
    assert site("stop", run).returncode == 0
    assert running.wait(30) != 0
    running.communicate()
    wait_for(lambda: not left_in(site.lab.home("lab1")), 10)


# ---------------------------------------------------------------------------- two users


@pytest.fixture(scope="module")
def two_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LabHosts, LabHosts]]:
    """The lab as two users see it: its own, and ada, who has a home on each host, too."""
    if os.getuid():
        pytest.skip("only root can make another user on a lab's hosts")
    with lab_in(tmp_path_factory.mktemp("users"), 3) as lab, ExitStack() as stack:
        world = World(lab)
        stack.callback(world.close)
        ada = "ada:x:1815:1815::/home/ada:/bin/bash\n"
        key = (lab.folder / "id_ed25519.pub").read_text()
        for host in lab.hosts:
            passwd = world.own(host, "etc/passwd")
            stack.enter_context(world.text(passwd, lambda text: text + ada))
            group = world.own(host, "etc/group")
            stack.enter_context(world.text(group, lambda text: text + "ada:x:1815:\n"))
            world.console(
                host,
                f"mkdir -p /home/ada/.ssh; echo '{key.strip()}' >/home/ada/.ssh/authorized_keys; "
                "chown -R ada:ada /home/ada; chmod -R go= /home/ada",
            )
        home = tmp_path_factory.mktemp("ada")
        group = json.loads((lab.shanty.home / "hosts/lab.json").read_text())
        config = home / "ssh_config"
        config.write_text(lab.config.read_text().replace("User root", "User ada"))
        assert "User ada" in config.read_text()
        for each in group["hosts"]:
            each["config"] = str(config)
        (home / "hosts").mkdir()
        (home / "hosts/lab.json").write_text(json.dumps({**group, "lab": False}))
        yield lab, replace(lab, shanty=LabHome(home))


@LONG
def test_two_users_at_the_same_instant(
    two_users: tuple[LabHosts, LabHosts], tmp_path: Path, flavour: str
) -> None:
    sites = [Site(lab, tmp_path / f"work{index}") for index, lab in enumerate(two_users)]
    for site in sites:
        site.write("hello.py", HELLO)
    for _ in ("nothing is there yet", "all is there"):
        words = (*RUN, "--mpi", flavour, "--oversubscribe", "hello.py")
        running = [site.start(*words) for site in sites]
        for process, user in zip(running, ("root", "ada"), strict=True):
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            assert out.count(f"sum 3 {user}") == 3, out
    for host in two_users[0].hosts:
        listed = two_users[0].out(host, "ls -A /dev/shm /tmp")
        assert "sum" not in listed  # nothing of the ranks
