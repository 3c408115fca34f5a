"""Decides how a run ends: who is to blame, what explains it, and the exit code."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace
from itertools import chain
from typing import Any, Dict, Mapping, Optional

from shanty.runtime import foreign_variables
from shanty.runtime.controller.queue_ending import ended_by_term
from shanty.runtime.diagnosis.mpi_abort import abort, with_error
from shanty.runtime.diagnosis.mpi_world import MpiWorld
from shanty.runtime.diagnosis.root_cause import TOP, Verdict, at_end, explained
from shanty.runtime.diagnosis.signals import signal_name
from shanty.runtime.errors import STOPPED_EXIT, LaunchError, WorldError
from shanty.runtime.frames import STDERR, STDOUT
from shanty.runtime.logfile import last_lines
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.plan import Plan
from shanty.runtime.rundir import RunDir, read_json
from shanty.runtime.spec import CUT_OFF, MEMORY, Failure, State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.diagnosis.link_check import LinkCheck
    from shanty.runtime.diagnosis.store_check import StoreCheck

_EXPLAINED = (WorldError.exit_code, 128 + signal.SIGTERM)  # perhaps by the launcher's last words
# ECONNABORTED, in the words of the C library and of UCX, whose MPI (MPICH) then crashes.
_ABORTED = re.compile(r"Software caused connection abort|UCX .* tcp_ep .* Input/output error$")
_LAST_LINES = 30
_LAUNCHER_LINES = 60  # a launcher explains at length


class Outcome:
    """How a run ends, as far as that is known. The first cause counts."""

    def __init__(self, run: RunDir, plan: Plan) -> None:
        self._run = run
        self._plan = plan
        self._code: Optional[int] = None
        self._called_off = False  # a user who stops the run does not want another attempt
        self._launcher_hung = self._survived = False
        self._error = ""  # why the launcher could not be started
        self.failure: Optional[Failure] = None  # the cause so far
        self.stopped = False  # before it failed
        self.worlds: Dict[str, Failure] = {}  # why each of those that have ended did so
        # Of the hosts that are ready for ranks: the settings of MPIs from before the run.
        self.settings: Dict[str, Mapping[str, str]] = {}
        self.launcher: Optional[int] = None  # its exit code, once it has ended

    # ------------------------------------------------------------------ what becomes known

    def launcher_ended(self, code: int, error: str) -> None:
        """Note that the launcher ended, or could not be started."""
        self.launcher, self._error = code, error

    def launcher_hung(self, world: str) -> None:
        """Note that the launcher of a world outlived its ranks and was ended."""
        self._launcher_hung = world == TOP

    def world_ended(
        self, name: str, world: MpiWorld, failure: Failure, links: Optional[LinkCheck]
    ) -> Failure:
        """Note the failure for which a world ends; return it with all details."""
        code = world.exit_code(failure)
        failure = self.worlds[name] = self._of_rank(failure, world, links)
        if self.failure is None:
            self.failure, self._code = failure, code
        return failure

    def condemn(self, verdict: Verdict) -> Optional[Failure]:
        """Note a verdict on the whole run; return its failure unless an earlier cause is known."""
        if self.failure is not None or self.stopped:
            return None
        self.failure, self._code = verdict.failure, verdict.code
        if verdict.quotes_launcher:
            self.failure = self._with_launcher_lines(self.failure)
        return self.failure

    def agents_lost(self, failure: Failure) -> None:
        """Note that the node agent of the lead host is gone, which ends the run."""
        self.failure = self.failure or failure
        self._code = self._code or LaunchError.exit_code

    def folder_removed(self, failure: Failure) -> None:
        """Note that the run's folder is gone, which explains other failures."""
        if self.failure is not None and not self.stopped:
            self.failure, self._code = failure, LaunchError.exit_code

    def stop(self) -> bool:
        """Note that the run is stopped; return False where it had failed or was stopped before."""
        self._called_off = True
        new = self.failure is None and not self.stopped
        self.stopped = self.stopped or new
        return new

    def no_other_attempt(self, why: str) -> None:
        """Note why another attempt, which might succeed, cannot be made."""
        assert self.failure is not None
        more = f"; another attempt is not possible: {why}"
        self.failure = replace(self.failure, why=self.failure.why + more)

    # ------------------------------------------------------------------ what follows from it

    @property
    def is_open(self) -> bool:
        """True while the run has neither an exit code nor been stopped."""
        return self._code is None and not self.stopped

    def needs_launchers_words(self, world: MpiWorld) -> bool:
        """Return True where the launcher may still print why the ranks failed.

        Open MPI has it print the errors of MPI that end a rank.
        """
        return self._code in _EXPLAINED or (
            self.failure is not None and world.failed_in_mpi(self.failure)
        )

    def may_be_damage(self) -> bool:
        """Return True where damage to shanty's files on the hosts would explain the end."""
        if self.stopped or (self.failure is None and self.launcher == 0):
            return False
        from shanty.runtime.diagnosis.store_check import explains

        return self.failure is None or explains(self.failure, self._code or 0)

    def may_try_again(self, *, folder_lost: bool) -> bool:
        """Return False where another attempt is already ruled out."""
        if not self._plan.may_try_again or self._called_off:
            return False
        unclear = self.failure is None and self.launcher != 0
        return unclear or self._may_go_well(folder_lost)

    def wants_another_attempt(self, *, folder_lost: bool) -> bool:
        """Return True where another attempt may succeed, now that the outcome is known."""
        return not self._called_off and self._may_go_well(folder_lost)

    def _may_go_well(self, folder_lost: bool) -> bool:
        """Return True when a host was lost, the launcher failed, or someone killed a rank.

        A script's bug would come again, and so would the lack of memory.
        """
        failure = self.failure
        if failure is None or folder_lost or failure.cause == CUT_OFF:
            return False
        if failure.rank is not None:
            return failure.signal == "SIGKILL" and failure.cause != MEMORY
        return self._code == LaunchError.exit_code

    def forgive(self) -> bool:
        """Drop a world's failure where the user's own command succeeded; return True if it did."""
        forgiven = self._plan.raw and self._launchers_end() == 0 and self._failed_with_world()
        if forgiven:
            self.failure = self._code = None
        return forgiven

    def conclude(
        self,
        worlds: Mapping[str, MpiWorld],
        links: Optional[LinkCheck],
        store: Optional[StoreCheck],
    ) -> None:
        """Decide why the run failed, if it did."""
        self._survived = any(w.losses and w.losses.failures for w in worlds.values())
        open_end = self._code is None or self._failed_with_world()
        if self.is_open:
            self._judge_end(worlds, links)
        verdict = abort(self._run, worlds, self.failure) if open_end else None
        if not self.stopped and verdict is not None:
            failure, self._code = self.with_lines(verdict.failure), verdict.code
            early = any(world.failed_in_init(failure) for world in worlds.values())
            self.failure = self._with_settings(failure) if early else failure
        if self.failure is not None and self.failure.rank is not None:
            found = self._with_aborted_connection(self.with_lines(self.failure))
            self.failure = self._with_last_words(found)
        if self.failure is not None and store is not None:
            self.failure = store.explained(self.failure)

    def status_changes(self, answer: Mapping[str, Any], times: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the changes of the status; `answer` is that of a queue which ended the run."""
        if answer and (self.stopped or ended_by_term(self.failure, self._code)):
            return {**answer, **(times if answer["state"].final else {})}
        if self.stopped:
            return {"state": State.STOPPED, "exit_code": STOPPED_EXIT, "failure": None, **times}
        state = State.SUCCEEDED if self.failure is None else State.FAILED
        return {"state": state, "exit_code": self._code or 0, "failure": self.failure, **times}

    def _failed_with_world(self) -> bool:
        return self.failure in self.worlds.values()

    def _launchers_end(self) -> Optional[int]:
        survived = self._survived and (self.launcher or 0) >= 0  # its exit code counts the lost
        return 0 if self._launcher_hung or survived else self.launcher

    def _judge_end(self, worlds: Mapping[str, MpiWorld], links: Optional[LinkCheck]) -> None:
        """Decide whether all is well where the launcher ended and no rank is to blame so far.

        A user's own line that ends with 0 may have handled a failure; a launcher of ours that
        ends with 0 has only missed it.
        """
        launcher = self._launchers_end()
        for world in worlds.values():
            settled = bool(launcher) or not self._plan.raw
            failure = world.verdict(time.monotonic() + 3600) if settled else world.mismatch
            if failure is None and launcher and world.early_leavers():
                failure = world.left_early(world.early_leavers()[0])
            if failure is not None:
                self.failure = self._of_rank(failure, world, links)
                self._code = world.exit_code(failure)
                return
        verdict = at_end(self._plan, worlds, launcher, self._error)
        if verdict is not None:
            self.failure = self._with_launcher_lines(verdict.failure)
            if launcher and not any(world.joined for world in worlds.values()):
                self.failure = self._with_settings(self.failure)
            self._code = verdict.code

    # ------------------------------------------------------------------ what explains a failure

    def _of_rank(self, failure: Failure, world: MpiWorld, links: Optional[LinkCheck]) -> Failure:
        """Add what else is known of the rank to blame, or of the launcher."""
        if failure == world.launcher_lost() and (self.launcher or 0) < 0:  # its daemons follow it
            host, number = self._plan.lead.name, -(self.launcher or 0)
            what = f"the launcher on host {host} was ended by {signal_name(number)}"
            return replace(failure, what=what, why="", host=host)
        found = self.with_lines(failure if links is None else links.explain(failure))
        found = self._with_aborted_connection(found)
        return self._with_settings(found) if world.failed_in_init(failure) else found

    def _with_aborted_connection(self, failure: Failure) -> Failure:
        """Add that a rank's own host ended a connection, which no rank does by itself."""
        if not self._plan.workers or (failure.why and not failure.signal):
            return failure
        for rank, log in self._run.rank_logs().items():
            said = [last_lines(str(log), _LAST_LINES, streams=[each]) for each in (STDERR, STDOUT)]
            for line in chain(*said):  # UCX writes to stdout
                if _ABORTED.search(line):
                    why = f"a connection of rank {rank} was ended from outside: {line.strip()}"
                    fix = "find out what ends connections between the hosts (ss -K, a firewall)"
                    return replace(failure, why=why, fix=fix)
        return failure

    def with_lines(self, failure: Failure) -> Failure:
        """Add the last lines of the rank to blame, if there is one."""
        if failure.rank is None:
            return failure
        log = self._run.rank_log(failure.rank)
        lines = tuple(last_lines(str(log), _LAST_LINES))
        return with_error(replace(failure, lines=lines, log=str(log)))

    def _with_last_words(self, failure: Failure) -> Failure:
        """Add the cause that the last lines of the rank, or of the launcher, name."""
        from shanty.runtime.diagnosis import last_words

        launcher = last_lines(str(self._run.launcher_log), _LAUNCHER_LINES)
        asked = (read_json(self._run.job) or {}).get("env", {})
        there = self.settings.get(failure.host or "", {})
        where = f"on {failure.host} before the run, as by a login file"
        if not self._plan.scripted:
            where = "where the run was started"
        return last_words.explained(failure, launcher, asked, there, where)

    def _with_settings(self, failure: Failure) -> Failure:
        """Name the settings of MPIs that the user has made."""
        from shanty.runtime.diagnosis.user_settings import with_settings

        asked = (read_json(self._run.job) or {}).get("env", {})
        there = self.settings.get(failure.host or "", {}) if self._plan.scripted else {}
        return with_settings(failure, self._plan, asked, os.environ, there)

    def _with_launcher_lines(self, failure: Failure) -> Failure:
        if self._plan.workers:  # on this machine, the user has set them himself
            why = filter(None, [failure.why, foreign_variables.told(self.settings)])
            failure = replace(failure, why="; ".join(why))
        log = self._run.launcher_log
        if not log.exists():
            return failure
        lines = last_lines(str(log), _LAUNCHER_LINES)
        no_slots = FLAVOURS[self._plan.lead.mpi["flavour"]].no_slots
        found = explained(failure, lines, no_slots)
        return replace(found, lines=tuple(lines[-_LAST_LINES:]), log=str(log))
