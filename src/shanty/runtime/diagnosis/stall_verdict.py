"""Decides by the measurements of its node agents whether a silent run is stuck, and why.

Pure. A run is stuck when for the whole bound some rank has been in one and the same call of MPI
(or of torch.distributed), and no other has moved through MPI. Stragglers are those that keep the
others waiting: ranks that get no CPU, then ranks that are not in MPI at all, ranks that have ended,
and ranks in another call, or in the same call at another place.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from shanty.runtime import platform
from shanty.runtime.diagnosis.rank_names import named
from shanty.runtime.diagnosis.rendezvous import NOT_SET, explain
from shanty.runtime.messages import RankState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.diagnosis.link_check import LinkFault
    from shanty.runtime.diagnosis.rendezvous import Meeting
    from shanty.runtime.messages import HostLoad

_TRAFFIC = 1 << 20  # bytes a second at which a host still sends or receives something large
_TRICKLE = 64 << 10  # and from which something is at least on its way
_STARVED = 0.05  # of a rank's fair share of the cores: with less it hardly runs
_FROZEN = 0.003  # of a core; a rank that waits in MPI yields most of its share by itself
MOSTLY = 0.8  # of the looks at a rank
_BUSY = 0.5  # of a core: with more it computes; a rank that polls takes less
IDLE = 0.05  # of a core: with less a process waits for something
_FOREIGN = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python\d|^<frozen"
    r"|/shanty/(runtime|collectives|torch|xgboost|compat)/"
    r"|/torch/(distributed|utils/data|nn|autograd)/|^$"
)
_COLLECTIVE = ("/torch/distributed/", "/shanty/torch/", "/shanty/collectives/")
_RPC = "torch rpc_"
_NOT_RETURNED = "find out why the function does not return; rpc_sync takes a timeout"
_THREAD = "end that thread before the script ends, or create it with daemon=True"
_CELL = "let all ranks make the same calls in a cell; a rank that failed in it makes no more"
_IN_C = (
    "find out what that line calls; after a call of MPI, compare the message with its buffer: one "
    "that is longer overwrites memory"
)
_WRAPPERS = ("wrapper", "inner_func")  # of torch's own functions
_POLLS = ("poll", "is_completed")  # which return at once
_CONSENSUS = ("/shanty/xgboost/consensus.py", "_wait")  # which sleeps, and asks MPI in between
_GRADIENTS = ("/torch/nn/parallel/", "/torch/autograd/")  # they exchange gradients, too
_EXCHANGES = 0.2  # of a core: less than what it takes to compute gradients
_NO_CPU = "see what else runs on {host}, and how much CPU its container or cgroup may use"
# The kinds of stragglers, the worst first, and what to do.
_FIXES = {
    "stopped": "let it go on: kill -CONT {pid} on {host}",
    "starved": _NO_CPU,
    "child": "start it by MPI_Comm_spawn, or without PMI_*, PMIX_* and OMPI_* in its environment: "
    "they make it wait for a place among the ranks",
    "elsewhere": "find out why it does not reach the call in which the others wait for it",
    "ended": "let all ranks make the same number of steps: it left the loop before the others",
    "frozen": _NO_CPU,
    "other call": "let all ranks make the same calls in the same order, on the same communicator "
    "or group",
    "unseen": "find out whether it reaches the call in which the others wait for it",
}
_BETWEEN_HOSTS = "check whether the hosts still reach each other: shanty net"
_SLOW = "find the slow link (`shanty net`), or give such a run a longer --stall-after"
_RECEIVES = re.compile(r"MPI_(M?[Pp]robe|I?m?[Rr]ecv)|torch i?recv")
_SENDS = re.compile(r"MPI_[BRS]?[Ss]end(?!recv)|torch i?send")
_COLLECTIVES = re.compile(
    r"MPI_(I?Barrier|Bcast|Gatherv?|Scatterv?|All\w+|Reduce\w*|Scan|Exscan|Neighbor\w+)$"
    r"|torch \w*(broadcast|reduce|gather|scatter|all_to_all)\w*$"
)
_NOT_SENT = (
    "compare source and tag of these receives with destination and tag of the sends: nobody sends "
    "what they wait for"
)
_UNLIKE = (
    "compare what the ranks pass to that call: the root, counts and types, and the communicator or "
    "group"
)
_REQUEST = (
    "compare source and tag of the receives with destination and tag of the sends: one of the "
    "requests that they wait for has no counterpart on another rank"
)
_NOT_RECEIVED = (
    "let some ranks receive before they send, or use Sendrecv: all of them send, and none receives"
)
_PORTS = re.compile(r"MPI_Comm_(accept|connect)$")
_ONE_RUN = (
    "let the other program connect to, or accept at, the same port. Programs of two runs meet with "
    "MPICH and Intel MPI only; with Open MPI, start both by one run: "
    "shanty run -- mpirun -n 1 SERVER : -n 1 CLIENT"
)
_HERE = "find out where the ranks stand, and which of them should have sent data to the others"
_FORKED = (
    "call MPI in the rank itself only, or start processes before MPI_Init or by "
    "multiprocessing.get_context('spawn')"
)
_KINDS = tuple(_FIXES)
_NOT_THERE = ("elsewhere", "ended", "other call", "unseen")
_OF_THEMSELVES = ("stopped", "starved")  # independent of the network


class Standing:
    """A rank as its host's `progress_sampler` saw it, with its stacks; times in seconds."""

    def __init__(
        self,
        state: RankState,
        threads: Sequence[Mapping[str, Any]] = (),
        fair: float = 1.0,
        meeting: Optional[Meeting] = None,
        locked: bool = False,
    ) -> None:
        self.rank = state.rank
        self.host = state.host
        self.state = state
        self.fair = fair  # the part of a core that it could have
        self.meeting = meeting  # the rendezvous that it waits in, for as long as its state says
        self.locked = locked  # no other thread got Python's lock while its stack was asked for
        frames = threads[-1]["frames"] if threads else []
        own = next((i for i, f in enumerate(frames) if not _FOREIGN.search(f[0])), None)
        inner = frames[:own]  # what the script has called; around it may be hvd.elastic.run
        self.files = [frame[0] for frame in inner]
        self.place = ""  # "train (train.py:31)"
        if frames:
            path, line, function = frames[own or 0]
            where = os.path.basename(path) + (f":{line}" if line else "")
            self.place = f"{function} ({where})" if where else function
        # The thread for whose end Python waits at its own end.
        ends = any(f[2] == "_shutdown" and f[0].endswith("/threading.py") for f in frames)
        own_places = [_own_place(each["frames"]) for each in threads[:-1]] if ends else []
        self.thread = next(filter(None, own_places), "")
        # A function that another rank has called by torch's RPC, in a thread that runs it for that.
        self.serves = next(filter(None, map(_served, threads)), "")
        # It waits for other ranks outside MPI, for an unknown time.
        module, waiting = _CONSENSUS
        self.seeks_consensus = any(f[0].endswith(module) and f[2] == waiting for f in frames)
        self.call, self.waits = self._wait(frames, inner)

    @property
    def through(self) -> bool:
        """Returns True when it waits for the next cell of its notebook."""
        return self.place.startswith("_wait_for_cell ")

    @property
    def joins(self) -> bool:
        """Returns True when it waits for the end of a process of multiprocessing."""
        return any(path.endswith("/multiprocessing/popen_fork.py") for path in self.files)

    @property
    def stopped(self) -> bool:
        """Returns True when it was stopped, as by SIGSTOP or a debugger."""
        return self.state.state in platform.STOPPED

    @property
    def idle(self) -> bool:
        """Returns True when it neither uses nor wants CPU time."""
        return self.state.cpu < IDLE and self.state.ready < MOSTLY

    def _wait(
        self, frames: Sequence[Sequence[Any]], inner: Sequence[Sequence[Any]]
    ) -> Tuple[str, float]:
        """Returns the call that it has been in, and for how long."""
        state = self.state
        if self.meeting is not None and state.wait:
            return self.meeting.call, state.wait[1]
        if self.seeks_consensus:
            return "shanty.xgboost", 0.0
        if state.call:
            return state.call, state.waits
        if state.wait and state.cpu < _BUSY and state.ready < MOSTLY:
            return state.wait
        if not frames or state.still is None or not state.read:
            return "", 0.0
        torch = [f[2] for f in inner if any(part in f[0] for part in _COLLECTIVE)]
        outer = next((f for f in reversed(torch) if f not in _WRAPPERS), "wait")
        if torch and outer not in _POLLS:
            return f"torch {outer}", state.still
        waits = state.cpu < _EXCHANGES and state.ready < MOSTLY
        if waits and any(part in frame[0] for frame in frames for part in _GRADIENTS):
            buffers = any(frame[2] == "_sync_buffers" for frame in frames)
            return f"torch's exchange of {'buffers' if buffers else 'gradients'}", state.still
        return "", 0.0

    @property
    def starved(self) -> bool:
        """Returns True when it is ready to run but gets no CPU time."""
        least = min(_FROZEN, _STARVED * self.fair) if self.call else _STARVED * self.fair
        return self.state.ready > MOSTLY and self.state.cpu < least

    def doing(self, ranks: Mapping[Tuple[str, int], int]) -> str:
        """Returns what it does when it is not in MPI; `ranks` are by (host, pid)."""
        at = f" in {self.place}" if self.place else ""
        if self.through:
            return "through with this cell of the notebook"
        if self.thread:
            return f"at the end of its script, waiting for a thread in {self.thread}"
        if self.state.lock:
            path, holder = self.state.lock
            rank = ranks.get((self.host, holder))
            who = f"process {holder}" if rank is None else f"rank {rank}"
            held = f", which {who} holds" if holder else ""
            return f"waiting{at} for the lock on {path or 'a file'}{held}"
        if self.state.child:
            pid, command = self.state.child
            own = f"its child process {pid} ({command}), which has started MPI by itself"
            return f"waiting{at} for {own} and hangs in MPI_Init"
        if any("/torch/utils/data/" in path for path in self.files):
            return f"waiting{at} for its DataLoader"
        if self.joins:
            return f"waiting{at} for a process that it has started"
        if self.state.state == "D":
            return f"waiting{at} for a disk or file system"
        if self.locked and not self.idle:
            return f"busy{at} with Python's lock (GIL) held, so in C code"
        return ("idle" if self.idle else "busy") + at


