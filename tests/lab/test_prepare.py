"""Hosts with sshd and a Python only get what a run needs, once, and what changes after that."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

from gadgets import environment, install, source, wheel
from launches import LONG
from shanty.runtime.rundir import read_lines

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"
HOSTS = ("lab1", "lab2", "lab3")
HOMES = ("/home/lab1", "/srv/lab2/home", "/export/users/lab3")
RUN = ("run", "--on", "lab", "--ranks-per-host", "1", "-n")
DIFFERENT = 69  # the exit code of a PrepareError
ENOUGH = 64 << 10  # bytes that a second run may send
LIBRARY = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"

HELLO = """
import json, os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
here = [MPI.Get_processor_name(), world.rank, world.allreduce(1), os.getcwd(), sys.prefix]
print(json.dumps(here), flush=True)
"""
# Says which gadget it finds, and with which Python. Few hosts have an mpi4py of their own.
ASK = """
import json, os, sys
from mpi4py import MPI
assert MPI.COMM_WORLD.size == int(os.environ["WORLD_SIZE"])
try:
    from gadget import VERSION
except ImportError:
    VERSION = "none"
print(json.dumps([os.uname().nodename, VERSION, sys.prefix]), flush=True)
"""
# Says what is in the files of its workspace.
SUMS = """
import hashlib, json, os, pathlib
files = sorted(path for path in pathlib.Path().rglob("*") if path.is_file())
sums = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
print(json.dumps([os.uname().nodename, sums]), flush=True)
"""


@pytest.fixture
def site(bare_lab: LabHosts, tmp_path: Path) -> Site:
    """Runs on the bare hosts."""
    here = Site(bare_lab, tmp_path / "work")
    here.write("hello.py", HELLO)
    return here


def said(text: str) -> list[list[object]]:
    """What the ranks print: one JSON list each, sorted."""
    return sorted(json.loads(found) for found in re.findall(r"^(?:\[\d+\] )?(\[.*\])$", text, re.M))


def sent(site: Site) -> dict[str, int]:
    """The bytes that the hosts were sent for the newest run."""
    (prepared,) = site.events("prepared")
    found: dict[str, int] = prepared["sent"]
    return found


# -------------------------------------------------------------------- the whole of it


@LONG
@pytest.mark.timeout(600)
@pytest.mark.skipif(not (find_spec("torch") and find_spec("sklearn")), reason="no torch here")
def test_digits_train_on_three_bare_hosts_in_one_command(site: Site) -> None:
    lab = site.lab
    for host in HOSTS:
        for words in (
            "mpirun --version",
            "python3 -c 'import mpi4py'",
            "python3 -c 'import numpy'",
        ):
            assert lab.ssh(host, words).returncode != 0
        assert [path.name for path in lab.home(host).iterdir()] == [".ssh"]
    shutil.copy(EXAMPLE, site.folder)
    before = {host: (lab.home(host) / ".ssh/authorized_keys").read_bytes() for host in HOSTS}
    # with another rate it takes fewer epochs than the example
    words = ("digits.py", "--epochs", "6", "--lr", "0.01")
    done = site(*RUN, "3", *words, timeout=540)
    assert done.returncode == 0, done.stderr
    run = site.last
    accuracy = re.search(r"^\[0\] test accuracy ([\d.]+)$", done.stdout, re.M)
    assert accuracy is not None and float(accuracy[1]) > 0.95
    ranks = {
        event["report"]["rank"]: event["report"]["host"] for event in site.events("rank-joined")
    }
    assert ranks == dict(enumerate(HOSTS))
    assert (run.artifacts / "digits.pt").stat().st_size > 20_000
    metrics = read_lines(run.metrics)
    assert [line["epoch"] for line in metrics] == list(range(1, 7))
    assert metrics[-1]["accuracy"] > 0.95
    assert "test accuracy" in run.rank_log(0).read_text()
    for host in HOSTS:
        assert (lab.home(host) / ".ssh/authorized_keys").read_bytes() == before[host]
        assert not list((lab.home(host) / ".shanty" / "work").iterdir())
        assert lab.out(host, "ls -d /tmp") == "/tmp"


@LONG
def test_the_second_run_sends_next_to_nothing(site: Site) -> None:
    first = site(*RUN, "3", "hello.py", timeout=300)
    assert first.returncode == 0, first.stderr
    began = time.time()
    done = site(*RUN, "3", "hello.py")
    assert done.returncode == 0, done.stderr
    found = said(done.stdout)
    assert [one[:3] for one in found] == [[host, rank, 3] for rank, host in enumerate(HOSTS)]
    for (*_, folder, prefix), home in zip(found, HOMES, strict=True):
        assert str(folder).startswith(f"{home}/.shanty/workspaces/")
        assert str(prefix).startswith(f"{home}/.shanty/store/env/")
    assert sum(sent(site).values()) <= ENOUGH
    assert "sends" not in done.stderr
    joined = max(event["time"] for event in site.events("rank-joined"))
    assert joined - began < 20  # it takes 3 to 4 on a machine with nothing else to do


def test_an_edited_file_is_sent_alone(site: Site) -> None:
    folder = site.folder / "much"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.bin").write_bytes(os.urandom(10_000_000))
    site.write("sums.py", SUMS)
    words = ("run", "--on", "lab1,lab2", "--ppn", "1", "-n", "2", "--packages", "none", "sums.py")
    assert site(*words).returncode == 0
    assert min(sent(site).values()) > 200_000_000
    (folder / "7.bin").write_bytes(os.urandom(1_000_000))
    (folder / "8.bin").touch()
    (folder / "9.bin").rename(folder / "moved.bin")
    done = site(*words)
    files = [path for path in site.folder.rglob("*") if path.is_file()]
    sums = {
        str(path.relative_to(site.folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
    assert said(done.stdout) == [["lab1", sums], ["lab2", sums]]
    assert all(1_000_000 < each < 1_000_000 + ENOUGH for each in sent(site).values())
    assert site(*words).returncode == 0
    assert all(each < ENOUGH for each in sent(site).values())


# --------------------------------------------------------------- the Python environment


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an environment of its own with nothing in it."""
    return environment(tmp_path / "env")


