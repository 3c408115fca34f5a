"""Faults that come while a run is on: the run names hosts and cause in time, or goes on."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import LabHosts
from faults_running import LOOP, RUNNING, RunningFault, _login
from faults_world import World
from site_runs import Site

from runs import FLAVOURS, LONG, mpi_folder, wait_for

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

AFTER = 6  # seconds; a user's bound is a minute
MPIS = FLAVOURS if LONG else ("openmpi5", "mpich")


@pytest.fixture(scope="module")
def site(lab: LabHosts, tmp_path_factory: pytest.TempPathFactory) -> Site:
    found = Site(lab, tmp_path_factory.mktemp("work"))
    found.write("loop.py", LOOP)
    return found


@pytest.fixture(scope="module")
def world(lab: LabHosts) -> Iterator[World]:
    found = World(lab)
    yield found
    found.close()


def words(one: RunningFault, mpi: str) -> tuple[str, ...]:
    return (
        *("run", "--on", "lab", "--mpi", mpi, "-n", "3", "--ppn", "1", "--stall-after", str(AFTER)),
        *("--on-stall", "stop", *one.words, "loop.py", *one.script),
    )


def is_on(site: Site, before: set[Path]) -> bool:
    """True when all ranks of the newest run have come through a step."""
    if not set((site.lab.shanty.home / "runs").glob("*")) - before:
        return False
    return all(b" on\n" in path.read_bytes() for path in site.last.rank_logs().values()) and (
        len(site.last.rank_logs()) == 3
    )


@pytest.mark.sampled(12)
@pytest.mark.parametrize("on_mpi", MPIS)
@pytest.mark.parametrize("fault", RUNNING, ids=lambda fault: fault.name)
def test_a_fault_of_a_run(site: Site, world: World, fault: RunningFault, on_mpi: str) -> None:
    if on_mpi != "openmpi5" and not (mpi_folder() / on_mpi).exists():
        pytest.skip(f"{on_mpi} is not installed in {mpi_folder()}")
    if fault.only and on_mpi not in fault.only:
        pytest.skip(f"{on_mpi} takes no notice of it")
    before = set((site.lab.shanty.home / "runs").glob("*"))
    with ExitStack() as stack:
        if fault.variables:
            stack.enter_context(_login(world, fault.variables[on_mpi]))
        if fault.before:
            stack.enter_context(fault.plant(world))
        process = site.start(*words(fault, on_mpi))
        try:
            if not fault.before:
                wait_for(lambda: is_on(site, before) or process.poll() is not None, 120)
                assert process.poll() is None, process.communicate()
                logs = site.last.rank_logs().values()
                last = max(path.stat().st_mtime for path in logs)
                wait_for(lambda: time.time() >= last + fault.silent, fault.silent + 1)
                stack.enter_context(fault.plant(world))
                if fault.goes_on:
                    found = lambda: re.search(fault.says, site.status().get("network", ""))  # noqa: E731
                    wait_for(found, fault.bound, "the network is not named")
                    process.send_signal(signal.SIGINT)
                wait_for(lambda: process.poll() is not None, fault.bound, "the run goes on")
            out, said = process.communicate(timeout=120)
        finally:
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=30)
    if fault.says:
        assert process.returncode != 0, out
        assert re.search(fault.says, said), said
    else:
        assert process.returncode == 0, said
        assert out.count("done") == 3
        assert "no progress" not in said


def test_nothing_is_left_of_the_faults(site: Site) -> None:
    done = site("run", "-q", "--on", "lab", "-n", "3", "--ppn", "1", "loop.py", "1", "0.05", "0.5")
    assert done.returncode == 0, done.stderr
    assert not site.remains(site.last.id)