class Stall(NamedTuple):
    """The state of a run that cannot go on; `stragglers` are the first in `order`."""

    what: str
    fix: str
    stragglers: Tuple[int, ...]
    order: Tuple[int, ...]
    host: Optional[str]
    final: bool = False  # the stragglers are through with a cell: they will not come


def judge(
    ranks: Sequence[Standing],
    ended: Mapping[int, str],
    loads: Mapping[str, HostLoad],
    after: float,
    fault: Optional[LinkFault] = None,
    size: int = 0,
    forked: Optional[Mapping[int, str]] = None,
) -> Optional[Stall]:
    """Returns the stall of one world after `after` seconds; None while there is none.

    `ended` are the ranks that have ended, with their hosts; `loads` are the loads of the hosts;
    `fault` is what does not pass between the hosts, `size` that of the world. `forked` has
    the ranks that have forked a process after MPI_Init, with the line.
    """
    ranks = sorted(ranks, key=lambda r: r.rank)
    waiting = [r for r in ranks if r.call and r.waits >= after]
    for rank in ranks:
        through = rank.state.through
        if rank in waiting or rank.seeks_consensus:
            continue
        enters = bool(rank.call) and not rank.stopped  # which gives no answers, in MPI or not
        if enters or (through is not None and through < after):
            return None  # it has entered MPI only now, or enters and leaves it
    if not waiting:
        return None
    for host, load in loads.items():
        for pid, name in load.halted:
            others = [r.rank for r in waiting]
            waits = f"{named(others)} {'waits' if len(others) == 1 else 'wait'}"
            meanwhile = f"{waits} in {waiting[0].call}"
            found = halted_launcher(pid, name, host, meanwhile, after)
            return found._replace(order=tuple(others))
    callers = [r for r in waiting if r.call.startswith(_RPC)]
    serving = [r for r in ranks if r.serves]
    if callers and serving:
        return _remote(serving[0], callers, after)
    stragglers, calls = _sort_out(ranks, waiting)
    # Most ranks are in one call; those in another one are stragglers.
    by_size = sorted(calls.items(), key=lambda item: (-len(item[1]), item[1][0].rank))
    for (call, place), group in by_size[1:]:
        at = f" at {place}" if place and place != call else ""
        stragglers["other call", f"in {call}{at}"] = group
    awaited = waiting[0].meeting.size if waiting[0].meeting is not None else 0
    too_many = 0 < size < awaited  # whether some have ended or not
    joining = waiting[0].call.startswith("MPI_Init") or (len(ranks) < awaited and not too_many)
    if ended and joining and not stragglers:
        return None  # the run ends because of that
    if ended and not too_many:
        gone = [Standing(RankState(host, "", rank)) for rank, host in ended.items()]
        stragglers["ended", "gone: it has ended"] = gone
    if all(kind == "other call" for kind, _ in stragglers):
        if not stragglers and waiting[0].call.startswith("MPI_Init"):
            return None  # a slow start, which has a limit of its own
        apart = explain({r.rank: r.meeting for r in waiting if r.meeting is not None}, size)
        if apart is not None and all(r.meeting is not None for r in waiting):
            all_of_them = tuple(r.rank for r in waiting)
            what = f"no progress for {after:g} s: {apart[0]}"
            return Stall(what, apart[1], (), all_of_them, None)
    if not stragglers:
        if forked and fault is None and waiting[0].call.startswith("MPI_"):
            return _forked(forked, waiting, after)
        if fault is not None:
            waits = f"all ranks wait in {waiting[0].call}"
            return _cut_off(fault, waits, [r.rank for r in waiting], after)
        return _judge_links(waiting, loads, after)
    groups = sorted(
        stragglers.items(), key=lambda g: (_KINDS.index(g[0][0]), len(g[1]), g[1][0].rank)
    )
    (kind, _), worst = groups[0]
    said = [_said(group, text) for (_, text), group in groups[:2]]
    order = [r.rank for _, group in groups for r in group]
    for (call, place), group in by_size[:1]:
        others = sorted(r.rank for r in group)
        meeting = group[0].meeting
        awaits = meeting.awaits if meeting is not None else ""
        if place and any(other == call for (other, _), _ in by_size[1:]):
            awaits = f" at {place}"  # its name does not tell them apart
        said.append(f"{named(others)} {'waits' if len(others) == 1 else 'wait'} in {call}{awaits}")
        order += others
    first, fix = worst[0], _FIXES[kind]
    if first.joins and first.rank in (forked or ()):
        said[0], fix = f"{said[0]}, by a fork after MPI_Init", _FORKED
    elif first.thread:
        fix = _THREAD
    elif first.locked and kind == "elsewhere":
        fix = _IN_C
    elif first.through:
        fix = _CELL
    if fault is not None and kind not in _OF_THEMSELVES:
        return _cut_off(fault, ", ".join(said), order, after)
    host, rate = _traffic(loads)
    if kind == "other call" and rate > _TRICKLE:  # what separates them may be on its way
        return _held_up(host, rate, ", ".join(said), order, after)
    if kind in _NOT_THERE and any(r.meeting is not None and r.meeting.keys for r in waiting):
        fix = NOT_SET
    return Stall(
        f"no progress for {after:g} s: " + ", ".join(said),
        fix.format(pid=first.state.pid, host=first.host),
        tuple(r.rank for r in worst),
        tuple(order),
        first.host,
        len(groups) == 1 and all(rank.through for rank in worst),
    )


