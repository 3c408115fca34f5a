"""Every planted fault is found: by its code, on its host, in time, and nothing else with it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import lab_in
from faults import RECORD, TABLE
from faults_case import Fault
from faults_world import World

from runs import mpi_folder

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

CANNOT = (66, 69, 71)  # exit codes of a run that ends before its ranks do
SEEN: dict[str, Any] = {}


def of_lab(kind: str) -> list[Fault]:
    """The faults that need a lab of this kind."""
    return [fault for fault in TABLE if fault.lab == kind]


@contextmanager
def planted_in(folder: Path, stores: Path, *words: str) -> Iterator[World]:
    """A lab in which faults are planted, with the MPI and our code on its hosts."""
    with lab_in(folder, 3, *words, stores=stores) as lab:
        world = World(lab)
        if mpi_folder().exists():
            (lab.shanty.home / "mpi").symlink_to(mpi_folder())
        try:
            warm = world.run("run", "-q", "--on", "lab", "-n", "3", "--ppn", "1", "hostname")
            assert warm.returncode == 0, warm.stderr
            yield world
            report = examined(world)  # nothing is left of the faults
            assert (report["findings"], report["unfinished"]) == ([], [])
        finally:
            world.close()
            record()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, stores: Path) -> Iterator[World]:
    """Three hosts with one network."""
    with planted_in(tmp_path_factory.mktemp("plain"), stores) as world:
        yield world


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, stores: Path) -> Iterator[World]:
    """Three hosts with two networks."""
    with planted_in(tmp_path_factory.mktemp("two"), stores, "--nic", "tb0") as world:
        yield world


def examined(world: World, fault: Fault | None = None) -> dict[str, Any]:
    """What doctor reports, of the hosts and the options of the fault.

    Where a check did not end in time although nothing holds it up, the machine was too busy: then
    doctor says so, and is asked once more.
    """
    target = fault.on.format(lab=world.lab.name) if fault else world.lab.name
    words = [word.format(mpi=world.mpi) for word in fault.words] if fault else []
    for last in (False, True):
        began = time.monotonic()
        done = world.run("doctor", target, "--json", *words)
        assert done.stdout.startswith("{"), done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        report["took"] = time.monotonic() - began
        if last or not report["unfinished"] or (fault and fault.drops):
            break
    return report


def told(report: dict[str, Any], *levels: str) -> list[tuple[str, str]]:
    """The code and the host of each finding of these levels."""
    return [(one["code"], one["host"]) for one in report["findings"] if one["level"] in levels]


def as_written(world: World, text: str) -> str:
    """What doctor says, as it is for hosts that are no lab's: without this test's own files."""
    folder = str(world.lab.folder)
    for word in (f" -F {world.lab.config}", f" -f {folder}/known_hosts"):
        text = text.replace(word, "")
    return text.replace(folder, "~/.ssh").replace(str(world.runtime), "~")


def record() -> None:
    """Keep what doctor said for the documentation, where that is asked for."""
    if os.environ.get("SHANTY_RECORD_FAULTS"):
        before = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        names = {fault.name for fault in TABLE}
        kept = {name: seen for name, seen in (before | SEEN).items() if name in names}
        RECORD.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


# Each of the two labs is for a worker of pytest-xdist.
PLAIN, TWO = pytest.mark.xdist_group("plain"), pytest.mark.xdist_group("two")


@PLAIN
@pytest.mark.sampled(12)
@pytest.mark.parametrize("fault", of_lab("plain"), ids=lambda fault: fault.name)
def test_a_fault_is_named(plain: World, fault: Fault) -> None:
    named(plain, fault)


@TWO
@pytest.mark.sampled(12)
@pytest.mark.parametrize("fault", of_lab("two"), ids=lambda fault: fault.name)
def test_a_fault_of_two_networks_is_named(two: World, fault: Fault) -> None:
    named(two, fault)


@PLAIN
def test_of_hosts_that_are_well_nothing_is_said(plain: World, flavour: str) -> None:
    done = plain.run("doctor", "lab", "--json", "--mpi", flavour)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["findings"], report["unfinished"]) == ([], [])
    script = "from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 3"
    ranks = ("-n", "3", "--ppn", "1", "--mpi", flavour)
    ran = plain.run("run", "--on", "lab", *ranks, "--", "python", "-c", script)
    assert ran.returncode == 0, ran.stderr
    assert not re.search("warning|error|fix:|why:|doctor", ran.stderr.lower()), ran.stderr


@PLAIN
def test_host_keys_may_be_unchecked(plain: World) -> None:
    """As Vagrant writes it; the hosts' sshd has other keys than those in /etc/ssh."""
    known, one, two = f'"{plain.lab.folder}/known_hosts"', "lab2,", "lab3,"

    def unchecked(text: str) -> str:
        text = text.replace("StrictHostKeyChecking yes", "StrictHostKeyChecking no")
        return text.replace(known, "/dev/null")

    def swapped(text: str) -> str:
        return text.replace(one, "lab0,").replace(two, one).replace("lab0,", two)

    with plain.text(plain.lab.config, unchecked):
        works(plain)
    with (  # keys that have changed are accepted as well
        plain.text(plain.lab.config, lambda text: text.replace("Checking yes", "Checking no")),
        plain.text(plain.lab.folder / "known_hosts", swapped),
    ):
        works(plain)


def works(world: World) -> None:
    """The doctor has nothing to say, and a run ends well."""
    report = examined(world)
    assert (report["findings"], report["unfinished"]) == ([], [])
    script = "from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 3"
    ran = world.run("run", "--on", "lab", "-n", "3", "--ppn", "1", "--", "python", "-c", script)
    assert ran.returncode == 0, ran.stderr


def named(world: World, fault: Fault) -> None:
    """Plant the fault; doctor, and where that is asked for a run, has to name it. Where packets
    vanish for good, both wait at the same time."""
    with fault.plant(world), ThreadPoolExecutor(1) as beside:
        together = fault.runs and fault.drops and fault.level == "error"
        running = beside.submit(world.run, *run_of(world, fault)) if together else None
        report = examined(world, fault)
        ran = running.result() if running else None
        if fault.runs and not together:
            ran = world.run(*run_of(world, fault))
    expected = [(fault.code, host) for host in fault.hosts]
    loud = told(report, "error", "warning")
    found = told(report, fault.level)
    assert sorted(one for one in found if one[0] == fault.code) == expected, report
    assert sorted(loud) == (expected if fault.level != "note" else []), report
    assert not report["unfinished"] or fault.drops, report
    assert report["took"] <= fault.bound
    (first, *_others) = [one for one in report["findings"] if one["code"] == fault.code]
    assert first["what"]
    assert first["fix"]
    SEEN[fault.name] = {
        "seconds": round(report["took"], 1),
        "what": as_written(world, first["what"]),
        "fix": as_written(world, first["fix"]),
        "command": as_written(world, first["command"]),
    }
    if ran is not None and fault.level == "note":
        assert ran.returncode == 0, ran.stderr
        assert f"{fault.hosts[0]}: {first['what']}" in ran.stderr
    elif ran is not None:
        assert ran.returncode in CANNOT, ran.stderr
        assert fault.code in ran.stderr, ran.stderr
        assert fault.hosts[0] in ran.stderr


def run_of(world: World, fault: Fault) -> list[str]:
    """The run that meets the fault."""
    target = fault.on.format(lab=world.lab.name)
    script = "from mpi4py import MPI; MPI.COMM_WORLD.allreduce(1)"
    return ["run", "--on", target, "-n", "3", "--ppn", "1", "--", "python", "-c", script]
