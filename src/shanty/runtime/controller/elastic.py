"""What the controller does in an elastic run: it notes losses, and says who goes on.

The other ranks learn from it which ranks were on a lost host, since their MPI does not notice it.
And ranks that have found each other after a loss go on only with the controller's word, so that
those which are cut off do not.
"""

from __future__ import annotations

import signal
import time
from typing import Dict, FrozenSet, List, Optional, Sequence, Set

from shanty.runtime import messages
from shanty.runtime.controller.membership import Confirmed, Membership
from shanty.runtime.diagnosis import losses
from shanty.runtime.diagnosis.mpi_world import MpiWorld
from shanty.runtime.diagnosis.rank_names import named
from shanty.runtime.diagnosis.run_view import Actions
from shanty.runtime.diagnosis.signals import signal_name
from shanty.runtime.messages import Report
from shanty.runtime.spec import HOST, Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.controller.worker_links import WorkerLinks


class Elastic:
    """An elastic run whose ranks have all joined. `losses` are those of its world."""

    def __init__(
        self,
        world: MpiWorld,
        least: int,
        workers: Optional[WorkerLinks],
        actions: Actions,
    ) -> None:
        self._world = world
        self._workers = workers
        self._actions = actions
        self._membership = Membership()
        self._all = frozenset(range(world.expected or 0))
        self._told = 0  # losses
        self._hosts_lost = self._replaced = False
        self._starting: Set[int] = set()  # ranks that take the place of lost ones
        self._released = False  # the spares may end
        self._vacant: List[int] = []  # lost ones of these whose place is vacant
        self._place_of: Dict[int, int] = {}  # of spares: the lost rank
        self.losses = world.tolerate(least)
        self._active = frozenset(range(self.losses.size))  # ranks that train
        if workers is not None:
            workers.tolerate()

    def take(self, report: Report) -> Optional[Report]:
        """Return a rank's report as its world is to have it; None where it is of no use there."""
        host, daemon = report.text("host"), report.text("launcher")
        if daemon and self._workers is not None and self._workers.worker_of(host) is not None:
            self._lose_daemon(host, f"the launcher's {daemon} there is gone")
        if self._world.is_gone(report.rank) and not self._comes_back(report):
            return None
        if report.event == "exited" and report.rank in self._starting:
            left = set(self._world.running) - self.losses.gone
            word = f"unstarted {report.rank}"
            self._actions.tell(messages.TellRanks(tuple(sorted(left)), word))
        if report.event == "dismiss":
            self._dismiss()
            return None
        if report.event == "deaf":
            if report.rank in self._world.running and report.rank not in self._starting:
                self.kill([report.rank], "it did not react to the loss of others", losses.UNAWARE)
            return None
        if report.event == "has-state":
            self._take_place(report.rank)
            return None
        word = report.text("word")
        if report.event == "membership":
            self._membership.ask(report.rank, self._all - _numbers(word))
            return None
        if report.event == "place":
            self._actions.tell_host(host, messages.TellRanks((report.rank,), f"confirmed {word}"))
            return None
        return report

    def _comes_back(self, report: Report) -> bool:
        """Return whether the report of a lost rank is that of one in its place."""
        rank = report.rank
        if report.event == "started":
            self._starting.add(rank)
            self._replaced = True
        elif rank in self._starting and report.event == "joined":
            self._starting.discard(rank)
            name = f"rank {rank} on {self._world.ranks[rank].host}"
            text = f"{name} was started again and has joined"
            self._actions.returned(text, self._world.up + 1, len(self._world.spares))
        else:
            return rank in self._starting
        return True

    def _take_place(self, rank: int) -> None:
        """Report that a spare trains, if this is one."""
        if rank in self.losses.fresh:
            self.losses.fresh.discard(rank)
            name = f"rank {rank} (spare) on {self._world.ranks[rank].host}"
            text = f"{name} took the place of rank {self._place_of[rank]}"
            self._actions.returned(text, self._world.up, len(self._world.spares))

    def _dismiss(self) -> None:
        """End the ranks that were started again and have not joined."""
        late = self._starting.intersection(self._world.running)
        if late:
            self._actions.tell(messages.KillRanks(tuple(sorted(late))))

    def kill(self, ranks: Sequence[int], how: str, why: str) -> None:
        """End these ranks, which others wait for or have left behind."""
        for rank in ranks:
            host = self._world.ranks[rank].host
            what = f"rank {rank} on {host} was ended since {how}"
            failure = Failure(what, why, rank=rank, host=host, signal="SIGKILL")
            self.losses.explained[rank] = failure
        self._actions.tell(messages.KillRanks(tuple(ranks)))

    def judge(self, now: float) -> None:
        """Note what was lost since the last time, and answer the ranks that ask."""
        if self._workers is not None:
            for name, failure in self._workers.take_lost(now).items():
                self._lose_host(name, failure.what, failure.fix)
            ended = self._workers.without_daemon()
            running = {self._world.ranks[rank].host for rank in self._world.running}
            for name in ended.keys() & running:
                self._lose_daemon(name, f"the launcher's daemon there {_end(ended[name])}")
            if not self._world.running:
                self._workers.release_daemons()
        while self._told < len(self.losses.failures):
            failure = self.losses.failures[self._told]
            new = self.losses.failures[self._told :]
            self._told += new.count(failure)  # those of one host are equal
            self._actions.lost(failure, self._world.up, len(self._world.spares))
        living = set(self._world.running) - self.losses.gone
        if not living:  # the training has ended without them
            self._dismiss()
        spares = self._world.spares
        if spares and not self._released:
            left = (rank.rank for rank in self._world.ranks.values() if rank.leaves)
            self._released = not spares.issuperset(left)
            if self._released:
                self._actions.tell(messages.TellRanks(tuple(sorted(spares)), "over"))
        confirmed = self._membership.decide(living, now)
        if confirmed is not None:
            self._go_on(confirmed)

    @property
    def is_stuck(self) -> bool:
        """True when all ranks have ended, and the launcher waits for those of a lost host.

        Or it waits for all, since ranks that were started again end with the others.
        """
        return (self._hosts_lost or self._replaced) and not self._world.running

    def _go_on(self, confirmed: Confirmed) -> None:
        """Have a group go on, and end those that are not in it."""
        others = sorted(confirmed.others)
        if others:
            self.kill(others, "the others went on without it", "MPI had lost touch with it")
            self._exit(others)
        waiting = self._world.spares & confirmed.group
        places = self.losses.size - len(confirmed.group - waiting)
        chosen = sorted(waiting)[: max(0, places)]  # as in `survivors`
        self._world.spares.difference_update(chosen)
        self.losses.fresh.update(chosen)
        self._vacant.extend(sorted(self._active - confirmed.group))
        self._place_of.update((spare, self._vacant.pop(0)) for spare in chosen)
        self._active = confirmed.group - self._world.spares
        without = ",".join(map(str, sorted(self._all - confirmed.group)))
        self._actions.event("membership", ranks=sorted(confirmed.group))
        self._actions.tell(messages.TellRanks(tuple(self._world.running), f"confirmed {without}"))

    def _lose_daemon(self, host: str, why: str) -> None:
        """Lose a host on which nothing can lead the ranks any longer; its node agent lives."""
        fix = "find out from the host's log who ended it (out of memory?)"
        self._lose_host(host, why, fix)
        self._actions.tell_host(host, messages.End(None, 0.0))

    def _lose_host(self, host: str, why: str, fix: str) -> None:
        """Count the ranks of a host as lost, and tell the others, whose MPI does not notice."""
        self._hosts_lost = True
        if self._workers is not None:
            self._workers.give_up(host)
        ranks = [rank for rank in self._world.running if self._world.ranks[rank].host == host]
        if not ranks:
            return
        names = " and ".join(named(ranks).rsplit(", ", 1))
        what = f"{names} on {host} {'was' if len(ranks) == 1 else 'were'} lost"
        failure = Failure(what, why, fix, host=host, cause=HOST)
        self.losses.explained.update(dict.fromkeys(ranks, failure))
        self._exit(ranks)
        text = f"lost {','.join(map(str, ranks))}"
        self._actions.tell(messages.TellRanks(tuple(self._world.running), text))

    def _exit(self, ranks: Sequence[int]) -> None:
        """Report the end of ranks that report nothing any more."""
        now = time.monotonic()
        for rank in ranks:
            exited = Report({"event": "exited", "rank": rank, "code": -signal.SIGKILL, "at": now})
            report = messages.RankReport(exited, now)
            self._actions.heard(report, self._world.ranks[rank].host)


def _numbers(text: str) -> FrozenSet[int]:
    return frozenset(int(word) for word in text.split(",") if word.isdigit())


def _end(code: int) -> str:
    number = -code if code < 0 else code - 128  # a shell says 128 + N
    return f"was ended by {signal_name(number)}" if number > 0 else f"ended with exit code {code}"