def _served(thread: Mapping[str, Any]) -> str:
    """Returns the place of a function that this thread runs for torch's RPC; "" without one."""
    frames = thread["frames"]
    if not any(path.endswith("/torch/distributed/rpc/internal.py") for path, _, _ in frames):
        return ""
    return _own_place(frames)


def _own_place(frames: Sequence[Sequence[Any]]) -> str:
    """Returns the innermost place in code of the user's own: "train (train.py:31)"; "" for none."""
    own = next((f for f in frames if not _FOREIGN.search(f[0])), None)
    return f"{own[2]} ({os.path.basename(own[0])}:{own[1]})" if own else ""


def _remote(serving: Standing, callers: Sequence[Standing], after: float) -> Stall:
    """Returns the stall of ranks that wait for a function which another rank runs for them."""
    who, order = [r.rank for r in callers], [serving.rank, *(r.rank for r in callers)]
    have = "has" if len(who) == 1 else "have"
    what = (
        f"no progress for {after:g} s: rank {serving.rank} on {serving.host} is in "
        f"{serving.serves}, which {named(who)} {have} called by {callers[0].call}"
    )
    return Stall(what, _NOT_RETURNED, (serving.rank,), tuple(order), serving.host)


def _traffic(loads: Mapping[str, HostLoad]) -> Tuple[str, float]:
    """Returns the host whose ranks exchange most with other hosts, and the bytes a second."""
    rates = {name: load.own / max(1.0, load.seconds) for name, load in loads.items()}
    return max(rates.items(), key=lambda item: item[1], default=("", 0.0))


