"""Decides about one MPI world by the reports of its ranks. Pure: it gets reports and the time."""

from __future__ import annotations

import re
import signal
from typing import Dict, Iterable, List, Optional, Sequence, Set, Tuple

from shanty.runtime.diagnosis.losses import Losses
from shanty.runtime.diagnosis.not_finite import NotFinite
from shanty.runtime.diagnosis.rank_names import named
from shanty.runtime.diagnosis.rank_record import Rank
from shanty.runtime.diagnosis.rendezvous import Meeting, explain, meeting_of
from shanty.runtime.diagnosis.signals import MEANINGS, signal_name
from shanty.runtime.errors import LaunchError, WorldError
from shanty.runtime.messages import Report
from shanty.runtime.mpi.flavours import FLAVOURS, identify_library, starts
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.rank.reports import TRUNCATED, UNSPAWNED, UNWRITABLE
from shanty.runtime.spec import HOST, MEMORY, Failure

SETTLE = 0.15  # seconds in which a failure that came first may still be reported second
FLUSH = 2.0  # seconds that a host may take to pass on what its ranks had said by then
LEFT_EARLY = 10.0  # seconds that the others may go on after a rank left without MPI_Finalize
_PROBING = ("lightning", "lightning_fabric", "pytorch_lightning")  # they ask MPI for its size only
_SHOWN = 3  # ranks, and logged numbers, that are named
LOST = 1.0  # seconds that a launcher may outlive, or precede, its daemons by when all end
UNREACHED = 3.0  # seconds that the others may wait in MPI_Init for a rank that has ended
UNJOINED = 5.0  # seconds that a rank with another MPI's library may take to join all the same