@pytest.fixture
def gadgets(site: Site, tmp_path: Path) -> Iterator[None]:
    """lab1 has no gadget, lab2 has another version than `wheel(…, "1.0")`, lab3 has that one."""
    site.write("ask.py", ASK)
    for host, version in (("lab2", "0.9"), ("lab3", "1.0")):
        place = site.lab.home(host) / ".local" / LIBRARY
        place.mkdir(parents=True)
        found = wheel(tmp_path / "gadgets", version)
        install(Path(sys.executable), "--target", place, found)
    yield
    for host in ("lab2", "lab3"):
        shutil.rmtree(site.lab.home(host) / ".local")


def ask(site: Site, python: Path, *words: str, on: str = "lab", ranks: int = 3) -> list[list[str]]:
    """Which gadget the ranks have, by host; and which Python: "own" or one that was made."""
    done = site(
        *("run", "--on", on, "--ppn", "1", "-n", str(ranks), "--python", python), *words, "ask.py"
    )
    assert done.returncode == 0, done.stderr
    found = []
    for host, version, prefix in said(done.stdout):
        made = f"{HOMES[HOSTS.index(str(host))]}/.shanty/store/env/"
        found.append([host, version, "made" if str(prefix).startswith(made) else "own"])
    return found


def table(text: str) -> list[list[str]]:
    """The lines about gadget and its heading, as words."""
    lines = [
        re.split(r"\s{2,}", line.strip().removeprefix("why:").strip()) for line in text.splitlines()
    ]
    return [line for line in lines if line[0] in ("package", "gadget")]


@pytest.mark.usefixtures("gadgets")
def test_packages_that_hosts_lack_or_have_in_another_version(
    site: Site, python: Path, tmp_path: Path
) -> None:
    install(python, wheel(tmp_path / "gadgets", "1.0"))
    own = [["lab1", "none", "own"], ["lab2", "0.9", "own"], ["lab3", "1.0", "own"]]
    assert ask(site, python, "--packages", "none") == own

    runs = len(list((site.lab.shanty.home / "runs").iterdir()))
    done = site(*RUN, "3", "--python", python, "--packages", "check", "ask.py")
    assert done.returncode == DIFFERENT
    assert "the Python environment differs on lab1, lab2" in done.stderr
    assert table(done.stderr) == [
        ["package", "here", "lab1", "lab2"],
        ["gadget", "1.0", "missing", "0.9"],
    ]
    assert "--packages sync" in done.stderr
    assert done.stdout == ""
    assert len(list((site.lab.shanty.home / "runs").iterdir())) == runs

    assert ask(site, python, "--packages", "check", on="lab3", ranks=1) == own[2:]
    assert ask(site, python, on="lab3", ranks=1) == own[2:]
    made = [[host, "1.0", "made"] for host in HOSTS]
    assert ask(site, python, "--packages", "sync") == made
    assert ask(site, python) == made  # nothing was said of it: checked, then made


@pytest.mark.usefixtures("gadgets")
def test_a_package_that_is_being_worked_on(site: Site, python: Path, tmp_path: Path) -> None:
    folder = source(tmp_path / "mine", "VERSION = 'first'\n")
    install(python, "--editable", folder)
    done = site(*RUN, "3", "--python", python, "--packages", "check", "ask.py")
    assert done.returncode == DIFFERENT
    assert table(done.stderr) == [
        ["package", "here", *HOSTS],
        ["gadget", "1.0 (own code)", "missing", "0.9", "1.0 (another)"],
    ]
    assert ask(site, python, "--packages", "sync") == [[host, "first", "made"] for host in HOSTS]
    source(folder, "VERSION = 'second'\n")
    assert ask(site, python) == [[host, "second", "made"] for host in HOSTS]
    own = [["lab1", "none", "own"], ["lab2", "0.9", "own"], ["lab3", "1.0", "own"]]
    assert ask(site, python, "--packages", "none") == own