def _held_up(
    host: str, rate: float, said: str, order: Sequence[int], after: float
) -> Optional[Stall]:
    """Returns the stall of ranks whose data moves, but slowly; None where it moves well."""
    if rate > _TRAFFIC:
        return None
    moves = f"data still moves, at only {rate / 1024:.0f} KiB/s ({host})"
    return Stall(f"no progress for {after:g} s: {said}; {moves}", _SLOW, (), tuple(order), host)


def _forked(forked: Mapping[int, str], waiting: Sequence[Standing], after: float) -> Stall:
    """Returns the stall of ranks of which one has a forked child that may have called MPI."""
    rank, place = min(forked.items())
    return Stall(
        f"no progress for {after:g} s: all ranks wait in {waiting[0].call}; rank {rank} has forked "
        f"a process after MPI_Init{f' ({place})' if place else ''}, and what such a process sends "
        "or receives by MPI is missing in its parent",
        _FORKED,
        (),
        tuple(r.rank for r in waiting),
        None,
    )


def halted_launcher(pid: int, name: str, host: str, meanwhile: str, after: float) -> Stall:
    """Returns the stall of a run because a process of its launcher is stopped."""
    return Stall(
        f"no progress for {after:g} s: the launcher's {name} (pid {pid}) on host {host} is "
        f"stopped, as by SIGSTOP; {meanwhile}",
        _FIXES["stopped"].format(pid=pid, host=host),
        (),
        (),
        host,
    )


