"""The watch over a run that has come to a halt: when the hosts' links are tried, and believed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from plans import node, plan_of
from shanty.runtime.agent.controller import Controller
from shanty.runtime.agent.link_check import LinkCheck, LinkFault
from shanty.runtime.agent.mpi_world import MpiWorld
from shanty.runtime.agent.stall_detector import StallDetector
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import State, Status

AFTER = 60.0  # seconds of the bound
FAULT = LinkFault("lab0 and lab1 do not reach each other", "see to the firewall", "lab1")


class Run:
    """A run of two ranks on two hosts, whose ranks do what a test says."""

    def __init__(self, path: Path) -> None:
        self.run_dir = RunDir(path)
        self.run_dir.create()
        plan = plan_of(2)
        hosts = (node(), node(1))
        limits = plan.limits._replace(stall_after=AFTER)
        self.plan = plan._replace(attempt=plan.attempt._replace(nodes=hosts), limits=limits)
        self.status = Status.new(None)
        self.status.__dict__["state"] = State.RUNNING
        self.worlds = {"0": MpiWorld(2, self.plan.lead.installation)}
        self.ending = False
        self.told: list[dict[str, Any]] = []
        self.stalls: list[float | None] = []

    def tell(self, **order: Any) -> None:
        self.told.append(order)

    def tell_host(self, host: str, **order: Any) -> None:
        del host, order

    def event(self, kind: str, **more: Any) -> None:
        del kind, more

    def ask_stacks(self) -> list[dict[str, Any]]:
        return []

    def stalled(self, since: float | None, verdict: object = None) -> None:
        del verdict
        self.stalls.append(since)

    def print(self) -> None:
        """A rank gives a sign of life."""
        with self.run_dir.rank_log(0).open("a") as log:
            log.write("a line\n")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


@pytest.fixture
def detector(run: Run) -> StallDetector:
    return StallDetector(cast(Controller, run))


def wait_in_mpi(detector: StallDetector) -> None:
    """Both ranks have been in one call of MPI for a while."""
    for rank in range(2):
        seen = {
            "world": "0", "rank": rank, "pid": 10 + rank, "call": "MPI_Allreduce",
            "waits": AFTER / 3, "still": AFTER / 3, "cpu": 1.0, "state": "S", "frames": [],
        }  # fmt: skip
        load = {"cores": 4, "load": 0.1, "busy": 0.1, "seconds": 20.0}
        detector.hear(f"lab{rank}", {"moves": [seen], "load": load})


def test_what_was_found_of_the_links_counts_for_one_watch(
    run: Run, detector: StallDetector
) -> None:
    """A check that is over when the ranks go on again says nothing of the next time."""
    now = time.monotonic()
    detector.tick(now)
    now += AFTER / 4
    detector.tick(now)
    assert run.told == [{"watch": detector._pause, "bound": AFTER}]
    wait_in_mpi(detector)
    now += detector._pause
    detector.tick(now)
    check = detector._check
    assert isinstance(check, LinkCheck)
    check.fault = FAULT
    run.print()
    now += detector._pause
    detector.tick(now)
    assert run.told[-1] == {"watch": None}
    assert check.over
    assert (detector._check, detector._fault) == (None, None)
    now += 2 * AFTER
    detector.tick(now)  # quiet again
    wait_in_mpi(detector)
    now += detector._pause
    detector.tick(now)
    assert isinstance(detector._check, LinkCheck)  # tried anew, before anything is told
    assert run.stalls == []


def test_of_our_own_bytes_those_count_that_a_look_has_seen(detector: StallDetector) -> None:
    wait_in_mpi(detector)
    heard = detector.looks["lab1"]["heard"]  # of a look over 20 s
    detector._probes = [(heard - 21, {"lab1": 4}), (heard - 19, {"lab1": 2}), (heard, {"lab0": 1})]
    assert detector._probed("lab1", detector.looks["lab1"]) == 2
