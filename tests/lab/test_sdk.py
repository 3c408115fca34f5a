"""Tasks whose ranks are on hosts: values, exceptions, lost hosts, maps, callers that are killed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import LabHosts
from site_runs import Site

from launches import LONG
from runs import wait_for
from sdk_runs import NAMES, check, out, passed, selected, started, up

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]

OPTIONS = {"on": "lab", "ranks_per_host": 1}
SHORT = ("each", "exception_of_a_module")


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    """Runs on the lab; afterwards nothing of them is there."""
    here = Site(lab, tmp_path / "work")
    before = {path.name for path in (lab.shanty.home / "runs").glob("*")}
    yield here
    for path in (lab.shanty.home / "runs").glob("*"):
        if path.name not in before:
            left = here.remains
            wait_for(lambda: not left(path.name), 15, f"left: {left(path.name)}")  # noqa: B023
    for host in lab.hosts:
        assert not has_key(lab, host)
        lab.exec(host, "sh", "-c", "rm -f ~/begun-*")


def has_key(lab: LabHosts, host: str) -> bool:
    """Whether a run's key is let in on a host."""
    return b"shanty:" in (lab.home(host) / ".ssh/authorized_keys").read_bytes()


@pytest.fixture(scope="module")
def launches(
    lab: LabHosts, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Any:
    """The output of all checks, done once."""
    folder = tmp_path_factory.mktemp("sdk") / "work"

    @cache
    def output() -> str:
        return check(Site(lab, folder).folder, lab.shanty.environ, OPTIONS, selected(request), 900)

    return output


def start(site: Site, text: str, *words: str) -> subprocess.Popen[str]:
    """Start a script that calls tasks."""
    site.write("script.py", text)
    return started(site.folder, site.lab.shanty.environ, "script.py", *words)


def test_in_short(site: Site) -> None:
    output = check(site.folder, site.lab.shanty.environ, OPTIONS, SHORT)
    for name in SHORT:
        passed(output, name)
    assert not [*(site.lab.shanty.home / "cache" / "calls").iterdir()]


@LONG
@pytest.mark.timeout(950)
@pytest.mark.parametrize("name", NAMES)
def test_on_hosts(launches: Any, name: str) -> None:
    passed(launches(), name)


MAP = """
import os, subprocess, sys, threading
import shanty

@shanty.task(ranks=1, on="lab")
def work(x):
    if x == 9 and "fail" in sys.argv[1:] + OWN:
        raise ValueError("nine")
    return x, os.uname().nodename

OWN = sys.argv[1:]

def connections():
    words = ["ps", "--ppid", str(os.getpid()), "-o", "comm="]
    return subprocess.run(words, capture_output=True, text=True).stdout.split().count("ssh")

if __name__ == "__main__":
    try:
        found = work.map(range(20))
        assert [x for x, _ in found] == list(range(20))
        print(*sorted({host for _, host in found}))
    except ValueError as error:
        print(error, len(shanty.runs()))
    for run in shanty.runs():
        assert run.done, run
    threads = [each.name for each in threading.enumerate()]
    print("connections", connections(), "threads", threads)
"""


@LONG
@pytest.mark.parametrize("how", ["", "fail"])
def test_a_map_of_twenty(site: Site, how: str) -> None:
    """In order, over all hosts; an exception ends it. No connection stays."""
    before = len([*(site.lab.shanty.home / "runs").glob("*")])
    text = out(start(site, MAP, *how.split()), 280)
    lines = text.splitlines()
    if how:
        what, count = lines[0].split()
        assert what == "nine"
        assert int(count) - before < 20
    else:
        assert lines[0] == "lab1 lab2 lab3"
    assert lines[1].startswith("connections 0 "), lines


FIRST = """
import os, pathlib, sys, time
import shanty

@shanty.task(on="lab", ranks=2, ranks_per_host=1, retries=int(sys.argv[2]), start_timeout="12s")
def work(mark):
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    file = pathlib.Path.home() / f"begun-{mark}"
    first = world.bcast(not file.exists() if world.rank == 0 else None)
    world.barrier()
    file.touch()
    print("up", world.rank, MPI.Get_processor_name(), flush=True)
    while first:
        barrier = world.Ibarrier()
        while not barrier.Test():
            time.sleep(0.02)
        time.sleep(0.02)
    return world.gather(MPI.Get_processor_name())

if __name__ == "__main__":
    try:
        print("value", *work(sys.argv[1]))
    except shanty.RunError as error:
        print("error", error.cause, getattr(error, "__notes__", []), flush=True)
"""


def begun(site: Site, mark: str, retries: int = 2) -> subprocess.Popen[str]:
    """A call all of whose ranks are up."""
    folder = site.lab.shanty.home / "runs"
    before = set(folder.glob("*"))
    process = start(site, FIRST, mark, str(retries))
    wait_for(lambda: set(folder.glob("*")) - before or process.poll() is not None, 60, "no run")

    def all_up() -> bool:
        return up(set(folder.glob("*")) - before) == 2 or process.poll() is not None

    wait_for(all_up, 120, "it does not start")
    assert process.poll() is None, process.communicate()
    return process


@LONG
def test_a_worker_is_lost(site: Site) -> None:
    """The run goes on in another attempt."""
    process = begun(site, "worker")
    site.lab.exec("lab2", "pkill", "-KILL", "-f", "agent[.]worker_agent")
    assert "value lab1 lab2" in out(process)
    assert site.status()["attempt"] == 2


@LONG
def test_a_worker_is_cut_off(site: Site) -> None:
    process = begun(site, "cut")
    site.lab.do("cut", "lab2")
    try:
        assert "value lab1 lab3" in out(process)
    finally:
        site.lab.do("join", "lab2")


@LONG
def test_the_lead_host_is_started_anew(site: Site) -> None:
    """Its controller is gone with it, so there is another run."""
    process = begun(site, "lead")
    first = site.last.id
    site.lab.do("reboot", "lab1")
    assert "value lab1 lab2" in out(process)
    assert site.last.id != first
    assert site.status()["attempt"] == 1


@LONG
def test_the_lead_host_is_gone(site: Site) -> None:
    """What is told is the first loss, and why there is no other attempt."""
    process = begun(site, "gone")
    site.lab.do("cut", "lab1")
    try:
        text = out(process)
    finally:
        site.lab.do("join", "lab1")
    assert "error host" in text
    assert "there is no other attempt" in text
    assert "lab1" in text


@LONG
def test_without_retries_a_lost_host_is_an_error(site: Site) -> None:
    process = begun(site, "none", retries=0)
    site.lab.exec("lab2", "pkill", "-KILL", "-f", "agent[.]worker_agent")
    assert "error host []" in out(process)


LARGE = """
import resource, sys, time
import numpy as np
import shanty

@shanty.task(on="lab", ranks=2, ranks_per_host=1)
def make(data, count):
    return np.ones(count, dtype=np.uint8), None if data is None else len(data)

if __name__ == "__main__":
    began = time.monotonic()
    if sys.argv[1] == "value":
        value, _ = make(None, 1 << 30)
        assert value.nbytes == 1 << 30 and value[::4096].all()
    elif sys.argv[1] == "each":
        values = shanty.each(make)(None, 1 << 28)
        assert [value.nbytes for value, _ in values] == [1 << 28] * 2
    else:
        _, length = make(bytes(1 << 28), 1)
        assert length == 1 << 28
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"took {time.monotonic() - began:.1f} s, {most >> 10} MiB")
"""


@LONG
@pytest.mark.parametrize(("what", "most"), [("value", 1024), ("each", 512), ("argument", 256)])
def test_a_gigabyte(site: Site, what: str, most: int) -> None:
    text = out(start(site, LARGE, what), 280)
    print(text)
    used = int(re.findall(r"(\d+) MiB", text)[0])
    assert used < most + 450, text


CALL = """
import sys, time
import shanty

@shanty.task(on="lab", ranks=2, ranks_per_host=1)
def work():
    print("up", flush=True)
    time.sleep(3)
    return "value"

if __name__ == "__main__":
    future = work.submit()
    future.run
    print(future.result())
"""


def reached(site: Site, stage: str, text: str) -> tuple[subprocess.Popen[str], set[Path]]:
    """A script whose call has got so far, and the runs that it has made."""
    folder = site.lab.shanty.home / "runs"
    before = set(folder.glob("*"))
    process = start(site, text)

    def there() -> bool:
        new = set(folder.glob("*")) - before
        return up(new) > 0 if stage == "up" else any((path / stage).exists() for path in new)

    wait_for(lambda: there() or process.poll() is not None, 120, "not started")
    return process, set(folder.glob("*")) - before


@LONG
@pytest.mark.parametrize("stage", ["site.json", "plan.json", "up"])
def test_the_caller_is_killed(site: Site, stage: str) -> None:
    """While the hosts are prepared there is no run yet; from its beginning on it goes on."""
    process, runs = reached(site, stage, CALL)
    process.kill()
    process.communicate()
    (run,) = runs
    wait_for(lambda: ended(site, run.name), 90, "it does not end")
    state = json.loads((run / "status.json").read_text())["state"]
    assert state == "succeeded" or (stage != "up" and state == "lost")
    if state == "succeeded":
        assert (run / "results" / "1" / "value-0.pickle").exists()
    else:  # the key of a run that has not come about is there for half a minute
        wait_for(lambda: not any(has_key(site.lab, host) for host in site.lab.hosts), 40, "a key")
    text = out(start(site, CALL))
    assert text == "value\n"
    assert not [*(site.lab.shanty.home / "cache" / "calls").iterdir()]


def ended(site: Site, run: str) -> bool:
    """Whether a run has ended, asked as a user does."""
    done = site("ps", "--all", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return any(each["id"] == run and each["ended"] is not None for each in found)


@LONG
@pytest.mark.parametrize("stage", ["site.json", "up"])
def test_ctrl_c(site: Site, stage: str) -> None:
    process, runs = reached(site, stage, CALL.replace("time.sleep(3)", "time.sleep(99)"))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=90)
    assert "KeyboardInterrupt" in err
    for run in runs:
        wait_for(lambda run=run: ended(site, run.name), 60, "it goes on")
        assert '"stopped"' in (run / "status.json").read_text()
    assert not [*(site.lab.shanty.home / "cache" / "calls").iterdir()]
