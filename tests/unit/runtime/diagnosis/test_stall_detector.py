"""The watch over a run that has come to a halt: when the hosts' links are tried, and believed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from plans import node, plan_of
from shanty.runtime.diagnosis.link_check import LinkCheck, LinkFault
from shanty.runtime.diagnosis.mpi_world import MpiWorld
from shanty.runtime.diagnosis.run_view import RunView
from shanty.runtime.diagnosis.stall_detector import StallDetector
from shanty.runtime.diagnosis.stall_verdict import Stall
from shanty.runtime.messages import HostLoad, Moves, Order, RankState, Report, Watch
from shanty.runtime.rundir import RunDir, read_lines
from shanty.runtime.spec import State

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
        self.worlds = {"0": MpiWorld(2, self.plan.lead.installation)}
        self.state = State.RUNNING
        self.told: list[Order] = []
        self.stalls: list[float | None] = []
        self.detector = StallDetector(self.run_dir, self.plan, self)

    def view(self) -> RunView:
        return RunView(self.state, None, ending=False, worlds=self.worlds)

    def tick(self, now: float) -> None:
        self.detector.tick(self.view(), now)

    def tell(self, order: Order) -> None:
        self.told.append(order)

    def tell_host(self, host: str, order: Order) -> None:
        del host, order

    def event(self, kind: str, **more: object) -> None:
        del kind, more

    def active(self, text: str) -> None:
        del text

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


def wait_in_mpi(detector: StallDetector) -> None:
    """Both ranks have been in one call of MPI for a while."""
    for rank in range(2):
        seen = RankState(
            "", "0", rank, pid=10 + rank, call="MPI_Allreduce", waits=AFTER / 3, still=AFTER / 3,
            cpu=1.0, state="S", frames=(),
        )  # fmt: skip
        load = HostLoad(0.1, 4, 0, 0, (), (0, 0), seconds=20.0)
        detector.hear(f"lab{rank}", Moves((seen,), load))


def test_what_was_found_of_the_links_counts_for_one_watch(
    run: Run,
) -> None:
    """A check that is over when the ranks go on again says nothing of the next time."""
    detector, now = run.detector, time.monotonic()
    run.tick(now)
    now += AFTER / 4
    run.tick(now)
    assert run.told == [Watch(detector._pause, AFTER)]
    wait_in_mpi(detector)
    now += detector._pause
    run.tick(now)
    check = detector._check
    assert isinstance(check, LinkCheck)
    check.fault = FAULT
    run.print()
    now += detector._pause
    run.tick(now)
    assert run.told[-1] == Watch(None)
    assert check.over
    assert (detector._check, detector._fault) == (None, None)
    now += 2 * AFTER
    run.tick(now)  # quiet again
    wait_in_mpi(detector)
    now += detector._pause
    run.tick(now)
    assert isinstance(detector._check, LinkCheck)  # tried anew, before anything is told
    assert run.stalls == []


@pytest.mark.parametrize(
    ("events", "meanwhile"),
    [
        ([], "0 of 2 ranks have started"),
        (["started"], "1 of 2 ranks have started"),
        (["started", "started"], ""),
        (["loading", "loading"], "ranks 0, 1 wait in MPI_Init"),
    ],
)
def test_a_launcher_that_is_stopped_before_all_ranks_are_there(
    run: Run, events: list[str], meanwhile: str
) -> None:
    run.state = State.STARTING
    if not events:
        del run.worlds["0"]
    for rank, event in enumerate(events):
        run.worlds["0"].report(Report({"event": event, "rank": rank, "size": 2}), 1.0)
    now = time.monotonic()
    for seconds in (0, AFTER / 4, AFTER):
        run.tick(now + seconds)
    load = HostLoad(0.1, 4, 0, 0, (), (0, 0), seconds=20.0, halted=((7, "mpirun"),))
    run.detector.hear("lab0", Moves((), load))
    for seconds in range(3):  # it is reported once
        run.tick(now + 2 * AFTER + seconds * AFTER)
    what = "no progress for 60 s: the launcher's mpirun (pid 7) on host lab0 is stopped, as by "
    said = [stall["what"] for stall in read_lines(run.run_dir.stalls)]
    assert said == ([what + f"SIGSTOP; {meanwhile}"] if meanwhile else [])


def test_how_ranks_stand_when_the_time_limit_comes_before_the_bound(run: Run) -> None:
    for rank in range(2):
        run.worlds["0"].report(Report({"event": "started", "rank": rank, "size": 2}), 1.0)
    now = time.monotonic()
    for seconds in (0, AFTER / 4):
        run.tick(now + seconds)
    wait_in_mpi(run.detector)
    assert run.detector.standstill(run.view(), now + AFTER / 4 + 6) is None  # too short to tell
    found = run.detector.standstill(run.view(), now + AFTER / 4 + 30)
    assert found is not None
    assert "all ranks wait in MPI_" in found.what


def test_what_was_reported_before_the_bound_holds_at_the_bound(run: Run) -> None:
    """Ranks that have waited for long enough then have not yet waited for all of the bound."""
    now = time.monotonic()
    for seconds in (0, AFTER / 4):
        run.tick(now + seconds)
    wait_in_mpi(run.detector)
    run.detector._tell(Stall("it stands", "", (), (0, 1), None), "0", [], AFTER / 6)
    run.tick(now + 2 * AFTER)
    assert None not in run.stalls
    assert len(run.stalls) == 1
