"""The controller: owns a run's status from its start to its end, detached from any terminal.

It starts the node agent, evaluates the reports of the ranks, enforces the limits, answers requests
in the run directory and writes every change down. `start` forks it and the node agent;
`worker_links` has the node agents of other hosts.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Any, Dict, List, Optional, Sequence

from shanty.runtime import messages, platform
from shanty.runtime.channel import Channel, readable
from shanty.runtime.cleanup import end_all, end_container, end_waiting, sweep_after
from shanty.runtime.controller.queue_ending import QueueEnding, grace
from shanty.runtime.controller.status_file import StatusFile
from shanty.runtime.controller.verdicts import Outcome
from shanty.runtime.diagnosis.activity import ActivityWatch
from shanty.runtime.diagnosis.mpi_world import MpiWorld
from shanty.runtime.diagnosis.root_cause import TOP, Verdict, late, misplaced
from shanty.runtime.diagnosis.run_view import RunView
from shanty.runtime.diagnosis.separate_training import alone
from shanty.runtime.diagnosis.signals import signal_name
from shanty.runtime.diagnosis.stacks import absent, alive, collect, with_native
from shanty.runtime.diagnosis.stall_detector import StallDetector
from shanty.runtime.errors import TIME_LIMIT_EXIT, LaunchError, ShantyError, WorldError
from shanty.runtime.folder_watch import RunFolder
from shanty.runtime.heartbeat import BEAT, ELASTIC_BEAT, SILENCE, FailureDetector, Heartbeat
from shanty.runtime.plan import Plan
from shanty.runtime.rundir import RunDir, read_json, write_json
from shanty.runtime.spec import HOST, Failure, State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.channel import Received
    from shanty.runtime.controller.elastic import Elastic
    from shanty.runtime.controller.worker_links import WorkerLinks
    from shanty.runtime.diagnosis.link_check import LinkCheck
    from shanty.runtime.diagnosis.network_watch import NetworkWatch
    from shanty.runtime.diagnosis.store_check import StoreCheck
    from shanty.runtime.messages import Order

FAILURE_GRACE = 1.0  # seconds between SIGTERM and SIGKILL for the ranks that a failure ends
_DOUBT = 2.0  # seconds to check the network before an end without an explanation is reported
HUNG = 5.0  # seconds that a launcher may outlive its last rank
STUCK = 0.2  # the same where it waits for ranks of a lost host
_WARNED = 3.0  # seconds to wait for the hosts' answers to a signal
_TICK = 0.5


class Controller:
    """The controller of one run."""

    def __init__(self, run: RunDir, plan: Plan) -> None:
        self.run_dir = run
        self.plan = plan
        self.launcher = plan.lead.installation
        self.status_file = StatusFile(run)
        self.outcome = Outcome(run, plan)
        self.worlds: Dict[str, MpiWorld] = {}
        self.gone = self.ending = self.deserted = False
        self.began = self.run_began = time.monotonic()
        self.silence = FailureDetector()  # the node agent's
        self.folder = RunFolder(run)
        self.workers: Optional[WorkerLinks] = None  # None for a run on this machine
        self.elastic: Optional[Elastic] = None  # of such a run, once all ranks have joined
        self.stalls = StallDetector(run, plan, self)
        self.activity = ActivityWatch(run, self)
        self._network: Optional[NetworkWatch] = None
        self._links: Optional[LinkCheck] = None  # begun when a rank failed without a cause
        self._doubt = 0.0  # the time until which its result is waited for
        self._store: Optional[StoreCheck] = None  # after a failure that damage would explain
        self._warned: Dict[str, messages.Warned] = {}  # the answers to a signal, by host
        self.queue_ending: Optional[QueueEnding] = None  # once the queue ends the run
        self.heartbeat: Heartbeat

    def run(self, channel: Channel, agent: int) -> bool:
        """Live until the node agents have gone, then write down the end of the run.

        Returns True where another attempt follows; it has been planned then.
        """
        self.agent, self.silence = channel, FailureDetector(agent)
        self.folder.watch_from_the_start()  # the plan has been read from it
        wake, woken = os.pipe()
        for end in (wake, woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._told_to_end())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        before = self.status_file.status
        self.run_began = before.began or self.run_began  # with the first attempt
        started = before.started or time.time()
        self.status_file.write(state=State.STARTING, started=started, began=self.run_began)
        if self.plan.workers:
            from shanty.runtime.controller.worker_links import WorkerLinks

            self.workers = WorkerLinks(self.run_dir, self.plan, self)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(channel.source, select.POLLIN)
        # Node agents end the run when they receive nothing for too long.
        every = BEAT if self.plan.limits.elastic is None else ELASTIC_BEAT
        self.heartbeat = Heartbeat(lambda: self.tell(messages.Alive()), every)
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
            self.judge(time.monotonic())
            self.stalls.tick(self.view(), time.monotonic())
            self.activity.tick(self.view(), time.monotonic())
            self.agent.flush()
            if self.workers is not None:
                self._advance(self.workers, poll)
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
        hopeful = self.outcome.may_try_again(folder_lost=self.folder.was_lost)
        if self.workers is not None:
            self._dismiss(self.workers, comes_again=hopeful)
        self.heartbeat.end()
        if self.outcome.forgive():
            self.event("note", text="a world failed, but the command ended well")
        self.outcome.conclude(self.worlds, self._links, self._store)
        if not self.folder.was_lost and (removed := self.folder.failure()) is not None:
            self.outcome.folder_removed(removed)
        again = hopeful and self.outcome.wants_another_attempt(folder_lost=self.folder.was_lost)
        cut_off = self.workers is not None and self.workers.wait_for_contact()
        if again and not cut_off and self._try_again():
            return True
        accept_key = self.workers is not None and (hopeful or self.workers.any_lost)
        if self.plan.may_try_again and accept_key and not cut_off:
            from shanty.runtime.controller import attempts

            attempts.end_attempts(self.plan)
        self._finish()
        return False

    def _patience(self) -> float:
        """Seconds until something is due."""
        due = [world.deadline() for world in self.worlds.values()]
        soon = min((when for when in due if when is not None), default=None)
        return _TICK if soon is None else min(_TICK, max(0.005, soon - time.monotonic()))

    def _hear_lead(self, message: Received) -> None:
        """Take a message of the node agent of the lead host."""
        self.silence.heard()
        host = self.plan.lead.name
        if isinstance(message, messages.LauncherEnded):
            self.outcome.launcher_ended(message.code, message.error)
        elif isinstance(message, messages.LauncherHung):
            self.event("launcher-hung", world=message.world)
            self.outcome.launcher_hung(message.world)
        elif isinstance(message, messages.Gone):
            self.gone = True
            self.event("swept", removed=message.removed)
        elif isinstance(message, messages.Unready):
            self._condemn_launch(Failure(f"host {host}: {message.why}", host=host), 0.0)
        elif isinstance(message, messages.Ready):
            self.heard(message, host)
            if self.workers is not None:
                self.workers.lead_is_ready = True
        else:
            self.heard(message, host)

    def heard(self, message: Received, host: str) -> None:
        """Take a message of any node agent; `host` is the user's name for its host."""
        if isinstance(message, messages.RankReport):
            self._report(message.report.extended(host=host))
        elif isinstance(message, messages.Ready):
            self.outcome.settings[host] = message.settings
        elif isinstance(message, messages.Warned):
            self._warned[host] = message
        elif isinstance(message, messages.Moves):
            self.stalls.hear(host, message)
        elif isinstance(message, messages.Activity):
            self.activity.hear(host, message.ranks)
        elif isinstance(message, (messages.LinkPorts, messages.LinkResults)):
            self.stalls.hear_links(host, message)
            if self._links is not None:
                self._links.hear(host, message)
        elif isinstance(message, messages.StoreDamage) and self._store is not None:
            self._store.hear(host, message.found)
        elif isinstance(message, messages.Sample):
            from shanty.runtime.node import resource_sampler

            resource_sampler.keep(self.run_dir, host, message)
            self._watch_network(host, message)
        elif isinstance(message, messages.Flushed) and message.world in self.worlds:
            self.worlds[message.world].flushed(host)

    def _watch_network(self, host: str, message: messages.Sample) -> None:
        if self.workers is None or self.workers.any_lost:  # to which packets are lost
            return
        if self._network is None:
            from shanty.runtime.diagnosis.network_watch import NetworkWatch

            self._network = NetworkWatch(self.plan.attempt.nodes)
        changed = self._network.hear(host, message.sample)
        self.stalls.network = fault = self._network.fault
        if changed and fault is not None and not self.ending:
            self.event("network", what=fault.what, host=fault.host)
            self.status_file.update(network=f"{fault.what}; {fault.fix}")

    def _report(self, report: messages.Report) -> None:
        """Take a rank's report."""
        now = time.monotonic()
        name = report.world
        spares = self.plan.limits.spares if name == TOP else 0
        if name not in self.worlds:
            expected = self.plan.ranks if name == TOP else None
            self.worlds[name] = MpiWorld(expected, self.launcher, spares)
        world = self.worlds[name]
        if self.elastic is not None and name == TOP:
            taken = self.elastic.take(report)
            if taken is None:
                return
            report = taken
        first_failure = world.report(report, now)
        if first_failure:
            self._flush_reports(name)
            unexplained = (report.whole("code") or 0) < 0 or not report.text("why")
            over = self.ending or self.outcome.stopped  # which explains the failure
            if self.workers is not None and unexplained and not over:
                from shanty.runtime.diagnosis.link_check import QUICK, LinkCheck

                nodes = self.plan.attempt.nodes
                self._links = LinkCheck(nodes, 0, now, self.tell_host, QUICK)
                self._doubt = now + _DOUBT
        self.event("rank-" + report.event, report=report.values)
        changed: Dict[str, Any] = {"up": world.up, "joined": world.joined}
        changed["ranks"] = world.expected and world.expected - spares
        texts = (each.not_finite.text() for each in self.worlds.values())
        changed["not_finite"] = "; ".join(filter(None, texts))
        if world.complete and self.status_file.status.state is State.STARTING:
            verdict = misplaced(self.plan, world) if name == TOP else None
            if verdict is not None:
                self._condemn(verdict, FAILURE_GRACE)
            else:
                changed["state"] = State.RUNNING
                if self.plan.limits.elastic is not None:
                    from shanty.runtime.controller.elastic import Elastic

                    least = self.plan.limits.elastic
                    self.elastic = Elastic(world, least, self.workers, self)
        self.status_file.update(**changed)

    def kill_hung(self, ranks: Sequence[int], why: str) -> None:
        """End ranks of an elastic run that hang."""
        if self.elastic is not None:
            self.elastic.kill(ranks, "it hung", why)

    def lost(self, failure: Failure, up: int, spares: int) -> None:
        """Report that an elastic run has lost ranks, unless it ends all of them itself."""
        if self.ending:
            return
        failure = self.outcome.with_lines(failure)
        self.event("lost", failure=failure.__dict__)
        at = time.strftime("%H:%M:%S")
        why = f": {failure.why}" if failure.why else ""
        texts = (*self.status_file.status.lost, f"{failure.what}{why} ({at})")
        self.status_file.write(lost=texts, up=up, spares=spares, stalled=None)

    def returned(self, text: str, up: int, spares: int) -> None:
        """Report that a place in an elastic run was taken again, and that `up` are there now."""
        text = f"{text} ({time.strftime('%H:%M:%S')})"
        self.event("returned", text=text)
        known = (*self.status_file.status.returned, text)
        self.status_file.write(returned=known, up=up, spares=spares)

    def _flush_reports(self, name: str) -> None:
        """Ask every host for the reports of its ranks from before a failure in this world."""
        others = self.workers.live_names() if self.workers is not None else []
        self.worlds[name].await_flush([self.plan.lead.name, *others])
        self.tell(messages.Flush(name))

    def judge(self, now: float) -> None:
        """End what has to end: a world with a verdict, or the run at one of its limits.

        A lost host comes first: the ranks on other hosts fail because of it.
        """
        if self.workers is not None:
            top = self.worlds.get(TOP)
            over = top is not None and (top.deserted if self.elastic is not None else top.is_over)
            lost = self.workers.judge(now, launcher_is_done=over)
            if lost is not None and not self.ending:
                self._condemn_launch(lost, 0.0)
        if self.elastic is not None:
            self.elastic.judge(now)
        removed = self.folder.failure() if not self.ending else None
        if removed is not None:
            self._condemn_launch(removed, FAILURE_GRACE)
        for name, world in self.worlds.items():
            world.launcher_over = name == TOP and self.outcome.launcher is not None
            verdict = world.verdict(now) if name not in self.outcome.worlds else None
            if verdict is not None and not self._links_are_in_doubt(now):
                failure = self.outcome.world_ended(name, world, verdict, self._links)
                self.event("failure", failure=failure.__dict__)
                self.ending = self.ending or name == TOP
                self.tell(messages.End(None if name == TOP else name, self.plan.limits.grace))
        limit = self.plan.limits.time_limit
        if limit is not None and now > self.run_began + limit and not self.ending:
            stuck = self.stalls.standstill(self.view(), now)
            failure = Failure(
                f"the time limit of {limit:g} s was reached",
                stuck.what if stuck is not None else "",
                "give it more time with --time-limit; if it was stuck, "
                + (stuck.fix if stuck else "`shanty stacks` shows where while it is on"),
            )
            self._condemn(Verdict(failure, TIME_LIMIT_EXIT), self.plan.limits.grace)
        starts = not self.ending and self.outcome.launcher is None
        starts = starts and self.elastic is None  # the others do not wait for ranks that come back
        if starts and (missing := late(self.plan, self.worlds, now, self.began)) is not None:
            self._condemn(missing, 0.0)
        self._judge_alone(now)
        self._watch_launcher(now)

    def _judge_alone(self, now: float) -> None:
        """Report, or end, a run whose ranks each train by themselves."""
        if self.plan.limits.alone == "ok" or self.ending:
            return
        found = [each for each in (alone(w, now) for w in self.worlds.values()) if each is not None]
        if found and self.plan.limits.alone == "stop":
            self._condemn(Verdict(found[0], WorldError.exit_code), FAILURE_GRACE)
        elif (self.status_file.status.alone is None) != (not found):
            self.status_file.write(alone=found[0] if found else None)
            self.event("alone", failure=found[0].__dict__ if found else None)

    def _links_are_in_doubt(self, now: float) -> bool:
        """True while a check runs whether a rank failed because of the network."""
        if self._links is None or self._links.over:
            return False
        self._links.tick(now)
        if now > self._doubt:
            self._links.end()
        return not self._links.over

    def _check_store(self) -> None:
        """Have the hosts check their files where damage to the files may be the cause."""
        if self.workers is not None and not self.workers.all_live:
            return  # a host was lost, which is cause enough
        if self.outcome.may_be_damage():
            from shanty.runtime.diagnosis.store_check import StoreCheck

            self._store = StoreCheck(self.plan, self.tell_host)
            while not self._store.over:
                self._service()

    def _watch_launcher(self, now: float) -> None:
        """End a launcher that goes on after its last rank has ended."""
        if self.ending and not self.deserted and TOP in self.worlds and self.worlds[TOP].deserted:
            self.deserted = True
            explains = self.outcome.needs_launchers_words(self.worlds[TOP])
            self.tell(messages.End(None, FAILURE_GRACE if explains else 0.0))
        for name, world in self.worlds.items():
            stuck = self.elastic is not None and self.elastic.is_stuck  # it ends by no other way
            hung = STUCK if stuck else HUNG
            if self.outcome.launcher is None and not self.ending and world.is_outlived(now, hung):
                self.agent.send(messages.EndHungLauncher(name))

    def _condemn_launch(self, failure: Failure, grace: float) -> None:
        """End the run because the launch itself failed, unless another cause is known."""
        self._condemn(Verdict(failure, LaunchError.exit_code), grace)

    def _condemn(self, verdict: Verdict, grace: float) -> None:
        failure = self.outcome.condemn(verdict)
        if failure is not None:
            self.event("failure", failure=failure.__dict__)
        self._end(grace)

    def _end(self, grace: float) -> None:
        self.ending = True
        self.tell(messages.End(None, grace))
        if self.workers is not None and not self.workers.has_launched:
            # No launcher will be started.
            self.agent.send(messages.Leave(comes_again=False))

    def _advance(self, workers: WorkerLinks, poll: select.poll) -> None:
        """Do the next step of the launch once all hosts have done the previous one."""
        order = workers.advance(poll, ending=self.ending)
        if isinstance(order, messages.Prepare):
            self.tell(order)
        elif order is not None:
            self.agent.send(order)

    def _dismiss(self, workers: WorkerLinks, *, comes_again: bool) -> None:
        """Let the workers send the rest of their files, unless the run is stopped meanwhile."""
        before = self.outcome.stopped
        failure = workers.dismiss(
            comes_again=comes_again, interrupted=lambda: self.outcome.stopped != before
        )
        if failure is not None and self.outcome.is_open:
            self._condemn_launch(failure, 0.0)
        workers.close()

    def view(self) -> RunView:
        """Return the run as it is now."""
        status = self.status_file.status
        return RunView(status.state, status.started, self.ending, self.worlds)

    def event(self, kind: str, **more: object) -> None:
        """Write down that something happened."""
        self.status_file.event(kind, **more)

    def turn(self) -> None:
        """Do what cannot wait while the workers send their last files."""
        self.heartbeat.turn()
        self.answer_asks()

    def tell(self, order: Order) -> None:
        """Give an order to the node agents of all hosts."""
        self.agent.send(order)
        if self.workers is not None:
            self.workers.send(order)

    def tell_host(self, host: str, order: Order) -> None:
        """Give an order to the node agent of one host."""
        if host == self.plan.lead.name:
            self.agent.send(order)
        elif self.workers is not None:
            self.workers.send_to(host, order)

    def _told_to_end(self) -> None:
        """Stop on SIGTERM, which a user or a queue sends; the queue is asked why."""
        if self.queue_ending is None:
            self.queue_ending = QueueEnding()
        self._stop(grace(5.0))

    def _stop(self, grace: float) -> None:
        new = self.outcome.stop()
        if self.outcome.failure is not None:
            self._end(grace)  # it is ending already, for a reason that must not be lost
        elif new or grace == 0:
            self.event("stopping", why="stopped", grace=grace)
            self._end(grace)

    def answer_asks(self) -> None:
        """Serve the requests that lie in the run directory."""
        for path in sorted(self.run_dir.asks.glob("*.ask")):
            ask = read_json(path) or {}
            with contextlib.suppress(OSError):
                path.unlink()
            reply: Dict[str, Any] = {"ok": True}
            if ask.get("kind") == "stop":
                self._stop(float(ask.get("grace", self.plan.limits.grace)))
            elif ask.get("kind") == "stacks":
                answers = self.ask_stacks()
                reply["stacks"] = [*answers, *absent(self.plan.ranks, self.worlds, answers)]
            elif ask.get("kind") == "warn":
                reply.update(self._warn(int(ask.get("signal", 0))))
            else:
                reply = {"ok": False, "error": f"unknown request {ask.get('kind')!r}"}
            with contextlib.suppress(OSError):
                write_json(path.with_suffix(".reply"), reply)

    def _warn(self, number: int) -> Dict[str, List[int]]:
        """Pass a signal on to the ranks that catch it; return which do, and which do not."""
        self._warned = {}
        self.tell(messages.Warn(number))
        hosts = {self.plan.lead.name, *(self.workers.live_names() if self.workers else ())}
        until = time.monotonic() + _WARNED
        while self.agent.open and hosts - self._warned.keys() and time.monotonic() < until:
            self._service()
        answers = self._warned.values()
        found = {
            "reached": sorted(rank for each in answers for rank in each.reached),
            "without": sorted(rank for each in answers for rank in each.without),
        }
        self.event("warned", signal=number, **found)
        return found

    def ask_stacks(self) -> List[Dict[str, Any]]:
        """Returns the stacks of every rank, as `collect` has them, with the MPI call it is in."""
        name = str(time.time_ns())
        self.stalls.forget_looks()
        self.tell(messages.AskStacks(name))
        answers = collect(self.run_dir, alive(self.worlds), name, self._service)
        return with_native(answers, self.stalls.newest_states())

    def active(self, text: str) -> None:
        """Note what the ranks of a silent run do; "": the run is no longer silent."""
        self.status_file.update(activity=text)

    def stalled(self, since: Optional[float], verdict: Optional[Verdict] = None) -> None:
        """Note since when no rank makes progress (None: they do again); a verdict ends the run."""
        self.status_file.write(stalled=since)
        if verdict is not None:
            failure = self.outcome.with_lines(verdict.failure)
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

    def _without_agent(self, agent: int) -> None:
        """End the children of the node agent, which died: they are ours now."""
        host = self.plan.lead.name
        if self.plan.lead.container and not self.silence.over:
            from shanty.runtime.controller import container_lead

            began = host in self.outcome.settings
            failure = container_lead.end_of(self.run_dir, self.plan, agent, began=began)
            self.outcome.agents_lost(failure)
        elif self.outcome.failure is None:
            failure = Failure(
                f"the node agent on {host} (pid {agent}) {self._end_of(agent)}",
                "without it nothing watches the ranks, so they were ended",
                "see `shanty logs --agent`; run again",
                host=host,
                cause=HOST,
            )
            self.outcome.agents_lost(failure)
        if self.workers is not None:
            self.workers.send(messages.End(None, 0.0))
        ssh = self.workers.pids() if self.workers is not None else set()
        end_container(self.plan)  # before the processes of its engine, which are ours as well
        end_all(lambda: [e for e in platform.descendants(os.getpid()) if e.pid not in ssh])
        sweep_after(self.plan)

    def _end_of(self, agent: int) -> str:
        """Returns how the node agent ended."""
        if self.silence.over:
            return f"was frozen: it has sent nothing for {self.silence.seconds:.0f} s"
        with contextlib.suppress(ChildProcessError):
            code = os.waitstatus_to_exitcode(os.waitpid(agent, 0)[1])
            if code < 0:
                return f"was killed by {signal_name(-code)}"
        return "ended by an error of its own"

    def _try_again(self) -> bool:
        """Plan another attempt and report it; False where the remaining hosts are not enough."""
        from shanty.runtime.controller import attempts

        failure = self.outcome.failure
        assert failure is not None
        try:
            plan = attempts.plan_again(self.run_dir, self.plan)
        except (ShantyError, OSError, ValueError, KeyError, TypeError) as error:
            self.outcome.no_other_attempt(str(error))
            return False
        number, most = plan.attempt.number, plan.limits.retries + 1
        hosts = [node.name for node in plan.attempt.nodes]
        reason = f"attempt {number} of {most} on {', '.join(hosts)}: {failure.what}"
        self.event("attempt", number=number, hosts=hosts, failure=failure.__dict__)
        self.status_file.write(
            state=State.STARTING, attempt=number, reason=reason, ranks=plan.trainers, up=0,
            joined=0, spares=plan.limits.spares, stalled=None,
        )  # fmt: skip
        return True

    def _finish(self) -> None:
        """Write down how the run ended."""
        end_waiting(self.run_dir, self.plan)
        if (read_json(self.run_dir.job) or {}).get("profile"):
            from shanty.runtime.controller import profile

            clocks = self.workers.clocks() if self.workers is not None else {}
            profile.write(self.run_dir, self.plan.lead.name, clocks)
        times = {"ended": time.time(), "lasted": time.monotonic() - self.run_began}
        answer = self.queue_ending.answer() if self.queue_ending is not None else {}
        self.status_file.write(**self.outcome.status_changes(answer, times))