def _cut_off(fault: LinkFault, said: str, order: Sequence[int], after: float) -> Stall:
    """Returns the stall of ranks whose hosts do not reach each other: none is a straggler."""
    what = f"no progress for {after:g} s: {fault.what}; {said}"
    return Stall(what, fault.fix, (), tuple(order), fault.host)


_Groups = Dict[Tuple[str, str], List[Standing]]


def _sort_out(ranks: Sequence[Standing], waiting: Sequence[Standing]) -> Tuple[_Groups, _Groups]:
    """Returns the stragglers by their kind and what they do, the others by call and place.

    A rank that waits in MPI and gets no CPU is a straggler only where nothing worse explains the
    stall: on a busy machine it yields its share by itself.
    """
    pids = {(rank.host, rank.state.pid): rank.rank for rank in ranks}
    stragglers: _Groups = {}
    calls: _Groups = {}
    frozen = []
    for rank in ranks:
        if rank.stopped:
            group = ("stopped", "stopped, as by SIGSTOP")
        elif rank.starved and not rank.call:
            group = ("starved", _without_cpu(rank))
        elif rank not in waiting and not rank.seeks_consensus:
            kind = "elsewhere" if rank.state.read else "unseen"  # it may be in MPI, too
            kind = "child" if rank.state.child else kind
            group = (kind, rank.doing(pids))
        elif rank.call == "MPI_Finalize":
            group = ("ended", "at its end, in MPI_Finalize")
        elif rank.starved:
            frozen.append(rank)
            continue
        else:
            place = "" if rank.meeting is not None else rank.place  # from wherever it is called
            calls.setdefault((rank.call, place), []).append(rank)
            continue
        stragglers.setdefault(group, []).append(rank)
    explained = any(_KINDS.index(kind) < _KINDS.index("frozen") for kind, _ in stragglers)
    for rank in frozen:
        if explained:
            calls.setdefault((rank.call, rank.place), []).append(rank)
        else:
            stragglers.setdefault(("frozen", _without_cpu(rank)), []).append(rank)
    return stragglers, calls


