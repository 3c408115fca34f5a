"""Judges a silent run by what its node agents measured: is it stuck, and which rank is the odd one?

Pure. A run is stuck when for the whole bound some rank has been in one and the same call of MPI
(or of torch.distributed), and no other has moved through MPI. The odd ones are those that keep
the others waiting: ranks that get no CPU, then those that are not in MPI at all, those that have
come to their end, and those in another call, or in the same at another place.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from shanty.runtime.agent.root_cause import named

_TRAFFIC = 1 << 20  # bytes a second at which a host still sends or receives something large
_STARVED = 0.05  # of a rank's fair share of the cores: with less it does not really run
_FROZEN = 0.003  # of a core; a rank that waits in MPI gives most of its share away by itself
_MOSTLY = 0.8  # of the looks at a rank
_IDLE = 0.05  # of a core: with less a process waits for something
_FOREIGN = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python\d|^<frozen"
    r"|/shanty/(runtime|collectives|torch|xgboost|compat)/"
    r"|/torch/(distributed|utils/data|nn|autograd)/|^$"
)
_COLLECTIVE = ("/torch/distributed/", "/shanty/torch/", "/shanty/collectives/")
_MEETING = ("/shanty/xgboost/handshake.py", "_wait")  # it naps, and asks MPI in between
_GRADIENTS = ("/torch/nn/parallel/", "/torch/autograd/")  # they exchange gradients, too
# How bad it is, the worst first.
STOPPED, STARVED, ELSEWHERE, ENDED, FROZEN, OTHER_CALL, UNSEEN = range(7)


@dataclass
class Standing:
    """A rank as its node agent measured it (`movement.py`), with its stacks; times are seconds."""

    rank: int
    host: str
    told: Mapping[str, Any]
    threads: Sequence[Mapping[str, Any]] = ()
    fair: float = 1.0  # the part of a core that it could have
    call: str = ""
    waits: float = 0.0
    place: str = ""  # "train (train.py:31)"
    meets: bool = False  # waits for other ranks outside MPI, nobody knows for how long
    files: Tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        frames = self.threads[-1]["frames"] if self.threads else []
        own = next((i for i, f in enumerate(frames) if not _FOREIGN.search(f[0])), None)
        inner = frames if own is None else frames[:own]
        self.files = tuple(frame[0] for frame in inner)
        if frames:
            path, line, function = frames[own or 0]
            where = f"{os.path.basename(path)}:{line}" if line else os.path.basename(path)
            self.place = f"{function} ({where})" if where else function
        self.meets = any(f[0].endswith(_MEETING[0]) and f[2] == _MEETING[1] for f in frames)
        self.call, self.waits = self._wait(frames)

    @property
    def idle(self) -> bool:
        """True when it uses no CPU and does not even want to."""
        return bool(self.told["cpu"] < _IDLE and self.told["ready"] < _MOSTLY)

    def _wait(self, frames: Sequence[Sequence[Any]]) -> Tuple[str, float]:
        """Which call it has been in, and for how long."""
        told, still = self.told, self.told.get("still")
        if self.meets:
            return "shanty.xgboost", 0.0
        if told["call"]:
            return told["call"], told["waits"]
        if not frames or still is None or not told["read"]:
            return "", 0.0
        torch = [f[2] for f in frames if any(part in f[0] for part in _COLLECTIVE)]
        if torch:
            return f"torch {next((f for f in reversed(torch) if f != 'wrapper'), 'wait')}", still
        if self.idle and any(part in frame[0] for frame in frames for part in _GRADIENTS):
            return "torch's exchange of gradients", still
        return "", 0.0

    @property
    def starved(self) -> bool:
        """True when it could run, and is not let."""
        least = min(_FROZEN, _STARVED * self.fair) if self.call else _STARVED * self.fair
        return bool(self.told["ready"] > _MOSTLY and self.told["cpu"] < least)

    def doing(self, ranks: Mapping[Tuple[str, int], int]) -> str:
        """What it does, when it is not in MPI; `ranks` has those of (host, pid)."""
        at = f" in {self.place}" if self.place else ""
        if self.told.get("lock"):
            path, holder = self.told["lock"]
            rank = ranks.get((self.host, holder))
            who = f"process {holder}" if rank is None else f"rank {rank}"
            held = f", which {who} holds" if holder else ""
            return f"waiting{at} for the lock on {path or 'a file'}{held}"
        if any("/torch/utils/data/" in path for path in self.files):
            return f"waiting{at} for its DataLoader"
        if self.told["state"] == "D":
            return f"waiting{at} for a disk or file system"
        return ("idle" if self.idle else "busy") + at


@dataclass(frozen=True)
class Stall:
    """What keeps a run from going on; `odd` ranks first in `order`."""

    what: str
    fix: str
    odd: Tuple[int, ...]
    order: Tuple[int, ...]
    host: Optional[str]


def judge(
    ranks: Sequence[Standing], ended: Mapping[int, str], loads: Mapping[str, Any], after: float
) -> Optional[Stall]:
    """The stall of one world after `after` seconds; None while there is none.

    `ended` are the ranks that are gone, with their hosts; `loads` is what each host says of itself
    (`hostload.py`), with `age`, the seconds since its watch began.
    """
    ranks = sorted(ranks, key=lambda r: r.rank)
    waiting = [r for r in ranks if r.call and r.waits >= after]
    for rank in ranks:
        through = rank.told["through"]
        if rank in waiting or rank.meets:
            continue
        if rank.call or (through is not None and through < after):
            return None  # it has come into MPI only now, or comes and goes
    if not waiting:
        return None
    pids = {(rank.host, rank.told["pid"]): rank.rank for rank in ranks}
    sorted_out: Dict[Tuple[int, str], List[Standing]] = {}
    calls: Dict[Tuple[str, str], List[Standing]] = {}
    for rank in ranks:
        if rank.told["state"] in ("T", "t"):
            sorted_out.setdefault((STOPPED, "stopped, as by SIGSTOP"), []).append(rank)
        elif rank.starved:
            used = f"{rank.told['cpu'] * 100:.1f} % of a core"
            kind = FROZEN if rank.call else STARVED
            sorted_out.setdefault((kind, f"ready to run, but gets {used}"), []).append(rank)
        elif rank not in waiting and not rank.meets:
            kind = ELSEWHERE if rank.told["read"] else UNSEEN  # it may be in MPI, too
            sorted_out.setdefault((kind, rank.doing(pids)), []).append(rank)
        elif rank.call == "MPI_Finalize":
            sorted_out.setdefault((ENDED, "at its end, in MPI_Finalize"), []).append(rank)
        else:
            calls.setdefault((rank.call, rank.place), []).append(rank)
    if len(calls) > 1:
        most = max(calls.values(), key=lambda group: (len(group), -group[0].rank))
        for (call, place), group in calls.items():
            if group is not most:
                sorted_out[(OTHER_CALL, _in_call(call, place))] = group
    gone = [Standing(rank, host, _GONE) for rank, host in ended.items()]
    if gone:
        sorted_out[(ENDED, "no more: it has ended")] = gone
    if not sorted_out:
        return _links(waiting, loads, after)
    return _stall(sorted_out, calls, after)


_GONE = {"call": "", "waits": 0.0, "cpu": 0.0, "state": "", "ready": 0.0, "through": None}
_NO_CPU = "see what else runs on {host}, and how much CPU its container or cgroup may use"
_FIXES = {
    STOPPED: "let it go on: kill -CONT {pid} on {host}",
    STARVED: _NO_CPU,
    FROZEN: _NO_CPU,
    ELSEWHERE: "see why it does not come to the call in which the others wait for it",
    ENDED: "let all ranks make the same number of steps: it left the loop before the others",
    OTHER_CALL: "let all ranks make the same calls in the same order",
    UNSEEN: "see whether it comes to the call in which the others wait for it",
}


def _stall(
    sorted_out: Mapping[Tuple[int, str], List[Standing]],
    calls: Mapping[Tuple[str, str], List[Standing]],
    after: float,
) -> Stall:
    groups = sorted(sorted_out.items(), key=lambda g: (g[0][0], len(g[1]), g[1][0].rank))
    (kind, _), odd = groups[0]
    said = [_said(group, text) for (_, text), group in groups[:2]]
    if calls:
        call, most = max(calls.items(), key=lambda item: (len(item[1]), -item[1][0].rank))
        others = [r.rank for r in most]
        said.append(f"{named(others)} {'waits' if len(others) == 1 else 'wait'} in {call[0]}")
    order = [r.rank for _, group in groups for r in group]
    order += [r.rank for group in calls.values() for r in group if r.rank not in order]
    first = odd[0]
    fix = _FIXES[kind].format(pid=first.told.get("pid", "PID"), host=first.host)
    return Stall(
        f"no progress for {after:g} s: " + ", ".join(said),
        fix,
        tuple(r.rank for r in odd),
        tuple(order),
        first.host,
    )


def _said(group: Sequence[Standing], text: str) -> str:
    hosts = list(dict.fromkeys(rank.host for rank in group))
    on = f" on {hosts[0]}" if len(hosts) == 1 else ""
    return f"{named([r.rank for r in group])}{on} {'is' if len(group) == 1 else 'are'} {text}"


def _in_call(call: str, place: str) -> str:
    return f"in {call}" + (f" at {place}" if place and place != call else "")


def _links(waiting: Sequence[Standing], loads: Mapping[str, Any], after: float) -> Optional[Stall]:
    """All ranks are in the same call, all of them run: something between them is stuck."""
    if any(_moves_much(load) for load in loads.values()):
        return None
    host, why = "", ""
    for name, load in loads.items():
        down = [link["name"] for link in load["links"] if link["used"] and not link["carries"]]
        failing = [link["name"] for link in load["links"] if link["errors"]]
        sent, again = load["tcp"]
        if down:
            host, why = name, f"link {down[0]} of {name} is down"
        elif not host and failing:
            host, why = name, f"link {failing[0]} of {name} has errors"
        elif not host and again and again >= sent / 4:
            host, why = name, f"{again} of the {sent} packets that {name} sent were lost"
    ranks = [r.rank for r in waiting]
    what = f"no progress for {after:g} s: all ranks wait in {waiting[0].call}"
    odd = tuple(r.rank for r in waiting if r.host == host)
    fix = "see whether the hosts still reach each other: shanty net"
    if len(loads) < 2:
        fix = (
            "see where the ranks stand, and which of them should have sent what the others wait for"
        )
    return Stall(what + (f"; {why}" if why else ""), fix, odd, tuple(ranks), host or None)


def _moves_much(load: Mapping[str, Any]) -> bool:
    moved = sum(link["bytes"] for link in load["links"])
    return bool(moved > _TRAFFIC * max(1.0, load["age"]))
