"""Another attempt where a host is lost or the launcher fails, none where a script has a bug."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import UP, Site

from runs import wait_for
from shanty.runtime.rundir import RunDir

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

GONE = 10  # seconds after the end by which nothing is left
# The first attempt goes on until a host dies under it; the others say where they are.
SECOND = f"""
import os
if "SHANTY_ATTEMPT_DIR" not in os.environ:
    {UP.replace(chr(10), chr(10) + "    ")}
from mpi4py import MPI
import shanty
print("again", MPI.COMM_WORLD.rank, MPI.Get_processor_name(), flush=True)
shanty.log(rank=MPI.COMM_WORLD.rank)
"""


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    """Runs on the lab; afterwards nothing of them is there."""
    here = Site(lab, tmp_path / "work")
    here.write("train.py", SECOND)
    yield here
    wait_for(lambda: not here.remains(here.last.id), GONE, f"left: {here.remains(here.last.id)}")
    for host in lab.hosts:
        assert "shanty:" not in lab.exec(host, "sh", "-c", "cat ~/.ssh/authorized_keys").stdout


def begun(site: Site, words: list[str], ranks: int) -> subprocess.Popen[str]:
    """A run all of whose ranks are up, as far as can be seen here."""
    folder = site.lab.shanty.home / "runs"
    before = set(folder.glob("*"))
    process = site.start(*words)
    wait_for(lambda: set(folder.glob("*")) - before, 60, "no run")

    def all_up() -> bool:
        logs = site.last.rank_logs().values()
        return sum(b"up" in log.read_bytes() for log in logs) == ranks

    wait_for(all_up, 120, "it does not start")
    return process


@pytest.mark.parametrize("fault", ["kill", "cut"])
def test_a_lost_host_is_left_out(site: Site, flavour: str, fault: str) -> None:
    words = ["run", "--on", "lab", "-n", "2", "--ranks-per-host", "1", "--retries", "2"]
    words += ["--start-timeout", "12s"]  # over when a host that was cut off is given up
    process = begun(site, [*words, "--mpi", flavour, "train.py"], 2)
    if fault == "kill":
        done = site.lab.exec("lab2", "pkill", "-KILL", "-f", "agent[.]worker_agent")
        assert done.returncode == 0, done.stderr
    else:
        site.lab.do("cut", "lab2")
    try:
        out, err = process.communicate(timeout=90)
    finally:
        if fault == "cut":
            site.lab.do("join", "lab2")
    assert process.returncode == 0, err
    hosts = {"lab1", "lab2"} if fault == "kill" else {"lab1", "lab3"}  # lab2 answers again, or not
    lines = [line.split() for line in out.splitlines()]
    assert {line[-1] for line in lines if "again" in line} == hosts
    assert {line[-1] for line in lines if "up" in line} == {"lab1", "lab2"}
    assert "attempt 2 of 3 on lab1" in err
    assert "lab2" in site.events("attempt")[0]["failure"]["what"]
    status = site.status()
    assert (status["state"], status["attempt"]) == ("succeeded", 2)
    assert sorted(RunDir(site.last.path, 2).rank_logs()) == [0, 1]
    assert sorted(site.last.rank_logs()) == [0, 1]


def test_what_was_saved_is_that_of_the_last_attempt(site: Site) -> None:
    """Also where a host's agent was killed before it could send what the first one saved."""
    save = """
import os, shanty
first = "SHANTY_ATTEMPT_DIR" not in os.environ
text = "first " * 1000 if first else "second"
(shanty.artifacts() / f"model-{shanty.rank()}").write_text(text)
if first:
    (shanty.artifacts() / f"begun-{shanty.rank()}").touch()
"""
    site.write("train.py", save + SECOND)
    words = ["run", "--on", "lab", "-n", "3", "--ranks-per-host", "1", "--retries", "2"]
    process = begun(site, [*words, "train.py"], 3)
    done = site.lab.exec("lab2", "pkill", "-KILL", "-f", "agent[.]worker_agent")
    assert done.returncode == 0, done.stderr
    _, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    saved = {path.name: path.read_text() for path in site.last.artifacts.iterdir()}
    begin = {f"begun-{rank}": "" for rank in range(3)}
    assert saved == {**begin, **{f"model-{rank}": "second" for rank in range(3)}}


def test_a_script_with_a_bug_is_not_tried_again(site: Site) -> None:
    site.write("bug.py", "from mpi4py import MPI\nraise RuntimeError('a bug')\n")
    done = site("run", "--on", "lab", "-n", "3", "--retries", "2", "bug.py")
    assert done.returncode == 1
    assert "a bug" in done.stderr
    assert site.status()["attempt"] == 1
    assert not site.events("attempt")


def test_hosts_that_do_not_do_any_more(site: Site) -> None:
    words = ["run", "--on", "lab", "-n", "3", "--ranks-per-host", "1", "--retries", "2"]
    process = begun(site, [*words, "train.py"], 3)
    site.lab.do("cut", "lab3")
    try:
        _, err = process.communicate(timeout=90)
    finally:
        site.lab.do("join", "lab3")
    assert process.returncode == 71
    assert "lab3" in site.status()["failure"]["what"]
    assert "another attempt is not possible: 3 ranks do not fit" in err