def _without_cpu(rank: Standing) -> str:
    return f"ready to run, but gets {rank.state.cpu * 100:.1f} % of a core"


def _said(group: Sequence[Standing], text: str) -> str:
    hosts = {rank.host for rank in group}
    on = f" on {group[0].host}" if len(hosts) == 1 else ""
    return f"{named([r.rank for r in group])}{on} {'is' if len(group) == 1 else 'are'} {text}"


def _fix_of(call: str, several: bool) -> str:
    """Returns what to do where all ranks wait in a call."""
    if _RECEIVES.match(call):
        return _NOT_SENT
    if _SENDS.match(call):
        return _NOT_RECEIVED
    if call.startswith("MPI_Wait"):
        return _REQUEST
    if _PORTS.match(call):
        return _ONE_RUN
    if several:
        return _BETWEEN_HOSTS
    return _UNLIKE if _COLLECTIVES.match(call) else _HERE


def _judge_links(
    waiting: Sequence[Standing],
    loads: Mapping[str, HostLoad],
    after: float,
) -> Optional[Stall]:
    """Returns the stall of ranks that all run and are in the same call: the network is stuck."""
    troubles = []  # how bad, the host, what it is
    busy, rate = _traffic(loads)
    several = len({rank.host for rank in waiting}) > 1
    for name, load in loads.items() if several else ():
        for link in load.links:
            if link.used and not link.carries:
                troubles.append((0, name, f"; link {link.name} of {name} is down"))
            elif link.errors:
                troubles.append((1, name, f"; link {link.name} of {name} has errors"))
        sent, again = load.tcp
        if again and again >= sent / 4:
            lost = f"; {again} of the {sent} packets that {name} sent were lost"
            troubles.append((2, name, lost))
    if rate > _TRAFFIC or (rate > _TRICKLE and not troubles):
        waits = f"all ranks wait in {waiting[0].call}"
        return _held_up(busy, rate, waits, [r.rank for r in waiting], after)
    _, host, why = min(troubles, default=(0, "", ""))
    meeting = waiting[0].meeting
    where = f"{meeting.awaits} at {meeting.address}" if meeting and meeting.address else ""
    return Stall(
        f"no progress for {after:g} s: all ranks wait in {waiting[0].call}{where}{why}",
        _fix_of(waiting[0].call, several),
        tuple(r.rank for r in waiting if r.host == host),
        tuple(r.rank for r in waiting),
        host or None,
    )
