"""Notices, on behalf of the controller, that a run makes no progress, and writes down why.

While no rank shows a sign of life (output, logged numbers, progress), the node agents watch whether
the ranks move (`progress_sampler`); `stall_verdict` decides. A stall is reported once.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from shanty.runtime import platform
from shanty.runtime.diagnosis.last_words import cause
from shanty.runtime.diagnosis.rank_names import named
from shanty.runtime.diagnosis.root_cause import TOP, Verdict
from shanty.runtime.diagnosis.run_view import Actions, RunView
from shanty.runtime.diagnosis.stacks import MAIN_ONLY
from shanty.runtime.diagnosis.stall_verdict import (
    IDLE,
    MOSTLY,
    Stall,
    Standing,
    halted_launcher,
    judge,
)
from shanty.runtime.errors import STALL_EXIT
from shanty.runtime.logfile import last_lines
from shanty.runtime.messages import HostLoad, LinkPorts, LinkResults, Moves, RankState, Watch
from shanty.runtime.plan import Plan
from shanty.runtime.rundir import RunDir, append_line
from shanty.runtime.spec import Failure, State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.diagnosis.link_check import LinkCheck, LinkFault

_QUIET = 6.0  # the node agents begin to watch after this part of the bound
_LOOKS = 12.0  # looks in the time of the bound
_EARLY = 6.0  # after this part of the bound in one call of MPI, the hosts' links are tried
_CELLS = (
    3.0  # after this part of the bound, waits for ranks that have ended their cell are reported
)
_FRESH = 15.0  # seconds for which the result of a check of the links holds
_RARELY = 5.0  # bounds between two requests for the stacks of ranks that are silent for hours
_LAST_LINES = 20  # in which an error explains what a straggler does
_SHORT = 5.0  # seconds of a standstill that are worth a report
_SURELY = 0.8  # of the time of a watch, since looks come late on a busy machine
_SHORTEST, _LONGEST = 0.2, 5.0  # seconds between two looks


class Look(NamedTuple):
    """What a node agent saw, and when its message came."""

    moves: Moves
    heard: float


class StallDetector:
    """The watch over one run."""

    def __init__(self, run: RunDir, plan: Plan, actions: Actions) -> None:
        self._run = run
        self._nodes = plan.attempt.nodes
        self._actions = actions
        self._after: float = plan.limits.stall_after  # 0: the detector is off
        self._stops = plan.limits.on_stall == "stop"
        self._elastic = plan.limits.elastic is not None
        self._pause = min(max(self._after / _LOOKS, _SHORTEST), _LONGEST)
        self._next = 0.0
        self._sign: Tuple[float, ...] = ()  # what changes with every sign of life
        self._quiet_since = time.monotonic()
        self._watch_since: Optional[float] = None
        self._told = False
        self._told_after = self._after  # the bound of the report
        self._ranks_wanted = plan.ranks
        self._several = bool(plan.workers)
        self._cells = "shanty.tasks.cells" in plan.attempt.argv  # the ranks of a notebook
        self._check: Optional[LinkCheck] = None  # under way
        self._checks = 0
        self._checked: Optional[float] = None  # when the last one of this watch was over
        self._fault: Optional[LinkFault] = None  # that it found
        self.network: Optional[LinkFault] = None  # by what the hosts' kernels count
        self._not_before = self._between = 0.0  # when to ask again for stacks that proved no stall
        self._looks: Dict[str, Look] = {}  # by host, the newest

    def tick(self, view: RunView, now: float) -> None:
        """Does what is due by the clock."""
        if self._check is not None:
            self._check.tick(now)
            if self._check.over:
                self._fault, self._checked, self._check = self._check.fault, now, None
                self._next = now
        if not self._after or now < self._next:
            return
        self._next = now + self._pause
        if view.state not in (State.STARTING, State.RUNNING) or view.ending:
            self._end_watch()
            self._quiet_since = now
            return
        sign = self._signs_of_life(view)
        if sign != self._sign:
            self._sign, self._quiet_since = sign, now
            self._end_watch()
            self._over()
        elif self._watch_since is None and now > self._quiet_since + self._after / _QUIET:
            self._watch_since, self._between = now, self._after / 2
            self._not_before = 0.0
            self._actions.tell(Watch(self._pause, self._after))
        elif self._watch_since is not None and now > self._watch_since + self._after:
            self._judge(view, now)
        elif self._watch_since is not None and self._is_due_for_cells(now):
            self._judge_cells(view, now)
        elif self._watch_since is not None and self._several and not (self._told or self._stops):
            self._judge_links(view, now)

    def hear(self, host: str, moves: Moves) -> None:
        """Takes what a node agent saw."""
        ranks = tuple([state._replace(host=host) for state in moves.ranks])
        self._looks[host] = Look(moves._replace(ranks=ranks), time.monotonic())

    def forget_looks(self) -> None:
        """Forgets what the node agents have seen so far."""
        self._looks.clear()

    def newest_states(self) -> List[RankState]:
        """Returns each rank as its node agent saw it last."""
        return [state for look in self._looks.values() for state in look.moves.ranks]

    def hear_links(self, host: str, message: Union[LinkPorts, LinkResults]) -> None:
        """Takes what a node agent found of the links."""
        if self._check is not None:
            self._check.hear(host, message)

    def _signs_of_life(self, view: RunView) -> Tuple[float, ...]:
        run = self._run
        found: List[float] = []
        # Ranks in a rendezvous report again and again that they try to connect.
        meeting = {rank for world in view.worlds.values() for rank in world.meetings}
        logs = [path for rank, path in run.rank_logs().items() if rank not in meeting]
        for path in (*logs, run.launcher_log, run.metrics, run.progress):
            with contextlib.suppress(OSError):
                status = os.stat(path)
                found += [status.st_size, status.st_mtime]
        return tuple(found)

    def _end_watch(self) -> None:
        if self._watch_since is not None:
            self._watch_since = None
            self._actions.tell(Watch(None))
            if self._check is not None:  # its result is about a time that is over
                self._check.end()
            self._check = self._checked = self._fault = None
            self._looks.clear()

    def _over(self) -> None:
        if self._told:
            self._told = False
            self._actions.stalled(None)

    def _suspects(self, view: RunView, after: float) -> List[str]:
        """Returns the worlds in which some rank has been in one place for so many seconds."""
        return [
            world
            for world in view.worlds
            if any(_longest_wait(rank) >= after for rank in self._ranks(view, world))
        ]

    def _judge_links(self, view: RunView, now: float) -> None:
        """Reports before the bound that hosts do not reach each other: waiting will not help."""
        after = self._after / _EARLY
        if self._check is not None or (self._checked is not None and self._fault is None):
            return
        for world in self._suspects(view, after):
            if self._checked is None:
                self._begin_check(now)
                return
            found = self._find(view, world, [], after)
            if found is not None:
                answers = self._actions.ask_stacks()
                self._tell(self._find(view, world, answers, after) or found, world, answers, after)
                return

    def _is_due_for_cells(self, now: float) -> bool:
        due = max(self._not_before, (self._watch_since or 0.0) + self._after / _CELLS)
        return self._cells and not self._told and now > due

    def _judge_cells(self, view: RunView, now: float) -> None:
        """Reports before the bound that ranks wait for ranks that have ended their cell."""
        after = round(self._after / _CELLS, 1)
        for world in self._suspects(view, after):
            if self._find(view, world, [], after) is not None:
                self._not_before = now + after
                answers = self._actions.ask_stacks()
                found = self._find(view, world, answers, after)
                if found is not None and found.final:
                    self._tell(found, world, answers, after)
                    return

    def _begin_check(self, now: float) -> None:
        from shanty.runtime.diagnosis.link_check import LinkCheck  # rarely needed

        self._checks += 1
        self._check = LinkCheck(self._nodes, self._checks, now, self._actions.tell_host)

    def _links_are_known(self, now: float) -> bool:
        """True once a recent check has shown whether hosts reach each other."""
        if not self._several:
            return True
        if self._check is None and (self._checked is None or now > self._checked + _FRESH):
            self._begin_check(now)
        return self._check is None

    def _judge(self, view: RunView, now: float) -> None:
        """Decides whether the run is stalled by now, or is no longer."""
        # Some rank has been in one place for the bound: a closer look is worth the effort.
        suspects = self._suspects(view, self._after)
        halted = self._halted_start(view)
        if self._told:
            waits = self._suspects(view, self._told_after)
            if self._looks and not waits and halted is None:
                self._over()
            return
        if halted is not None:
            self._tell(halted, TOP, [], self._after)
            return
        for world in suspects:
            sure = self._find(view, world, [], self._after) is not None
            if sure or now >= self._not_before:
                if not self._links_are_known(now):
                    return
                self._not_before = now + self._between
                self._between = min(2 * self._between, _RARELY * self._after)
                answers = self._actions.ask_stacks()
                found = self._find(view, world, answers, self._after)
                if found is not None and not self._actions.view().ending:
                    self._tell(found, world, answers, self._after)
                    return

    def standstill(self, view: RunView, now: float) -> Optional[Stall]:
        """Returns how the ranks stand where they stand still, but not for as long as the bound."""
        watched = 0.0 if self._watch_since is None else now - self._watch_since
        after = round((watched - self._pause) * _SURELY)  # since the newest look, at least
        for world in self._suspects(view, after) if after >= _SHORT else ():
            found = self._find(view, world, self._actions.ask_stacks(), after)
            if found is not None:
                return found._replace(what=found.what + self._printed(found))
        return None

    def _halted_start(self, view: RunView) -> Optional[Stall]:
        """Returns the stall of a run whose launcher was stopped before all ranks have started."""
        if view.state is not State.STARTING:
            return None
        world = view.worlds.get(TOP)
        wanted = self._ranks_wanted if world is None else world.expected
        started = 0 if world is None else len(world.ranks)
        meanwhile = f"{started}{f' of {wanted}' if wanted else ''} ranks have started"
        if world is not None and started >= (wanted or 0):
            waiting = world.waiting_in_init()
            if not waiting:
                return None
            meanwhile = f"{named(waiting)} {'waits' if len(waiting) == 1 else 'wait'} in MPI_Init"
        for host, look in self._looks.items():
            for pid, name in look.moves.load.halted:
                return halted_launcher(pid, name, host, meanwhile, self._after)
        return None

    def _ranks(self, view: RunView, world: str) -> List[RankState]:
        """Returns the ranks of a world as they were seen last, with the rendezvous they wait in."""
        now = time.monotonic()
        meetings = view.worlds[world].meetings if world in view.worlds else {}
        spares = view.worlds[world].spares if world in view.worlds else ()
        found = []
        for state in self.newest_states():
            if state.rank in spares and state.state not in platform.STOPPED:
                continue  # it sleeps
            if state.world == world:
                meeting = meetings.get(state.rank)
                if meeting is not None:
                    state = state._replace(wait=(meeting.what, round(now - meeting.since, 2)))
                found.append(state)
        return found

    def _find(
        self, view: RunView, world: str, answers: List[Dict[str, Any]], after: float
    ) -> Optional[Stall]:
        """Returns the stall of a world after `after` seconds; None without one."""
        ranks, known = self._ranks(view, world), view.worlds[world]
        threads = {a["rank"]: a["threads"] for a in answers if "threads" in a}
        locked = {a["rank"] for a in answers if a.get("note") == MAIN_ONLY}
        ended = {rank.rank: rank.host for rank in known.ranks.values() if rank.ended is not None}
        loads = {host: self._load(host, look.moves.load) for host, look in self._looks.items()}
        forked = {rank.rank: rank.forked for rank in known.ranks.values() if rank.forked}
        lost = known.losses.gone if known.losses is not None else ()
        ended = {rank: host for rank, host in ended.items() if rank not in lost}
        asleep = known.spares.difference(state.rank for state in ranks)
        size = (known.expected or 0) - len(lost) - len(asleep)
        ranks = [state for state in ranks if state.rank not in lost]
        many = Counter(state.host for state in ranks)
        standings = [
            Standing(
                state,
                threads.get(state.rank, ()),
                min(1.0, loads[state.host].cores / many[state.host]),
                known.meetings.get(state.rank),
                state.rank in locked,
            )
            for state in ranks
            if state.rank not in ended
        ]
        if len(standings) + len(ended) < size:
            return None  # a node agent has not yet said how its ranks are
        fault = self.network or self._fault
        return judge(standings, ended, loads, after, fault, size, forked)

    def _load(self, host: str, load: HostLoad) -> HostLoad:
        """Returns the load of a host with those links only that the run takes."""
        names = {name for node in self._nodes if node.name == host for name, _ in node.interfaces}
        links = [link for link in load.links if link.name in names or not names]
        return load._replace(links=tuple(links))

    def _tell(self, stall: Stall, world: str, answers: List[Dict[str, Any]], after: float) -> None:
        """Writes the report down; ends the run if that is asked for."""
        self._told, self._told_after = True, after
        now = time.monotonic()
        stall = stall._replace(what=stall.what + self._printed(stall))
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
            "ranks": [_rank_json(state) for state in self._ranks(self._actions.view(), world)],
            "hosts": [
                {"name": host, "silent": round(now - look.heard, 1), **_load_json(look.moves.load)}
                for host, look in self._looks.items()
            ],
        }
        with contextlib.suppress(OSError):
            append_line(self._run.stalls, report)
        self._actions.event("stall", what=stall.what, odd=report["odd"], host=stall.host)
        verdict = None
        hung = self._hung(stall, world) if self._elastic else []
        if hung:
            self._actions.kill_hung(hung, stall.what)
        elif self._stops:
            first = next(iter(stall.stragglers), None)
            failure = Failure(stall.what, fix=stall.fix, rank=first, host=stall.host)
            verdict = Verdict(failure, STALL_EXIT)
        self._actions.stalled(time.time() - (now - self._quiet_since), verdict)

    def _printed(self, stall: Stall) -> str:
        """Returns the error that a straggler has printed and lived on, as where a thread failed."""
        for rank in stall.stragglers[:1]:
            error, _ = cause(last_lines(str(self._run.rank_log(rank)), _LAST_LINES))
            if error:
                return f"; rank {rank} has printed: {error}"
        return ""

    def _hung(self, stall: Stall, world: str) -> List[int]:
        """Returns the ranks that keep the others of an elastic run waiting, and do nothing."""
        states = {state.rank: state for state in self._ranks(self._actions.view(), world)}
        idle = [rank for rank in stall.stragglers if rank in states and _is_idle(states[rank])]
        return list(stall.stragglers) if self._stops else idle


def _is_idle(state: RankState) -> bool:
    return state.state in platform.STOPPED or (state.cpu < IDLE and state.ready < MOSTLY)


def _longest_wait(state: RankState) -> float:
    """Returns for how many seconds a rank may have waited, as its node agent reports it."""
    return max(state.waits, state.still or 0.0, state.wait[1] if state.wait else 0.0)


def _rank_json(state: RankState) -> Dict[str, Any]:
    values = state._asdict()
    rare = ("frames", "child", "lock")
    return {name: values[name] for name in values if name not in rare or values[name] is not None}


def _load_json(load: HostLoad) -> Dict[str, Any]:
    return {**load._asdict(), "links": [link._asdict() for link in load.links]}
