"""Elastic runs that lose a host: the ranks on the others go on, and its own do nothing more."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import UP, Site

from runs import WORKERS, wait_for
from shanty.runtime.run_status import read_status

pytest.importorskip("torch")
pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(400)]

GONE = 15  # seconds after the end by which nothing is left
AGENT = ("pkill", "-KILL", "-f", "agent[.]worker_agent")
DAEMON = ("pkill", "-KILL", "-f", "^[^ ]*/prted")
SILENT = r"host lab2 went silent \(no sign of life for \d+ s\)"
LOSSES = {
    "daemon": r"the launcher's (daemon there was ended by SIGKILL|prted \(pid \d+\) there is gone)",
    "agent": "the node agent on host lab2 was killed, or the host went away",
    "reboot": "the (node agent|connection) .*host lab2 was .*",
    "cut": SILENT,
    "freeze": SILENT,
}
LONELY = {"cut": "join", "freeze": "thaw"}  # what brings a host back


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    """Runs on the lab; afterwards nothing of them is there."""
    here = Site(lab, tmp_path / "work")
    shutil.copy(WORKERS / "elastic_host.py", here.folder)
    for host in lab.hosts:
        for path in lab.home(host).glob("*.[0-9]"):
            path.unlink()
    yield here
    wait_for(lambda: not here.remains(here.last.id), GONE, f"left: {here.remains(here.last.id)}")


def notes(site: Site, kind: str = "noted") -> dict[int, list[list[str]]]:
    """What each rank has noted so far: the time, what, and the size of its world."""
    found = {}
    for host in site.lab.hosts:
        for path in site.lab.home(host).glob(f"{kind}.[0-9]"):
            lines = path.read_text().rpartition("\n")[0].splitlines()
            found[int(path.suffix[1:])] = [line.split() for line in lines]
    return found


def times(lines: list[list[str]], *what: str) -> list[float]:
    return [float(line[0]) for line in lines if tuple(line[1:]) == what]


def begun(site: Site, ranks: int, *words: str) -> subprocess.Popen[str]:
    """A run that trains on all of its ranks."""
    process = site.start("run", "-q", "--mpi", "openmpi5", "-n", str(ranks), *words)

    def trains() -> bool:
        found = notes(site).values()
        return [len(times(lines, "step", str(ranks))) > 10 for lines in found] == ranks * [True]

    wait_for(lambda: trains() or process.poll() is not None, 120, "it does not start")
    return process


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.sampled(3)
def test_the_others_go_on_without_a_host(site: Site, how: str) -> None:
    words = ("--on", "lab1,lab2", "--ppn", "2", "--elastic", "elastic_host.py", "200")
    process = begun(site, 4, *words)
    if how in ("agent", "daemon"):
        done = site.lab.exec("lab2", *(AGENT if how == "agent" else DAEMON))
        assert done.returncode == 0, done.stderr
    else:
        site.lab.do(how, "lab2")
    try:
        wait_for(
            lambda: (
                all(times(notes(site)[rank], "step", "2") for rank in (0, 1))
                or process.poll() is not None
            ),
            60,
            "the others do not go on",
        )
        listed = site("ps").stdout
        if how in LONELY:  # it comes back while they train
            site.lab.do(LONELY[how], "lab2")
        out, err = process.communicate(timeout=120)
    finally:
        if how in LONELY and process.poll() is None:
            site.lab.do(LONELY[how], "lab2")
    assert process.returncode == 0, err
    assert sorted(line.split()[1:] for line in out.splitlines()) == [
        ["done", "0", "0", "2"],
        ["done", "1", "1", "2"],
    ]
    assert "2 of 4" in listed
    text = rf"ranks 2 and 3 on lab2 were lost: {LOSSES[how]} \([\d:]+\)"
    assert re.search(f"shanty: {text}; 2 of 4 ranks left", err), err
    shown = json.loads(site("show", "last", "--json").stdout)
    assert (shown["state"], shown["up"], shown["ranks"]) == ("succeeded", 2, 4)
    (lost,) = shown["lost"]
    assert re.fullmatch(text, lost)
    assert re.search("lost +ranks 2 and 3 on lab2 were lost", site("show", "last").stdout)
    # A rank that was cut off saves nothing, and does nothing any more once the others go on.
    found, alive = notes(site), notes(site, "alive")
    for rank in (2, 3):
        assert found[rank][-1][1] in ("step", "commit")
        assert {line[2] for line in found[rank]} == {"4"}
        if how != "freeze":  # which ends while the others train: see docs/how-to/elastic.md
            assert float(alive[rank][-1][0]) < times(found[0], "begins", "2")[0]


def test_a_script_that_cannot_go_on_without_a_host(site: Site) -> None:
    """Nothing tells its MPI of the loss, and it would wait indefinitely."""
    site.write("plain.py", UP)
    process = site.start(
        *("run", "-q", "--mpi", "openmpi5", "--on", "lab1,lab2", "--ppn", "1", "--elastic"),
        "plain.py",
    )
    wait_for(lambda: "up 1" in site("logs", "last").stdout, 120, "the ranks do not start")
    site.lab.do("cut", "lab2")
    try:
        _, err = process.communicate(timeout=120)
    finally:
        site.lab.do("join", "lab2")
    assert process.returncode == 71, err
    assert "failed after" in err and "rank 1 on lab2 was lost" in err.rpartition("failed after")[2]
    assert "0 of 2 ranks are left" in err
    assert "hvd.elastic.run" in err


def test_a_spare_on_another_host_takes_the_place_of_a_lost_rank(site: Site) -> None:
    words = ("--on", "lab1,lab2,lab3", "--ppn", "1", "--elastic=2", "--spares", "1")
    process = begun(site, 2, *words, "elastic_host.py", "200")
    site.lab.do("cut", "lab2")
    try:
        taken = site.lab.home("lab3") / "noted.1"
        wait_for(lambda: taken.exists() or process.poll() is not None, 60, "no spare takes it")
        site.lab.do("join", "lab2")  # which is too late
        out, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            site.lab.do("join", "lab2")
    assert process.returncode == 0, err
    assert sorted(line.split()[1:] for line in out.splitlines()) == [
        ["done", "0", "0", "2"],
        ["done", "1", "1", "2"],
    ]
    assert re.search(rf"rank 1 on lab2 was lost: {SILENT}.*; 1 of 2 ranks and 1 spare left\n", err)
    assert re.search(r"rank 2 \(spare\) on lab3 took the place of rank 1 .*; 2 of 2 ranks\n", err)
    shown = json.loads(site("show", "last", "--json").stdout)
    assert (shown["up"], shown["ranks"], shown["spares"]) == (2, 2, 0)
    assert {line[2] for line in notes(site)[0]} == {"2"}  # it makes no step without the other


def test_too_few_are_left_for_the_run_but_not_for_another_attempt(site: Site) -> None:
    words = ("--on", "lab", "--ppn", "1", "--elastic=2", "--retries", "1")
    process = begun(site, 2, *words, "elastic_host.py", "60")
    assert site.lab.exec("lab2", *AGENT).returncode == 0
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "rank 1 on lab2 was lost: the node agent on host lab2 was killed" in err
    assert "attempt 2 of 2 on lab1" in err
    assert "goes on from the commit of" in err
    assert len(out.splitlines()) == 2


@pytest.mark.parametrize("how", ["cut", "freeze", "reboot"])
@pytest.mark.sampled(2)
def test_the_next_attempt_goes_on_without_the_lead_host(site: Site, how: str) -> None:
    words = ("--on", "lab1,lab2,lab3", "--ppn", "1", "--elastic", "--retries", "1")
    process = begun(site, 3, *words, "elastic_host.py", "200")
    first = site.last
    wait_for(lambda: any(times(lines, "commit", "3") for lines in notes(site).values()), 20, "none")
    site.lab.do(how, "lab1")
    try:
        wait_for(lambda: process.poll() is not None or site.last.id != first.id, 60, "no other")
        if how in LONELY:  # it is back while the others train
            again = site.last
            wait_for(lambda: read_status(again).joined == 2, 60, "they do not train")
            site.lab.do(LONELY[how], "lab1")
        out, err = process.communicate(timeout=120)
    finally:
        if how in LONELY and process.poll() is None:
            site.lab.do(LONELY[how], "lab1")
    assert process.returncode == 0, err
    assert "attempt 2 of 2 on " in err
    assert "goes on from the commit of" in err
    if how in LONELY:
        assert "on lab2, lab3, as a new run: the lead host lab1 cannot be reached" in err
        assert sorted(line.split()[1:] for line in out.splitlines() if " done " in line) == [
            ["done", "0", "0", "2"],
            ["done", "1", "1", "2"],
        ]
        wait_for(lambda: not site.remains(first.id), GONE, f"left: {site.remains(first.id)}")