class MpiWorld:
    """The ranks that one launcher started."""

    def __init__(self, expected: Optional[int], launcher: Installation, spares: int = 0) -> None:
        self.expected = expected  # processes: ranks and spares
        self.spares = set(range((expected or 0) - spares, expected or 0))  # that wait for a place
        self.launcher = launcher
        self.ranks: Dict[int, Rank] = {}
        self.mismatch: Optional[Failure] = None
        self.losses: Optional[Losses] = None  # of an elastic run, once all ranks have joined
        self.began: Optional[float] = None  # when its first rank spoke
        self._over_since: Optional[float] = None  # when its last rank ended
        self.trainings: List[Report] = []  # of the ranks' first steps
        self.training_since = 0.0
        self.not_finite = NotFinite()
        self._awaited: Set[str] = set()  # hosts whose ranks may have failed before the first known
        self._lost: Optional[Tuple[float, str, str]] = None  # when, on which host, what
        self.launcher_over = False  # it has ended: before its daemons, or because of them
        self._first_failure: Optional[float] = None
        self._known_since = 0.0  # when that was reported

    def report(self, report: Report, now: float) -> bool:
        """Take one report of a rank; True for the first report of a failure."""
        well = self._first_failure is None
        number, event = report.rank, report.event
        self.began = self.began or now
        if event in _LIBRARY and self.expected is not None and number >= self.expected:
            return False  # its number is that of a world that MPI_Comm_spawn made
        rank = self.ranks.setdefault(number, Rank(number))
        rank.host = report.text("host") or rank.host
        if event in ("started", "joined"):
            rank.started = rank.started or now
            if self.expected is None:
                self.expected = report.whole("size")
        if event == "started":
            if self.is_gone(number):  # another takes its place
                rank = self.ranks[number] = Rank(number, rank.host, now)
            self._check_size(rank, report)
        elif event == "joined":
            self._joined(rank, report, now)
            if self.losses is not None:
                self.losses.gone.discard(number)
        elif event in _LIBRARY:
            # A Python rank reports when it joins: a mapped libmpi proves nothing.
            rank.loaded_only = rank.loaded_only or event != "mapped"
            rank.linked = event == "linked"
            rank.library, rank.seen = report.text("path"), rank.seen or now
            rank.library_flavour = report.text("flavour")
        elif event == "alone" and not self.mismatch:
            self.mismatch = self._alone(rank, report)
        elif event == "plain":
            rank.plain = True
        elif event == "training":
            self.training_since = self.training_since or now
            self.trainings.append(report)
        elif event == "meeting":
            rank.meeting, rank.missed = meeting_of(report, now), None
        elif event == "met":
            rank.missed = rank.meeting if report.flag("failed") else None
            rank.meeting = None
        elif event == "not-finite":
            self.not_finite.add(report)
        elif event == "crashed":
            rank.why = rank.why or report.text("where")
        elif event == "spawning":
            rank.spawning = True
        elif event == "forked":
            rank.forked = report.text("place")
        elif event == "finished":
            rank.finished = report.number("at", now)
        elif event in ("leaving", "finalized"):
            rank.leaves, rank.finalized = True, event == "finalized"
        elif event == "failed":
            rank.code, rank.why = report.whole("code"), report.text("why")
            rank.fix, rank.place = report.text("fix"), report.text("place")
            self._fault(rank, report.number("at", now))
        elif event == "exited":
            rank.ended = report.number("at", now)
            rank.missed, rank.meeting = rank.missed or rank.meeting, None
            # It has made no use of MPI if it ended well without it.
            rank.plain = rank.plain or (report.whole("code") == 0 and not rank.library)
            self._over_since = now if self._all_ended() else None
            rank.oom = report.whole("oom") or 0
            if not rank.at_fault:
                rank.code, rank.why = report.whole("code"), report.text("why", rank.why)
                rank.fix = report.text("fix", rank.fix)
                if rank.code != 0:
                    self._fault(rank, report.number("at", now))
            if self.losses is not None and not self.is_gone(number):
                self._lose(rank)
        if self._lost is None and report.text("launcher"):
            self._lost = now, rank.host, report.text("launcher")
        if not well or self._first_failure is None:
            return False
        self._known_since = now
        return True

    def tolerate(self, least: int) -> Losses:
        """Go on while `least` ranks are left, now that all have joined."""
        size = (self.expected or 0) - len(self.spares)
        self.losses, self._first_failure = Losses(least, size, self.spares), None
        for rank in self.ranks.values():
            if rank.ended is not None:
                self._lose(rank)
        return self.losses

    def is_gone(self, rank: int) -> bool:
        """Return whether an elastic run has lost this rank, and it has not come back."""
        return self.losses is not None and rank in self.losses.gone

    def _lose(self, rank: Rank) -> None:
        if self.losses is not None and (rank.code != 0 or self._left(rank)):
            cause = self._blame(rank) if rank.code else self.left_early(rank)
            self.losses.add(rank.rank, cause, rank.code)

    def _fault(self, rank: Rank, now: float) -> None:
        rank.failed = now
        if self._first_failure is None and self.losses is None:
            self._first_failure = now

    def _check_size(self, rank: Rank, report: Report) -> None:
        size = report.whole("size")
        if self.expected is not None and size != self.expected and not self.mismatch:
            self.mismatch = Failure(
                f"rank {rank.rank} was started in a world of {size}, not of {self.expected}",
                f"the launcher is {_named(self.launcher)}",
                "leave the number of ranks to shanty (-n), or to the launcher alone",
                rank.rank,
                rank.host,
            )

    def _joined(self, rank: Rank, report: Report, now: float) -> None:
        rank.joined, rank.probed = now, report.text("user") in _PROBING
        flavour, version = identify_library(report.text("library")) or ("", "")
        rank.library, rank.library_flavour = report.text("path"), flavour
        size, number = report.whole("mpi_size"), report.whole("mpi_rank")
        wanted = self.expected if self.expected is not None else size
        misfit = (size, number) != (wanted, rank.rank) and not self.is_gone(rank.rank)
        if misfit and not self.mismatch:
            alone = "a world of its own" if size == 1 else f"a world of {size}"
            title = FLAVOURS[flavour].title if flavour in FLAVOURS else report.text("library")
            self.mismatch = self._mixed(
                f"rank {rank.rank} of {wanted} joined {alone} as rank {number}",
                rank,
                f"{title} {version}".strip(),
            )

    def _alone(self, rank: Rank, report: Report) -> Failure:
        return Failure(
            f"rank {rank.rank} of {self.expected} would have been alone",
            f"{report.text('why')}, and the launcher is {_named(self.launcher)}",
            report.text("fix"),
            rank.rank,
            rank.host,
        )

    def _mixed(self, what: str, rank: Rank, library: str) -> Failure:
        return Failure(
            what,
            f"the launcher is {_named(self.launcher)}, "
            f"but the program loaded {library or 'another MPI'} ({rank.library or 'unknown path'})",
            "use one MPI for both: `shanty run --mpi FLAVOUR` chooses the launcher and, for "
            "mpi4py, the library; a compiled program must be built with that MPI's mpicc, and "
            "MPI4PY_LIBMPI must not name another one",
            rank.rank,
            rank.host,
        )

    def await_flush(self, hosts: Iterable[str]) -> None:
        """Delay the verdict until these hosts have passed on all earlier reports of their ranks."""
        self._awaited = set(hosts)

    def flushed(self, host: str) -> None:
        """Note that a host has passed on all earlier reports of its ranks."""
        self._awaited.discard(host)

    @property
    def is_over(self) -> bool:
        """True when its last rank has ended."""
        return self._over_since is not None

    def is_outlived(self, now: float, seconds: float) -> bool:
        """Return True when its last rank ended more than `seconds` ago; only once."""
        if self._over_since is None or now <= self._over_since + seconds:
            return False
        self._over_since = None
        return True

    @property
    def started(self) -> int:
        """The number of ranks that have started."""
        return sum(1 for rank in self.ranks.values() if rank.started)

    @property
    def up(self) -> int:
        """The number of ranks, without spares, that have started, and were not lost since."""
        gone = self.spares | self.losses.out if self.losses is not None else self.spares
        return sum(bool(rank.started) for rank in self.ranks.values() if rank.rank not in gone)

    @property
    def running(self) -> List[int]:
        """The ranks that have started and have not ended."""
        return sorted(r.rank for r in self.ranks.values() if r.started and r.ended is None)

    @property
    def deserted(self) -> bool:
        """True when every rank that has started has ended."""
        return bool(self.ranks) and not self.running

    @property
    def joined(self) -> int:
        """The number of ranks that MPI, or the library they have mapped, shows in the world."""
        return sum(self._is_joined(r) and r.rank not in self.spares for r in self.ranks.values())

    @property
    def united(self) -> bool:
        """True when a rank has joined the world to do something there."""
        return any(self._is_joined(rank) and not rank.probed for rank in self.ranks.values())

    def _is_joined(self, rank: Rank) -> bool:
        return rank.joined is not None or (self._fits(rank) and not rank.loaded_only)

    def _fits(self, rank: Rank) -> bool:
        """True when this launcher starts programs of the mapped library."""
        return bool(rank.library) and starts(self.launcher.flavour, rank.library_flavour)

    @property
    def complete(self) -> bool:
        """True when every rank is up, and joined or no MPI program."""
        return (
            self.expected is not None
            and self.started == self.expected
            and not self._all_ended()
            and all(self._is_joined(rank) or rank.plain for rank in self.ranks.values())
        )

    def verdict(self, now: float) -> Optional[Failure]:
        """The first cause for which this world has to end; None while it is well."""
        if self._first_failure is not None:
            if now < self._settled_by() and not self._all_ended():
                return None
            culprit = self._culprit()
            own = re.search(_OF_ARGUMENTS, culprit.why)  # with which MPICH ends its daemon, too
            if self._lost and self._lost[0] < (culprit.failed or 0) + LOST and not own:
                return self.launcher_lost()
            leavers = [r for r in self.early_leavers() if (r.ended or now) <= (culprit.failed or 0)]
            if culprit.code in LAUNCHERS_DOING and leavers:
                return self.left_early(leavers[0])
            away = [rank for rank in self.ranks.values() if rank.ended and _without_mpi(rank)]
            in_init = culprit.loaded_only and not culprit.joined
            if culprit.code in LAUNCHERS_DOING and culprit.linked and self.silent_leavers():
                return self.left_early(self.silent_leavers()[0])
            if culprit.code in LAUNCHERS_DOING and in_init and away:  # Open MPI may notice it, too
                return self._stayed_out(away, [culprit.rank], "MPI_Init")
            return self._left_behind(culprit) or self._blame(culprit)
        if self.mismatch:
            return self.mismatch
        if self._lost is not None and now > self._lost_by(self._lost[0]) and self.running:
            return self.launcher_lost()
        if self.losses is not None:
            failure = self.losses.verdict(self.expected or 0)
            return failure and (self.launcher_lost() or failure)
        for rank in self.ranks.values():
            if self._stranger(rank) and now > rank.seen + UNJOINED and rank.ended is None:
                return self._mixed(
                    f"rank {rank.rank} did not join the world of {self.expected}",
                    rank,
                    _title(rank.library_flavour),
                )
            early = rank.ended is not None and rank.code == 0 and self._left(rank)
            if early and now > (rank.ended or now) + LEFT_EARLY and not self._all_ended():
                return self.left_early(rank)
        return self._unreached(now)

    def _lost_by(self, when: float) -> float:  # from then on it is known which of them ended first
        return when + (SETTLE if self.launcher_over else LOST)

    def launcher_lost(self) -> Optional[Failure]:
        """The failure where a process of the launcher was gone while its ranks were on."""
        if self._lost is None:
            return None
        _, host, process = self._lost
        return Failure(
            f"the launcher's {process} on host {host} is gone, and has left its ranks behind",
            "it was killed, or it crashed; without it ranks can neither begin nor end their "
            "communication",
            "find out from the host's log who ended it (out of memory?); run again",
            host=host,
        )

    @property
    def meetings(self) -> Dict[int, Meeting]:
        """The ranks that wait for each other in a framework's rendezvous."""
        return {r.rank: r.meeting for r in self.ranks.values() if r.meeting is not None}

    def _unreached(self, now: float) -> Optional[Failure]:
        """The failure of a rank that has ended well, while others wait for it to join them."""
        gone = [r for r in self.ranks.values() if r.ended is not None and r.code == 0]
        gone = [r for r in gone if now >= (r.ended or now) + UNREACHED]
        without_mpi = [rank for rank in gone if _without_mpi(rank)]
        alive, since = len(self.running), now - UNREACHED
        in_init = [each for each in self.waiting_in_init() if self.ranks[each].seen <= since]
        if without_mpi and in_init:
            return self._stayed_out(without_mpi, in_init, "MPI_Init")
        # More than the run has: these do not wait for a rank that has ended.
        most = self.expected or alive
        waiting = ((k, m) for k, m in self.meetings.items() if m.since <= since)
        short = {k: m for k, m in waiting if alive < m.size <= most}
        if gone and short:
            return self._stayed_out(gone, sorted(short), next(iter(short.values())).what)
        return None

    def _stayed_out(self, gone: List[Rank], waiting: List[int], call: str) -> Failure:
        first, each = gone[0], "it"
        who = f"rank {first.rank} on {first.host}"
        if len(gone) > 1:
            who, each = named(sorted(rank.rank for rank in gone)), "they"
        others = f"{named(waiting)} {'waits' if len(waiting) == 1 else 'wait'}"
        return Failure(
            f"{who} ended with exit code 0 before {each} reached {call}",
            f"{others} in {call} for {each.replace('they', 'them')}",
            "let every rank run the whole script; a rank without work must join all the "
            "same. Only rank 0 has the standard input of the run: write a script that comes from "
            "there to a file",
            first.rank,
            first.host,
        )

    def _settled_by(self) -> float:
        """The time from which it counts as known which rank failed first."""
        if self._awaited:
            return self._known_since + FLUSH
        return (self._first_failure or 0.0) + SETTLE

    def waiting_in_init(self) -> List[int]:
        """The ranks that have loaded their MPI and have not come through MPI_Init."""
        ranks = self.ranks.values()
        return [r.rank for r in ranks if r.loaded_only and r.joined is None and r.ended is None]

    def deadline(self) -> Optional[float]:
        """The time at which `verdict` may change without a report; None when it cannot."""
        times: List[float] = []
        if self._first_failure is not None:
            times.append(self._settled_by())
        elif self._lost is not None and self.running:
            times.append(self._lost_by(self._lost[0]) + 0.01)
        for rank in self.ranks.values():
            if self._stranger(rank) and rank.ended is None:
                times.append(rank.seen + UNJOINED + 0.01)
            if rank.ended is not None and self._left(rank):
                times.append(rank.ended + LEFT_EARLY + 0.01)
        return min(times) if times else None

    def _stranger(self, rank: Rank) -> bool:
        return bool(rank.library) and rank.joined is None and not self._fits(rank)

    def _left(self, rank: Rank) -> bool:
        """True when the rank was in MPI as mpi4py saw it, and never finalised."""
        return rank.joined is not None and not rank.finalized

    def _all_ended(self) -> bool:
        return all(rank.ended is not None for rank in self.ranks.values()) and self.started == (
            self.expected or 0
        )

    def failed_in_init(self, failure: Failure) -> bool:
        """True where the rank to blame has loaded its MPI and not joined the world."""
        rank = self.ranks.get(failure.rank if failure.rank is not None else -1)
        return rank is not None and bool(rank.library) and rank.joined is None and not rank.oom

    def failed_in_mpi(self, failure: Failure) -> bool:
        """True where MPI may have ended the rank to blame: it gives no reason of its own."""
        rank = self.ranks.get(failure.rank if failure.rank is not None else -1)
        return rank is not None and bool(rank.library) and not failure.why and (rank.code or 0) > 0

    def early_leavers(self) -> Sequence[Rank]:
        """The ranks that ended with 0 without MPI_Finalize."""
        return [r for r in self.ranks.values() if r.ended and r.code == 0 and self._left(r)]

    def silent_leavers(self) -> Sequence[Rank]:
        """The ranks that ended with 0 and never reported MPI, as compiled programs do not."""
        return [r for r in self.ranks.values() if r.code == 0 and r.joined is None]

    def left_early(self, rank: Rank) -> Failure:
        """Return the failure of a rank that ended without MPI_Finalize."""
        return Failure(
            f"rank {rank.rank} on {rank.host} ended with exit code 0 without MPI_Finalize",
            "the other ranks wait for it indefinitely",
            "let every rank reach the end of the script; os._exit(), os.execv() and MPI_Abort with "
            "code 0 skip MPI_Finalize",
            rank.rank,
            rank.host,
        )

    def _left_behind(self, culprit: Rank) -> Optional[Failure]:
        """The failure of a rank that ended well, where another one failed because of that.

        At the end of its Python the first of them may crash, since it still has connections.
        """
        if culprit.finished is not None:
            failed = [rank for rank in self.ranks.values() if rank.at_fault]
            culprit = next((rank for rank in failed if _lost_another(rank)), culprit)
        if not _lost_another(culprit):
            return None
        left = [
            rank
            for rank in self.ranks.values()
            if rank is not culprit and rank.finished is not None
            and rank.finished < (culprit.failed or 0)
        ]  # fmt: skip
        if not left:
            return None
        first = min(left, key=lambda rank: rank.finished or 0.0)
        at = f" at {culprit.place}" if culprit.place else ""
        return Failure(
            f"rank {first.rank} on {first.host} came to the end of its script while rank "
            f"{culprit.rank} still communicated with it",
            f"rank {culprit.rank}{at}: {culprit.why}",
            "let all ranks make the same number of steps: compare the lengths of their loops and "
            "of their data",
            first.rank,
            first.host,
        )

    def _culprit(self) -> Rank:
        """Return the rank that failed first; a launcher's SIGTERM is a consequence, not the cause.

        The kernel closes the connections of a rank that ran out of memory before its end is seen:
        other ranks may end because of that, without a reason of their own, a moment earlier.
        """
        failed = [rank for rank in self.ranks.values() if rank.at_fault]
        if any(rank.oom for rank in failed):
            failed = [rank for rank in failed if rank.oom or rank.why]
        return min(failed, key=lambda r: (r.code in LAUNCHERS_DOING, r.failed))

    def _blame(self, rank: Rank) -> Failure:
        code = rank.code or 0
        where = f"rank {rank.rank} on {rank.host}"
        if self._stranger(rank):
            return self._mixed(
                f"{where} ended before it joined the world of {self.expected}",
                rank,
                _title(rank.library_flavour),
            )
        if code < 0:
            name = signal_name(-code)
            meaning = MEANINGS.get(name, "")
            what = f"{where} was ended by {name}" + (f" ({meaning})" if meaning else "")
            why, fix = rank.why, ""
            if rank.finished is not None:
                why = why or "after the end of its script"
            elif name in _DAMAGE and re.search(_COMMUNICATES, why):
                fix = TRUNCATED
            mpi = FLAVOURS.get(self.launcher.flavour)
            if mpi is not None and name == mpi.spawn_signal and re.search(_SPAWNS, why):
                fix = f"to start processes and to open ports, {mpi.title} needs {mpi.to_spawn}"
            if rank.spawning:
                why, fix = why or "it started processes by MPI_Comm_spawn", self._spawning()
            if rank.oom:
                what = f"{where} was ended by the kernel: out of memory (SIGKILL)"
                why = f"this host ran out of its {rank.oom / 2**30:.3g} GiB of memory"
                fix = "use less memory a rank, fewer ranks a host, or a host with more memory"
                fix += " (pods get what --memory-per-rank says)"
            cause = MEMORY if rank.oom else ""
            return Failure(what, why, fix, rank.rank, rank.host, name, cause=cause)
        if rank.why.startswith(UNWRITABLE):
            fix = "free some space, or point SHANTY_HOME at another disk"
            return Failure(f"{where} was ended: {rank.why}", "", fix, rank.rank, rank.host)
        if rank.why.startswith("cannot run "):
            return Failure(f"{where}: {rank.why}", "", rank.fix, rank.rank, rank.host)
        fix = self._spawning() if rank.why.startswith(UNSPAWNED) else rank.fix
        why = rank.why
        missed = self._missed(rank)
        if missed is not None:
            why, fix = f"{missed[0]}; {why}" if why else missed[0], missed[1]
        return Failure(f"{where} ended with exit code {code}", why, fix, rank.rank, rank.host)

    def _missed(self, rank: Rank) -> Optional[Tuple[str, str]]:
        """Return why a rank that failed in a rendezvous did not meet the others, and a fix."""
        missed = rank.missed
        if missed is None or not missed.explains(rank.why):
            return None
        found = {r.rank: r.meeting or r.missed for r in self.ranks.values()}
        size, known = self.expected or 0, {k: m for k, m in found.items() if m is not None}
        return explain(known, size) or explain({rank.rank: missed}, size)

    def _spawning(self) -> str:
        """The advice for a rank that cannot start processes by MPI."""
        needs = FLAVOURS[self.launcher.flavour].to_spawn
        return _SPAWN_LESS + (f", or let it start some by {needs}" if needs else "")

    def exit_code(self, failure: Failure) -> int:
        """The exit code that goes with a verdict: the rank's own, as a shell would show it."""
        rank = self.ranks.get(failure.rank if failure.rank is not None else -1)
        code = rank.code if rank is not None and not self._stranger(rank) else None
        if not code and self.losses is not None:
            code = self.losses.code_of(failure)
        if failure.rank is None and (self._lost is not None or failure.cause == HOST):
            return LaunchError.exit_code
        if failure is self.mismatch or not code:
            return WorldError.exit_code
        return code if code >= 0 else 128 - code


