"""The controller: owns a run's status from its start to its end, detached from any terminal.

It starts the node agent, judges what the ranks report, keeps the limits, answers requests in the
run directory and writes every change down. `start` forks it and the node agent; `workers` has the
node agents of other hosts.
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

from shanty.runtime import foreign, platform
from shanty.runtime.agent.abort import abort
from shanty.runtime.agent.activity import ActivityWatch
from shanty.runtime.agent.alone import alone
from shanty.runtime.agent.channel import Channel, readable
from shanty.runtime.agent.cleanup import end_all, end_container, sweep_after
from shanty.runtime.agent.heartbeat import FailureDetector, Heartbeat
from shanty.runtime.agent.mpi_world import MpiWorld, signal_name
from shanty.runtime.agent.node_agent import SILENCE
from shanty.runtime.agent.queue_word import QueueWord, ended_by_term, grace
from shanty.runtime.agent.root_cause import TOP, Verdict, at_end, explained, late, misplaced
from shanty.runtime.agent.run_folder import RunFolder
from shanty.runtime.agent.stacks import absent, collect, with_native
from shanty.runtime.agent.stall_detector import StallDetector
from shanty.runtime.errors import (
    STOPPED_EXIT,
    TIME_LIMIT_EXIT,
    LaunchError,
    ShantyError,
    WorldError,
)
from shanty.runtime.logfile import last_lines
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.plan import Plan
from shanty.runtime.rundir import RunDir, append_line, read_json, write_json
from shanty.runtime.spec import HOST, Failure, State, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.agent.link_check import LinkCheck
    from shanty.runtime.agent.store_check import StoreCheck
    from shanty.runtime.agent.workers import Workers

FAILURE_GRACE = 1.0  # seconds between SIGTERM and SIGKILL for the ranks that a failure ends
_EXPLAINED = (WorldError.exit_code, 128 + signal.SIGTERM)  # perhaps by the launcher's last words
_DOUBT = 2.0  # seconds for a look at the network before an end that nothing explains is told
HUNG = 5.0  # seconds that a launcher may outlive its last rank
_TICK = 0.5
_LAST_LINES = 30
_LAUNCHER_LINES = 60  # a launcher explains at length


class Controller:
    """One run, from the side that decides."""

    def __init__(self, run: RunDir, plan: Plan) -> None:
        self.run_dir = run
        self.plan = plan
        self.launcher = plan.lead.installation
        status = read_json(run.status)
        self.status = Status.from_json(status) if status else Status.new(None)
        self.worlds: Dict[str, MpiWorld] = {}
        self.ended_worlds: Dict[str, Failure] = {}
        self.failure: Optional[Failure] = None
        self.code: Optional[int] = None
        self.launcher_code: Optional[int] = None
        self.launcher_hung = False
        self.error = ""
        self.stopped: Optional[str] = None
        self.gone = self.ending = self.deserted = False
        self.began = self.run_began = time.monotonic()
        self.called_off = False  # whoever stops the run wants no other attempt either
        self.silence = FailureDetector()  # the node agent's
        self.folder = RunFolder(run)
        self.workers: Optional[Workers] = None  # the other hosts; None for a run on this machine
        self.stalls = StallDetector(self)
        self.activity = ActivityWatch(self)
        self._links: Optional[LinkCheck] = None  # since a rank failed without a cause
        self._doubt = 0.0  # until when its outcome is waited for
        self._store: Optional[StoreCheck] = None  # after a failure that damage would explain
        self.queue_word: Optional[QueueWord] = None  # once the queue ends the run
        self.settings: Dict[str, Mapping[str, str]] = {}  # of MPIs, that were set on hosts before
        self.heartbeat: Heartbeat

    def run(self, channel: Channel, agent: int) -> bool:
        """Live until the node agents have gone, then write the last word.

        True where there is to be another attempt, which is planned already.
        """
        self.agent, self.silence = channel, FailureDetector(agent)
        wake, woken = os.pipe()
        for end in (wake, woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._told_to_end())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.run_began = self.status.began or self.run_began  # with the first attempt
        started = self.status.started or time.time()
        self._write(state=State.STARTING, started=started, began=self.run_began)
        if self.plan.workers:
            from shanty.runtime.agent.workers import Workers

            self.workers = Workers(self)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(channel.source, select.POLLIN)
        # Node agents that hear no word count the seconds.
        self.heartbeat = Heartbeat(lambda: self.tell(alive=True))
        while not self.gone and channel.open:
            self.heartbeat.turn()
            for fd, _ in poll.poll(self._patience() * 1000):
                if fd == wake:
                    os.read(wake, 512)
                elif fd == channel.source:
                    for message in channel.receive():
                        self._hear_lead(message)
                elif self.workers is not None:
                    self.workers.serve(fd)
            self.answer_asks()
            self._judge(time.monotonic())
            self.stalls.tick(time.monotonic())
            self.activity.tick(time.monotonic())
            self.agent.flush()
            if self.workers is not None:
                self.workers.advance(poll)
            if self.silence.is_over(time.monotonic(), SILENCE):
                self.event("agent-silent", seconds=round(self.silence.seconds, 1))
                os.kill(agent, signal.SIGKILL)  # frozen: what it holds becomes ours
                break
        for message in channel.receive():  # it may have left while we were writing to it
            self._hear_lead(message)
        if not self.gone:
            self._without_agent(agent)
        while self._links_are_in_doubt(time.monotonic()):
            self._service()
        self._check_store()
        hopeful = self._may_try_again()
        if self.workers is not None:
            self.workers.dismiss("for now" if hopeful else "for good")
        self.heartbeat.end()
        self._conclude()
        if hopeful and not self.called_off and self._is_launchs_fault() and self._try_again():
            return True
        if self.plan.may_try_again and self.workers is not None:
            lost = any(worker.state == "lost" for worker in self.workers.workers)
            if hopeful or lost:  # they still accept our key
                from shanty.runtime.agent import attempts

                attempts.end_attempts(self.plan)
        self._finish()
        return False

    def _patience(self) -> float:
        """Seconds until something is due."""
        due = [world.deadline() for world in self.worlds.values()]
        soon = min((when for when in due if when is not None), default=None)
        return _TICK if soon is None else min(_TICK, max(0.005, soon - time.monotonic()))

    def _hear_lead(self, message: Mapping[str, Any]) -> None:
        """Take what the node agent of the lead host sent."""
        self.silence.heard()
        host = self.plan.lead.name
        if "launcher" in message:
            self.launcher_code = message["launcher"]
            self.error = message.get("error", "")
        elif "hung" in message:
            self.event("launcher-hung", world=message["hung"])
            self.launcher_hung = message["hung"] == TOP
        elif "gone" in message:
            self.gone = True
            self.event("swept", removed=message["gone"])
        elif "unready" in message:
            self.condemn(Failure(f"host {host}: {message['unready']}", host=host), 0.0)
        elif "ready" in message:
            self.settings[host] = message["settings"]
            if self.workers is not None:
                self.workers.lead_ready = True
        else:
            self.hear(message, host)

    def hear(self, message: Mapping[str, Any], host: str) -> None:
        """Take what any node agent tells of its ranks; `host` is what the user calls its host."""
        if "report" in message:
            self._report({**message["report"], "host": host})
        elif "moves" in message:
            self.stalls.hear(host, message)
        elif "busy" in message:
            self.activity.hear(host, message)
        elif "links" in message:
            self.stalls.hear_links(host, message["links"])
            if self._links is not None:
                self._links.hear(host, message["links"])
        elif "store" in message and self._store is not None:
            self._store.hear(host, message["store"])
        elif "sample" in message:
            from shanty.runtime.agent import resources

            resources.keep(self.run_dir, host, message["sample"], message["sent"])
        elif "flush" in message:
            self.worlds[message["flush"]].awaited.discard(host)

    def _report(self, report: Mapping[str, Any]) -> None:
        """Take a rank's report."""
        now = time.monotonic()
        name = str(report.get("world", TOP))
        if name not in self.worlds:
            expected = self.plan.ranks if name == TOP else None
            self.worlds[name] = MpiWorld(expected, self.launcher)
        world = self.worlds[name]
        if world.report(report, now):
            self._flush_reports(name)
            unexplained = report.get("code", 0) < 0 or not report.get("why")
            over = self.ending or self.stopped is not None  # then it is no wonder
            if self.workers is not None and unexplained and not over:
                from shanty.runtime.agent.link_check import QUICK, LinkCheck

                self._links, self._doubt = LinkCheck(self, 0, now, QUICK), now + _DOUBT
        self.event("rank-" + str(report.get("event")), report=report)
        changed: Dict[str, Any] = {"ranks": world.expected, "up": world.up, "joined": world.joined}
        texts = (each.not_finite_text() for each in self.worlds.values())
        changed["not_finite"] = "; ".join(filter(None, texts))
        if world.complete and self.status.state is State.STARTING:
            verdict = misplaced(self.plan, world) if name == TOP else None
            if verdict is not None:
                self._condemn(verdict, FAILURE_GRACE)
            else:
                changed["state"] = State.RUNNING
        if any(getattr(self.status, key) != value for key, value in changed.items()):
            self._write(**changed)

    def _flush_reports(self, name: str) -> None:
        """Ask every host for what its ranks had said before a failure in this world was known."""
        names = (w.name for w in (self.workers.workers if self.workers else ()) if w.live)
        self.worlds[name].awaited = {self.plan.lead.name, *names}
        self.tell(flush=name)

    def _judge(self, now: float) -> None:
        """End what has to end: a world with a verdict, or the run at one of its limits.

        A lost host comes first: its MPI has told the ranks elsewhere, and they failed of it.
        """
        if self.workers is not None:
            self.workers.judge(now)
        removed = self.folder.failure() if not self.ending else None
        if removed is not None:
            self.condemn(removed, FAILURE_GRACE)
        for name, world in self.worlds.items():
            verdict = world.verdict(now) if name not in self.ended_worlds else None
            if verdict is not None and not self._links_are_in_doubt(now):
                code = world.exit_code(verdict)
                verdict = self._of_rank(verdict, world)
                self.ended_worlds[name] = verdict
                if self.failure is None:
                    self.failure, self.code = verdict, code
                self.event("failure", failure=verdict.__dict__)
                self.ending = self.ending or name == TOP
                self.tell(end=None if name == TOP else name, grace=self.plan.limits.grace)
        limit = self.plan.limits.time_limit
        if limit is not None and now > self.run_began + limit and not self.ending:
            failure = Failure(
                f"the time limit of {limit:g} s was reached",
                fix="give it more time with --time-limit; if it was stuck, `shanty stacks` shows "
                "where while it is on",
            )
            self._condemn(Verdict(failure, TIME_LIMIT_EXIT), self.plan.limits.grace)
        starts = not self.ending and self.launcher_code is None
        if starts and (missing := late(self.plan, self.worlds, now, self.began)) is not None:
            self._condemn(missing, 0.0)
        self._judge_alone(now)
        self._watch_launcher(now)

    def _judge_alone(self, now: float) -> None:
        """Tell, or end, a run whose ranks each train by themselves."""
        if self.plan.limits.alone == "ok" or self.ending:
            return
        found = [each for each in (alone(w, now) for w in self.worlds.values()) if each is not None]
        if found and self.plan.limits.alone == "stop":
            self._condemn(Verdict(found[0], WorldError.exit_code), FAILURE_GRACE)
        elif (self.status.alone is None) != (not found):
            self._write(alone=found[0] if found else None)
            self.event("alone", failure=found[0].__dict__ if found else None)

    def _links_are_in_doubt(self, now: float) -> bool:
        """True while it is being tried whether a rank failed because of the network."""
        if self._links is None or self._links.over:
            return False
        self._links.tick(now)
        if now > self._doubt:
            self._links.end()
        return not self._links.over

    def _check_store(self) -> None:
        """Have the hosts look at their files where damage to these may be the cause."""
        if self.stopped is not None or (self.failure is None and self.launcher_code == 0):
            return
        if self.workers is not None and not all(each.live for each in self.workers.workers):
            return  # a host was lost, which is cause enough
        from shanty.runtime.agent.store_check import StoreCheck, explains

        if self.failure is None or explains(self.failure, self.code or 0):
            self._store = StoreCheck(self)
            while not self._store.over:
                self._service()

    def _watch_launcher(self, now: float) -> None:
        """A launcher that goes on after its last rank has lost track of it; nobody waits for it."""
        if self.ending and not self.deserted and TOP in self.worlds and self.worlds[TOP].deserted:
            self.deserted = True
            self.tell(end=None, grace=FAILURE_GRACE if self.code in _EXPLAINED else 0.0)
        for name, world in self.worlds.items():
            hung = world.over_since is not None and now > world.over_since + HUNG
            if hung and self.launcher_code is None and not self.ending:
                world.over_since = None
                self.agent.send(hung=name)

    def condemn(self, failure: Failure, grace: float) -> None:
        """End the run because of a failure of the launch itself, unless there is another cause."""
        self._condemn(Verdict(failure, LaunchError.exit_code), grace)

    def _condemn(self, verdict: Verdict, grace: float) -> None:
        if self.failure is None and self.stopped is None:
            self.failure, self.code = verdict.failure, verdict.code
            if verdict.quotes_launcher:
                self.failure = self._with_launcher_lines(self.failure)
            self.event("failure", failure=self.failure.__dict__)
        self._end(grace)

    def _end(self, grace: float) -> None:
        self.ending = True
        self.tell(end=None, grace=grace)
        if self.workers is not None and not self.workers.launched:
            self.agent.send(leave="for good")  # there will be no launcher to wait for

    def tell(self, **order: Any) -> None:
        """Give an order to the node agents of all hosts."""
        self.agent.send(**order)
        if self.workers is not None:
            self.workers.send(**order)

    def tell_host(self, host: str, **order: Any) -> None:
        """Give an order to the node agent of one host."""
        if host == self.plan.lead.name:
            self.agent.send(**order)
        elif self.workers is not None:
            self.workers.send_to(host, **order)

    def _told_to_end(self) -> None:
        """SIGTERM: by hand, or by a queue that ends the run, which is asked why."""
        if self.queue_word is None:
            self.queue_word = QueueWord()
        self._stop("stopped", grace(5.0))

    def _stop(self, why: str, grace: float) -> None:
        self.called_off = True
        if self.failure is not None:
            self._end(grace)  # it is ending already, for a reason that must not be lost
        elif self.stopped is None or grace == 0:
            self.stopped = why
            self.event("stopping", why=why, grace=grace)
            self._end(grace)

    def answer_asks(self) -> None:
        """Serve the requests that lie in the run directory."""
        for path in sorted(self.run_dir.asks.glob("*.ask")):
            ask = read_json(path) or {}
            with contextlib.suppress(OSError):
                path.unlink()
            reply: Dict[str, Any] = {"ok": True}
            if ask.get("kind") == "stop":
                self._stop("stopped", float(ask.get("grace", self.plan.limits.grace)))
            elif ask.get("kind") == "stacks":
                answers = self.ask_stacks()
                reply["stacks"] = [*answers, *absent(self.plan.ranks, self.worlds, answers)]
            elif ask.get("kind") == "warn":
                self.event("warned", signal=ask.get("signal"))
                self.tell(warn=int(ask.get("signal", 0)))
            else:
                reply = {"ok": False, "error": f"unknown request {ask.get('kind')!r}"}
            with contextlib.suppress(OSError):
                write_json(path.with_suffix(".reply"), reply)

    def ask_stacks(self) -> List[Dict[str, Any]]:
        """Returns the stacks of every rank, as `collect` has them, with the MPI call it is in."""
        name = str(time.time_ns())
        self.stalls.looks.clear()
        self.tell(stacks=name)
        answers = collect(self.run_dir, self._alive(), name, self._service)
        return with_native(answers, self.stalls.looks.values())

    def active(self, text: str) -> None:
        """Note what the ranks of a silent run do; "": it is silent no more."""
        if text != self.status.activity:
            self._write(activity=text)

    def stalled(self, since: Optional[float], verdict: Optional[Verdict] = None) -> None:
        """No rank makes progress since then (None: they do again); a verdict ends the run."""
        self._write(stalled=since)
        if verdict is not None:
            failure = self._with_lines(verdict.failure)
            self._condemn(verdict._replace(failure=failure), FAILURE_GRACE)

    def _service(self) -> None:
        """Keep the node agent's and the ranks' messages flowing while a request is served."""
        self.heartbeat.turn()
        self.agent.flush()
        own = [self.agent.source] if self.agent.open and not self.gone else []
        sources = [*own, *(self.workers.sources if self.workers is not None else ())]
        ready = readable(sources, 0.02)
        for message in self.agent.receive():
            self._hear_lead(message)
        for fd in ready:
            if fd != self.agent.source and self.workers is not None:
                self.workers.serve(fd)

    def _alive(self) -> List[int]:
        ranks = [r for world in self.worlds.values() for r in world.ranks.values()]
        return sorted({rank.rank for rank in ranks if rank.ended is None})

    def _without_agent(self, agent: int) -> None:
        """The node agent died: its children are ours now; end them and say so."""
        host = self.plan.lead.name
        if self.plan.lead.container and not self.silence.over:
            from shanty.runtime.agent import container_lead

            began = host in self.settings
            failure = container_lead.end_of(self.run_dir, self.plan, agent, began=began)
            self.failure = self.failure or failure
        self.failure = self.failure or Failure(
            f"the node agent on {host} (pid {agent}) {self._end_of(agent)}",
            "without it nothing watches the ranks, so they were ended",
            "see `shanty logs --agent`; run again",
            host=host,
            cause=HOST,
        )
        self.code = self.code or LaunchError.exit_code
        if self.workers is not None:
            self.workers.send(end=None, grace=0.0)
        ssh = {worker.process.pid for worker in self.workers.workers} if self.workers else set()
        end_container(self.plan)  # before the processes of its engine, which are ours as well
        end_all(lambda: [e for e in platform.descendants(os.getpid()) if e.pid not in ssh])
        sweep_after(self.plan)

    def _end_of(self, agent: int) -> str:
        """Tells how the node agent ended."""
        if self.silence.over:
            return f"was frozen: it has said nothing for {self.silence.seconds:.0f} s"
        with contextlib.suppress(ChildProcessError):
            code = os.waitstatus_to_exitcode(os.waitpid(agent, 0)[1])
            if code < 0:
                return f"was killed by {signal_name(-code)}"
        return "ended by an error of its own"

    def _may_try_again(self) -> bool:
        """False where it is plain already that there will be no other attempt."""
        if not self.plan.may_try_again or self.called_off:
            return False
        return self._is_launchs_fault() or (self.failure is None and self.launcher_code != 0)

    def _is_launchs_fault(self) -> bool:
        """True when a host was lost or the launcher failed; a script's own bug would come again."""
        failed = self.failure is not None and self.failure.rank is None
        return failed and self.code == LaunchError.exit_code and not self.folder.was_lost

    def _try_again(self) -> bool:
        """Plan another attempt and say so; False where the hosts that are left do not do."""
        from shanty.runtime.agent import attempts

        assert self.failure is not None
        try:
            plan = attempts.plan_again(self.run_dir, self.plan)
        except (ShantyError, OSError, ValueError, KeyError, TypeError) as error:
            why = f"; there is no other attempt: {error}"
            self.failure = replace(self.failure, why=self.failure.why + why)
            return False
        number, most = plan.attempt.number, plan.limits.retries + 1
        hosts = [node.name for node in plan.attempt.nodes]
        reason = f"attempt {number} of {most} on {', '.join(hosts)}: {self.failure.what}"
        self.event("attempt", number=number, hosts=hosts, failure=self.failure.__dict__)
        self._write(
            state=State.STARTING, attempt=number, reason=reason, ranks=plan.ranks, up=0, joined=0,
            stalled=None,
        )  # fmt: skip
        return True

    def _conclude(self) -> None:
        """Settle why it failed, if it did."""
        raw, launcher = self.plan.raw, 0 if self.launcher_hung else self.launcher_code
        if raw and launcher == 0 and self.failure in self.ended_worlds.values():
            self.event("note", text="a world failed, but the command ended well")
            self.failure = self.code = None
        open_end = self.code is None or self.failure in self.ended_worlds.values()
        if self.stopped is None and self.code is None:
            self._judge_end(launcher)
        found = abort(self.run_dir, self.worlds, self.failure) if open_end else None
        if self.stopped is None and found is not None:
            self.failure, self.code = self._with_lines(found.failure), found.code
        if self.failure is not None and self._store is not None:
            self.failure = self._store.explained(self.failure)

    def _finish(self) -> None:
        """Write how it ended."""
        if (read_json(self.run_dir.job) or {}).get("profile"):
            from shanty.runtime.agent import profile

            others = self.workers.workers if self.workers is not None else ()
            profile.write(self.run_dir, self.plan.lead.name, others)
        times: Dict[str, Any] = {"ended": time.time(), "lasted": time.monotonic() - self.run_began}
        said = self.queue_word.answer() if self.queue_word is not None else {}
        if said and (self.stopped is not None or ended_by_term(self.failure, self.code)):
            self._write(**said, **(times if said["state"].final else {}))
            return
        if self.stopped is not None:
            self._write(state=State.STOPPED, exit_code=STOPPED_EXIT, failure=None, **times)
            return
        state = State.SUCCEEDED if self.failure is None else State.FAILED
        self._write(state=state, exit_code=self.code or 0, failure=self.failure, **times)

    def _judge_end(self, launcher: Optional[int]) -> None:
        """The launcher ended and no rank is to blame so far: is all well?

        A user's own line may have dealt with a failure when it ends with 0; a launcher of ours
        that does so has only missed one.
        """
        for world in self.worlds.values():
            settled = bool(launcher) or not self.plan.raw
            failure = world.verdict(time.monotonic() + 3600) if settled else world.mismatch
            if failure is None and launcher and world.early_leavers():
                failure = world.left_early(world.early_leavers()[0])
            if failure is not None:
                self.failure = self._of_rank(failure, world)
                self.code = world.exit_code(failure)
                return
        verdict = at_end(self.plan, self.worlds, launcher, self.error)
        if verdict is not None:
            self.failure = self._with_launcher_lines(verdict.failure)
            if launcher and not any(world.joined for world in self.worlds.values()):
                self.failure = self._with_settings(self.failure)
            self.code = verdict.code

    def _of_rank(self, failure: Failure, world: MpiWorld) -> Failure:
        """Add what else is known of the rank to blame."""
        explained = failure if self._links is None else self._links.explain(failure)
        found = self._with_lines(explained)
        return self._with_settings(found) if world.failed_in_init(failure) else found

    def _with_lines(self, failure: Failure) -> Failure:
        if failure.rank is None:
            return failure
        log = self.run_dir.rank_log(failure.rank)
        return replace(failure, lines=tuple(last_lines(str(log), _LAST_LINES)), log=str(log))

    def _with_settings(self, failure: Failure) -> Failure:
        """Name the settings of MPIs that the user has made."""
        from shanty.runtime.agent.user_settings import with_settings

        asked = (read_json(self.run_dir.job) or {}).get("env", {})
        return with_settings(failure, self.plan, asked, os.environ)

    def _with_launcher_lines(self, failure: Failure) -> Failure:
        if self.workers is not None:  # on this machine, the user has set them himself
            why = filter(None, [failure.why, foreign.told(self.settings)])
            failure = replace(failure, why="; ".join(why))
        log = self.run_dir.launcher_log
        if not log.exists():
            return failure
        lines = last_lines(str(log), _LAUNCHER_LINES)
        found = explained(failure, lines, FLAVOURS[self.launcher.flavour].no_slots)
        return replace(found, lines=tuple(lines[-_LAST_LINES:]), log=str(log))

    def _write(self, **changes: Any) -> None:
        """Change the status, on disk as well; a full disk must not stop the agent."""
        before = self.status.state
        self.status = replace(self.status, **changes)
        if self.status.state.final:
            self.status = replace(self.status, stalled=None, activity="")  # it has ended now
            with contextlib.suppress(OSError):
                self.run_dir.reserve.unlink()  # room for these words; no rank can take it now
        try:
            write_json(self.run_dir.status, self.status.to_json())
        except OSError as error:
            with contextlib.suppress(OSError):  # the log is on the same full disk
                print(f"status not written: {error}", file=sys.stderr, flush=True)
        if self.status.state is not before:
            self.event("state", status=self.status.to_json())

    def event(self, kind: str, **more: Any) -> None:
        """Write down that something happened."""
        with contextlib.suppress(OSError):
            append_line(self.run_dir.events, {"time": time.time(), "event": kind, **more})
