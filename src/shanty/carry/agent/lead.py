"""The lead: owns a run's status from its start to its end, detached from any terminal.

It starts the warden, judges what the ranks report, keeps the limits, answers requests in the
run directory and writes every change down. `start` forks it and the warden.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional

from shanty.carry import platform
from shanty.carry.agent.channel import Channel
from shanty.carry.agent.stacks import collect
from shanty.carry.agent.sweep import end_all, sweep_after
from shanty.carry.agent.warden import BEAT, SILENCE
from shanty.carry.agent.world import World
from shanty.carry.errors import STOPPED_EXIT, TIME_LIMIT_EXIT, LaunchError, WorldError
from shanty.carry.logfile import last_lines
from shanty.carry.mpi.installation import Installation
from shanty.carry.rundir import RunDir, append_line, read_json, write_json
from shanty.carry.spec import Failure, State, Status

TOP = "0"  # the world of the launcher that the plan names; a nested one is known by its pid
FAILURE_GRACE = 1.0  # seconds between SIGTERM and SIGKILL for the ranks that a failure ends
_TICK = 0.5
_LAST_LINES = 30


class Lead:
    """One run, from the side that decides."""

    def __init__(self, run: RunDir, plan: Mapping[str, Any]) -> None:
        self.run_dir = run
        self.plan = plan
        self.launcher = Installation(**plan["installation"])
        status = read_json(run.status)
        self.status = Status.from_json(status) if status else Status(created=time.time())
        self.worlds: Dict[str, World] = {}
        self.ended_worlds: Dict[str, Failure] = {}
        self.failure: Optional[Failure] = None
        self.code: Optional[int] = None
        self.launcher_code: Optional[int] = None
        self.error = ""
        self.stopped: Optional[str] = None
        self.gone = False
        self.ending = False
        self.began = time.monotonic()
        self.next_beat = 0.0
        self.heard = self.began

    def run(self, lead: Channel, warden: int) -> None:
        """Live until the warden has gone, then write the last word."""
        self.warden = lead
        wake, woken = os.pipe()
        for end in (wake, woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop("stopped", 5.0))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._write(state=State.STARTING, started=time.time())
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(lead.source, select.POLLIN)
        while not self.gone and lead.open:
            for fd, _ in poll.poll(self._patience() * 1000):
                if fd == wake:
                    os.read(wake, 512)
                else:
                    for message in lead.receive():
                        self._hear(message)
            self._answer_asks()
            self._judge(time.monotonic())
            self._beat(time.monotonic())
            if time.monotonic() > self.heard + SILENCE:
                self._event("warden-silent", seconds=SILENCE)
                os.kill(warden, signal.SIGKILL)  # frozen: what it holds becomes ours
                break
        for message in lead.receive():  # it may have left while we were writing to it
            self._hear(message)
        if not self.gone:
            self._without_warden(warden)
        self._finish()

    def _beat(self, now: float) -> None:
        """A word to the warden now and then: while it hears none it counts the seconds."""
        if now >= self.next_beat:
            self.next_beat = now + BEAT
            self.warden.send(alive=True)

    def _patience(self) -> float:
        """Seconds until something is due."""
        due = [world.deadline() for world in self.worlds.values()]
        soon = min((when for when in due if when is not None), default=None)
        return _TICK if soon is None else min(_TICK, max(0.005, soon - time.monotonic()))

    def _hear(self, message: Mapping[str, Any]) -> None:
        self.heard = time.monotonic()
        if "report" in message:
            self._report(message["report"])
        elif "launcher" in message:
            self.launcher_code = message["launcher"]
            self.error = message.get("error", "")
        elif "gone" in message:
            self.gone = True
            self._event("swept", removed=message["gone"])

    def _report(self, report: Mapping[str, Any]) -> None:
        name = str(report.get("world", TOP))
        if name not in self.worlds:
            expected = self.plan["ranks"] if name == TOP else None
            self.worlds[name] = World(expected, self.launcher)
        world = self.worlds[name]
        world.report(report, time.monotonic())
        self._event("rank-" + str(report.get("event")), report=report)
        changed: Dict[str, Any] = {"ranks": world.expected, "up": world.up, "joined": world.joined}
        if world.complete and self.status.state is State.STARTING:
            changed["state"] = State.RUNNING
        if any(getattr(self.status, key) != value for key, value in changed.items()):
            self._write(**changed)

    def _judge(self, now: float) -> None:
        """End what has to end: a world with a verdict, or the run at one of its limits."""
        for name, world in self.worlds.items():
            verdict = world.verdict(now) if name not in self.ended_worlds else None
            if verdict is not None:
                code = world.exit_code(verdict)
                verdict = self._with_lines(verdict)
                self.ended_worlds[name] = verdict
                if self.failure is None:
                    self.failure, self.code = verdict, code
                self._event("failure", failure=verdict.__dict__)
                self.ending = self.ending or name == TOP
                self.warden.send(end=None if name == TOP else name, grace=FAILURE_GRACE)
        limit = self.plan["time_limit"]
        if limit is not None and now > self.began + limit and not self.ending:
            self.failure = Failure(
                f"the time limit of {limit:g} s was reached",
                fix="give it more time with --time-limit; if it was stuck, `shanty stacks` shows "
                "where while it is on",
            )
            self.code = TIME_LIMIT_EXIT
            self._end(self.plan["grace"])
        self._check_start(now)

    def _check_start(self, now: float) -> None:
        patience, expected = self.plan["start_timeout"], self.plan["ranks"]
        if expected is None or self.ending or now < self.began + patience:
            return
        up = self.worlds[TOP].ranks if TOP in self.worlds else {}
        missing = [rank for rank in range(expected) if rank not in up]
        waiting = [n for world in self.worlds.values() for n in world.waiting_in_init()]
        if waiting and not missing and self._since_loading(now) > patience:
            self.failure = Failure(
                f"{_ranks(waiting)} of {expected} did not come through MPI_Init "
                f"within {patience:g} s",
                "they have loaded their MPI, but found no world to join",
                "see their last lines with `shanty logs`; a slow network or file system may need "
                "--start-timeout",
            )
            self.code = WorldError.exit_code
            self._end(0.0)
        elif missing and self.launcher_code is None:
            self.failure = self._with_launcher_lines(
                Failure(
                    f"{_ranks(missing)} of {expected} did not start within {patience:g} s",
                    "the launcher is at work, but has not started them",
                    "see the launcher's words with `shanty logs --launcher`; a machine under "
                    "load may need --start-timeout",
                )
            )
            self.code = LaunchError.exit_code
            self._end(0.0)

    def _since_loading(self, now: float) -> float:
        """Seconds since the newest rank loaded its MPI."""
        ranks = [r for world in self.worlds.values() for r in world.ranks.values()]
        return now - max((rank.seen for rank in ranks), default=now)

    def _end(self, grace: float) -> None:
        self.ending = True
        self.warden.send(end=None, grace=grace)

    def _stop(self, why: str, grace: float) -> None:
        if self.failure is not None:
            self._end(grace)  # it is ending already, for a reason that must not be lost
        elif self.stopped is None or grace == 0:
            self.stopped = why
            self._event("stopping", why=why, grace=grace)
            self._end(grace)

    def _answer_asks(self) -> None:
        """Serve the requests that lie in the run directory."""
        for path in sorted(self.run_dir.asks.glob("*.ask")):
            ask = read_json(path) or {}
            with contextlib.suppress(OSError):
                path.unlink()
            reply: Dict[str, Any] = {"ok": True}
            if ask.get("kind") == "stop":
                self._stop("stopped", float(ask.get("grace", self.plan["grace"])))
            elif ask.get("kind") == "stacks":
                before = {rank: self._size(rank) for rank in self._alive()}
                self.warden.send(stacks=True)
                reply["stacks"] = collect(self.run_dir, before, self._service)
            else:
                reply = {"ok": False, "error": f"unknown request {ask.get('kind')!r}"}
            with contextlib.suppress(OSError):
                write_json(path.with_suffix(".reply"), reply)

    def _service(self) -> None:
        """Keep the warden's and the ranks' messages flowing while a request is served."""
        self._beat(time.monotonic())
        select.select([self.warden.source], [], [], 0.02)
        for message in self.warden.receive():
            self._hear(message)

    def _alive(self) -> List[int]:
        ranks = [r for world in self.worlds.values() for r in world.ranks.values()]
        return sorted({rank.rank for rank in ranks if rank.ended is None})

    def _size(self, rank: int) -> int:
        try:
            return self.run_dir.rank_stacks(rank).stat().st_size
        except OSError:
            return 0

    def _without_warden(self, warden: int) -> None:
        """The warden died: its children are ours now; end them and say so."""
        self.failure = self.failure or Failure(
            f"the warden on {os.uname().nodename} (pid {warden}) was killed or frozen",
            "without it nothing watches the ranks, so they were ended",
            "see `shanty logs --agent`; run again",
        )
        self.code = self.code or LaunchError.exit_code
        end_all(lambda: platform.descendants(os.getpid()))
        sweep_after(self.plan)

    def _finish(self) -> None:
        """Write how it ended."""
        top = self.worlds.get(TOP)
        raw, launcher = self.plan["raw"], self.launcher_code
        if raw and launcher == 0 and self.failure in self.ended_worlds.values():
            self._event("note", text="a world failed, but the command ended well")
            self.failure = self.code = None
        if self.stopped is not None:
            self._write(
                state=State.STOPPED, ended=time.time(), exit_code=STOPPED_EXIT, failure=None
            )
            return
        if self.code is None:
            self._judge_end(top, launcher)
        failed = self.failure is not None
        self._write(
            state=State.FAILED if failed else State.SUCCEEDED,
            ended=time.time(),
            exit_code=self.code or 0,
            failure=self.failure,
        )

    def _judge_end(self, top: Optional[World], launcher: Optional[int]) -> None:
        """The launcher ended and no rank is to blame so far: is all well?"""
        expected = self.plan["ranks"]
        for world in self.worlds.values():
            verdict = world.verdict(time.monotonic() + 3600) if launcher else world.mismatch
            if verdict is None and launcher and world.early_leavers():
                verdict = world.left_early(world.early_leavers()[0])
            if verdict is not None:
                self.failure = self._with_lines(verdict)
                self.code = world.exit_code(verdict)
                return
        if launcher != 0:
            code = launcher if launcher is not None else LaunchError.exit_code
            code = code if code >= 0 else 128 - code
            killed = any(
                rank.ended is None
                for world in self.worlds.values()
                for rank in world.ranks.values()
            )
            what, why = self.error or f"the launcher ended with exit code {code}", ""
            if killed:
                why = "it ended the ranks itself, as it does when one of them calls MPI_Abort"
            self.failure = self._with_launcher_lines(Failure(what, why))
            self.code = code if killed or self.plan["raw"] or self.error else LaunchError.exit_code
        elif expected is not None and (top is None or top.up < expected):
            up = top.ranks if top else {}
            missing = [rank for rank in range(expected) if rank not in up]
            self.failure = self._with_launcher_lines(
                Failure(
                    f"{_ranks(missing)} of {expected} never started",
                    "the launcher ended with 0 all the same",
                    "see the launcher's words with `shanty logs --launcher`",
                )
            )
            self.code = WorldError.exit_code

    def _with_lines(self, failure: Failure) -> Failure:
        if failure.rank is None:
            return failure
        log = self.run_dir.rank_log(failure.rank)
        return replace(failure, lines=tuple(last_lines(str(log), _LAST_LINES)), log=str(log))

    def _with_launcher_lines(self, failure: Failure) -> Failure:
        log = self.run_dir.launcher_log
        return replace(failure, lines=tuple(last_lines(str(log), _LAST_LINES)), log=str(log))

    def _write(self, **changes: Any) -> None:
        """Change the status, on disk as well; a full disk must not stop the agent."""
        before = self.status.state
        self.status = replace(self.status, **changes)
        if self.status.state.final:
            with contextlib.suppress(OSError):
                self.run_dir.reserve.unlink()  # room for these words; no rank can take it now
        try:
            write_json(self.run_dir.status, self.status.to_json())
        except OSError as error:
            with contextlib.suppress(OSError):  # the log is on the same full disk
                print(f"status not written: {error}", file=sys.stderr, flush=True)
        if self.status.state is not before:
            self._event("state", status=self.status.to_json())

    def _event(self, kind: str, **more: Any) -> None:
        with contextlib.suppress(OSError):
            append_line(self.run_dir.events, {"time": time.time(), "event": kind, **more})


def _ranks(numbers: List[int]) -> str:
    """ "rank 3" or "ranks 1, 2, 5 and 9 more"."""
    shown = ", ".join(str(number) for number in numbers[:8])
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return ("rank " if len(numbers) == 1 else "ranks ") + shown + more