# What Gloo, NCCL and stores report of a connection that the other rank has closed.
_GONE = (
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed"),
    *("remote process exited", "failed to recv, got 0 bytes"),
)


def _without_mpi(rank: Rank) -> bool:
    return rank.code == 0 and rank.joined is None and not rank.library


def _lost_another(rank: Rank) -> bool:
    return any(word in rank.why for word in _GONE)


_OF_ARGUMENTS = "MPI_ERR_TRUNCATE|[Mm]essage truncated"
_LIBRARY = ("mapped", "loading", "linked")  # events about the libmpi of a process
_SPAWN_LESS = (
    "start all processes with the run (-n); workers of mpi4py.futures: "
    "`shanty run -n 4 -m mpi4py.futures script.py`"
)
LAUNCHERS_DOING = (-signal.SIGTERM, 128 + signal.SIGTERM)  # what follows, never the cause
_DAMAGE = ("SIGABRT", "SIGBUS", "SIGSEGV")  # as of memory behind a buffer
_SPAWNS = r"\b(Open_port|Spawn|Spawn_multiple|Accept|Connect|Join|Publish_name|Lookup_name)\("
_COMMUNICATES = r"\.I?([aA]ll|[bB]cast|[gG]ather|[rR]educe|[rR]ecv|[sS]catter|[sS]end)\w*\("


def _title(flavour: str) -> str:
    return FLAVOURS[flavour].title if flavour in FLAVOURS else "another MPI"


def _named(installation: Installation) -> str:
    return f"{_title(installation.flavour)} {installation.version} ({installation.launcher})"
