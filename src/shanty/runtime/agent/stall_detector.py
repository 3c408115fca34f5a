"""Notices, on behalf of the controller, that a run makes no progress, and writes down why.

While nothing new comes of any rank (output, what it logs, how far it is), the node agents watch
whether the ranks move (`progress_sampler`); `straggler` judges. A stall is told once.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from typing import Any, Dict, List, Mapping, Optional, Tuple

from shanty.runtime.agent.root_cause import Verdict
from shanty.runtime.agent.run_control import RunControl
from shanty.runtime.agent.straggler import Stall, Standing, judge
from shanty.runtime.errors import STALL_EXIT
from shanty.runtime.rundir import append_line
from shanty.runtime.spec import Failure, State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.agent.link_check import LinkCheck, LinkFault

_QUIET = 6.0  # the node agents begin to watch after this part of the bound
_LOOKS = 12.0  # looks in the time of the bound
_EARLY = 6.0  # after this part of the bound in one call of MPI, the hosts' links are tried
_FRESH = 15.0  # seconds for which what was found of the links is true
_RARELY = 5.0  # bounds between two requests for the stacks of ranks that are silent for hours
_SHORTEST, _LONGEST = 0.2, 5.0  # seconds between two looks


class StallDetector:
    """The watch over one run."""

    def __init__(self, controller: RunControl) -> None:
        self._controller = controller
        self._after: float = controller.plan.limits.stall_after  # 0: nobody watches
        self._stops = controller.plan.limits.on_stall == "stop"
        self._pause = min(max(self._after / _LOOKS, _SHORTEST), _LONGEST)
        self._next = 0.0
        self._sign: Tuple[float, ...] = ()  # what changes with every sign of life
        self._quiet_since = time.monotonic()
        self._watch_since: Optional[float] = None
        self._told = False
        self._several = bool(controller.plan.workers)
        self._check: Optional[LinkCheck] = None  # under way
        self._checks = 0
        self._checked: Optional[float] = None  # when the last one of this watch was over
        self._fault: Optional[LinkFault] = None  # that it found
        self._probes: List[Tuple[float, Mapping[str, int]]] = []  # when over, bytes by host
        self._not_before = self._between = 0.0  # when to ask for stacks again that told no stall
        self.looks: Dict[str, Mapping[str, Any]] = {}  # by host, the newest

    def tick(self, now: float) -> None:
        """Does what is due by the clock."""
        if self._check is not None:
            self._check.tick(now)
            if self._check.over:
                self._probes.append((now, self._check.moved))
                self._fault, self._checked, self._check = self._check.fault, now, None
                self._next = now
        if not self._after or now < self._next:
            return
        self._next = now + self._pause
        if self._controller.status.state is not State.RUNNING or self._controller.ending:
            self._end_watch()
            self._quiet_since = now
            return
        sign = self._signs_of_life()
        if sign != self._sign:
            self._sign, self._quiet_since = sign, now
            self._end_watch()
            self._over()
        elif self._watch_since is None and now > self._quiet_since + self._after / _QUIET:
            self._watch_since, self._between = now, self._after / 2
            self._not_before = 0.0
            self._controller.tell(watch=self._pause, bound=self._after)
        elif self._watch_since is not None and now > self._watch_since + self._after:
            self._judge(now)
        elif self._watch_since is not None and self._several and not (self._told or self._stops):
            self._judge_links(now)

    def hear(self, host: str, message: Mapping[str, Any]) -> None:
        """Takes what a node agent saw."""
        moves = [{"host": host, **rank} for rank in message["moves"]]
        self.looks[host] = {**message, "moves": moves, "heard": time.monotonic()}

    def hear_links(self, host: str, message: Mapping[str, Any]) -> None:
        """Takes what a node agent found of the links."""
        if self._check is not None:
            self._check.hear(host, message)

    def _signs_of_life(self) -> Tuple[float, ...]:
        run = self._controller.run_dir
        found = []
        for path in (*run.rank_logs().values(), run.launcher_log, run.metrics, run.progress):
            with contextlib.suppress(OSError):
                status = os.stat(path)
                found += [status.st_size, status.st_mtime]
        return tuple(found)

    def _end_watch(self) -> None:
        if self._watch_since is not None:
            self._watch_since = None
            self._controller.tell(watch=None)
            if self._check is not None:  # what it finds is of a time that is over
                self._check.end()
            self._check = self._checked = self._fault = None
            self._probes.clear()
            self.looks.clear()

    def _over(self) -> None:
        if self._told:
            self._told = False
            self._controller.stalled(None)

    def _suspects(self, after: float) -> List[str]:
        """Returns the worlds in which some rank has been in one place for so many seconds."""
        return [
            world
            for world in self._controller.worlds
            if any(_longest_wait(rank) >= after for rank in self._ranks(world))
        ]

    def _judge_links(self, now: float) -> None:
        """Tells before the bound that hosts do not reach each other: waiting will not help."""
        after = self._after / _EARLY
        if self._check is not None or (self._checked is not None and self._fault is None):
            return
        for world in self._suspects(after):
            if self._checked is None:
                self._begin_check(now)
                return
            found = self._find(world, [], after)
            if found is not None:
                answers = self._controller.ask_stacks()
                self._tell(self._find(world, answers, after) or found, world, answers)
                return

    def _begin_check(self, now: float) -> None:
        from shanty.runtime.agent.link_check import LinkCheck  # rarely needed

        self._checks += 1
        self._check = LinkCheck(self._controller, self._checks, now)

    def _links_are_known(self, now: float) -> bool:
        """True once it was tried just now whether hosts reach each other."""
        if not self._several:
            return True
        if self._check is None and (self._checked is None or now > self._checked + _FRESH):
            self._begin_check(now)
        return self._check is None

    def _judge(self, now: float) -> None:
        """Sees whether it is a stall by now, or no more."""
        # Some rank has been in one place for the bound: a closer look is worth it.
        suspects = self._suspects(self._after)
        if self._told:
            if self.looks and not suspects:
                self._over()
            return
        for world in suspects:
            sure = self._find(world, [], self._after) is not None
            if sure or now >= self._not_before:
                if not self._links_are_known(now):
                    return
                self._not_before = now + self._between
                self._between = min(2 * self._between, _RARELY * self._after)
                answers = self._controller.ask_stacks()
                found = self._find(world, answers, self._after)
                if found is not None and not self._controller.ending:
                    self._tell(found, world, answers)
                    return

    def _ranks(self, world: str) -> List[Mapping[str, Any]]:
        moves = (rank for look in self.looks.values() for rank in look["moves"])
        return [rank for rank in moves if rank["world"] == world]

    def _find(self, world: str, answers: List[Dict[str, Any]], after: float) -> Optional[Stall]:
        """Returns the stall of a world after `after` seconds; None without one."""
        ranks, known = self._ranks(world), self._controller.worlds[world]
        threads = {a["rank"]: a["threads"] for a in answers if "threads" in a}
        ended = {rank.rank: rank.host for rank in known.ranks.values() if rank.ended is not None}
        loads = {
            host: {**look["load"], "probed": self._probed(host, look)}
            for host, look in self.looks.items()
        }
        many = Counter(rank["host"] for rank in ranks)
        standings = [
            Standing(
                rank,
                threads.get(rank["rank"], ()),
                min(1.0, loads[rank["host"]]["cores"] / many[rank["host"]]),
            )
            for rank in ranks
            if rank["rank"] not in ended
        ]
        if len(standings) + len(ended) < (known.expected or 0):
            return None  # a node agent has not yet said how its ranks are
        return judge(standings, ended, loads, after, self._fault)

    def _probed(self, host: str, look: Mapping[str, Any]) -> int:
        """Returns how many of the bytes of a look are those of our own checks."""
        since = look["heard"] - look["load"]["seconds"]
        return sum(moved.get(host, 0) for over, moved in self._probes if over > since)

    def _tell(self, stall: Stall, world: str, answers: List[Dict[str, Any]]) -> None:
        """Writes the report down; ends the run if that is asked for."""
        self._told = True
        now = time.monotonic()
        at = {rank: place for place, rank in enumerate(stall.order)}
        report = {
            "time": time.time(),
            "quiet": round(now - self._quiet_since, 1),
            "what": stall.what,
            "fix": stall.fix,
            "odd": list(stall.stragglers),
            "host": stall.host,
            "stops": self._stops,
            "stacks": sorted(answers, key=lambda a: at.get(a["rank"], len(at))),
            "ranks": self._ranks(world),
            "hosts": [
                {"name": host, "silent": round(now - look["heard"], 1), **look["load"]}
                for host, look in self.looks.items()
            ],
        }
        with contextlib.suppress(OSError):
            append_line(self._controller.run_dir.stalls, report)
        self._controller.event("stall", what=stall.what, odd=report["odd"], host=stall.host)
        verdict = None
        if self._stops:
            first = next(iter(stall.stragglers), None)
            failure = Failure(stall.what, fix=stall.fix, rank=first, host=stall.host)
            verdict = Verdict(failure, STALL_EXIT)
        self._controller.stalled(time.time() - (now - self._quiet_since), verdict)


def _longest_wait(rank: Mapping[str, Any]) -> float:
    """Returns for how many seconds it may have waited, as its node agent reports it."""
    seconds: float = max(rank["waits"], rank["still"] or 0.0, (rank.get("wait") or ("", 0.0))[1])
    return seconds
