"""The node agent: the parent of all processes that a run starts on a host.

On the lead host it starts the launcher, on others the launcher's daemons. It passes the reports of
the ranks on to the controller, and ends all processes when the controller says so or falls silent,
or when the launcher has ended. Orphans of the run become its children, so that none is missed. When
all processes have ended it cleans up and leaves.

Modules that are needed only later are imported later: the ranks wait for this one to start.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from shanty.runtime import addresses, foreign_variables, messages, platform
from shanty.runtime.channel import Channel
from shanty.runtime.errors import ShantyError
from shanty.runtime.frames import Output
from shanty.runtime.heartbeat import BEAT, ELASTIC_BEAT, SILENCE, FailureDetector, Heartbeat
from shanty.runtime.node.background import Background, load
from shanty.runtime.node.launcher import Launcher
from shanty.runtime.node.launcher_watch import LauncherWatch
from shanty.runtime.node.memory_kills import MemoryKills
from shanty.runtime.node.process_kinds import is_tracker, serves_launcher
from shanty.runtime.node.rank_program import RankProgram, library_flavour
from shanty.runtime.node.rank_words import RankWords
from shanty.runtime.plan import Plan
from shanty.runtime.rank.reports import open_reports
from shanty.runtime.rank_start import environment
from shanty.runtime.rundir import CONTINUES, WARM, RunDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.channel import Received
    from shanty.runtime.diagnosis.activity import ActivitySampler
    from shanty.runtime.diagnosis.link_probe import LinkProbe
    from shanty.runtime.diagnosis.progress_sampler import ProgressSampler
    from shanty.runtime.diagnosis.stacks import StackRequest
    from shanty.runtime.diagnosis.tcp_connections import KeepAlive
    from shanty.runtime.messages import LinkOrder
    from shanty.runtime.node.fork_server import ForkServer
    from shanty.runtime.node.resource_sampler import ResourceSampler

TRACKERS = 2.0  # seconds in which resource trackers may remove what the others have left
LINGER = 2.0  # seconds that what a launcher left running may go on after it
PLAIN = 2.0  # seconds without a libmpi after which a rank counts as no MPI program (so far)
_UNSAMPLED = 0.4  # seconds until the load of the host is measured; the ranks start first
_TICK = 0.25
_TOP = "0"  # the world of the plan's launcher
LATER = tuple(  # what is imported where it is needed
    f"shanty.runtime.{name}"
    for name in (
        *("diagnosis.activity", "cleanup", "diagnosis.link_probe", "diagnosis.progress_sampler"),
        *("node.resource_sampler", "diagnosis.store_check", "diagnosis.tcp_connections"),
        *("lines.container_engine", "mpi.detect", "mpi.flavours", "mpi.processes"),
    )
)
# wait(2): not the ranks that a thread of ours has stopped to read their stacks
_OWN_CHILDREN = 0x20000000 if platform.LINUX else 0
_PROMPT = 0.05  # the same while ranks are asked for their stacks, or the run ends
_LOOKS = (0.3, 0.8, 1.5, 2.1, 4.0, 8.0, 20.0, 60.0)  # seconds after its start: has it an MPI?


class NodeAgent:
    """One host's part of one run. `pid` is the controller's, where it runs on this host."""

    def __init__(self, run: RunDir, plan: Plan, controller: Channel, pid: int = 0) -> None:
        self.run_dir = run
        self.plan = plan
        self.controller = controller
        self.born = time.time()
        self.launcher = Launcher(run, plan)
        self._parents = LauncherWatch()
        self.last_joined = 0.0  # when the last rank came through MPI_Init; 0 if one may still
        self.programs: Dict[Tuple[str, int], RankProgram] = {}
        self.ending: List[Tuple[float, Optional[str]]] = []  # (when to SIGKILL, which world)
        self.leftovers: Set[str] = set()
        self.engines: Set[str] = set()  # by which ranks have started containers
        self.silence = FailureDetector(pid)  # the controller's
        self.linger: Optional[float] = None
        self.leaving = False  # the controller has no more orders
        self.comes_again = False  # for another attempt
        self.activity: Optional[ActivitySampler] = None  # while it was silent the last time
        self.stacks: List[StackRequest] = []  # under way
        self.watch: Optional[ProgressSampler] = None  # while the run is silent
        self.next_look = self.between_looks = 0.0
        self.resources: Optional[ResourceSampler] = None
        self._unsampled_until = time.monotonic() + _UNSAMPLED
        self.keep_alive: Optional[KeepAlive] = None  # of a run over several hosts
        self.links: Optional[LinkProbe] = None  # once they were to be tried
        self.environment: Dict[str, str] = {}  # for what starts here, once the host is ready
        self.words = RankWords(run) if plan.limits.elastic is not None else None
        self.fork_server: Optional[ForkServer] = None  # of a run with --warm
        self._background = Background()
        self._poll = select.poll()
        self._output: Output  # of the launcher, or of its daemons
        self._fifo = -1  # of the ranks' reports
        self._rest = b""
        self._memory_kills = MemoryKills(time.monotonic())

    @property
    def over(self) -> bool:
        """True when nothing more is to be started here."""
        alone = not self.controller.open and not self.launcher.pid
        return self.leaving or alone or self.launcher.code is not None

    def run(self) -> None:
        """Live until all that this run started here is gone."""
        wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the controller decides, and sees a SIGKILL
        os.mkfifo(self.run_dir.reports, 0o600)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        self._fifo = os.open(self.run_dir.reports, flags)
        keep = open_reports(str(self.run_dir.reports))  # so that the FIFO never ends
        platform.adopt_orphans()
        self.begin()
        # While the launcher is at work: the modules that the end needs at once.
        from shanty.runtime.cleanup import drop_commits, drop_commits_later, made_between, sweep

        for fd in (wake, self._fifo, self.controller.source):
            self._poll.register(fd, select.POLLIN)
        load(LATER)
        every = BEAT if self.words is None else ELASTIC_BEAT
        heartbeat = Heartbeat(lambda: self.controller.send(messages.Beat(time.monotonic())), every)
        while True:
            heartbeat.turn()
            pause = _PROMPT if self.stacks or self.ending else _TICK
            for fd, _ in self._poll.poll(pause * 1000):
                if fd == wake:
                    os.read(wake, 512)
                elif fd == self._fifo:
                    self._hear()
                elif fd == self.controller.source:
                    if not self._obey():
                        self._poll.unregister(fd)
                elif not self._output.pump(fd):
                    self._poll.unregister(fd)
            self._reap()
            self._tick(time.monotonic())
            self.launcher.show_partial()
            if self.over and self._is_empty():
                break
        self._hear()
        os.close(keep)
        self.launcher.finish()
        if self.engines:
            from shanty.runtime.cleanup import end_containers

            end_containers(sorted(self.engines), self.plan.lead.run_dir)
        until = self.last_joined or time.time()
        self.leftovers |= made_between(self.plan.leftovers.temporary, self.born, until)
        removed = sweep(
            self.plan.scratch, self.leftovers, self.plan.leftovers.shared_memory, self.born
        )
        keep = self.controller.open and self._expects_another()
        if not keep:
            deserted = not self.leaving and not self.controller.open and self.plan.may_try_again
            (drop_commits_later if deserted else drop_commits)(self.plan.id)
        if self.fork_server is not None:
            self.fork_server.leave(keep=keep)
        self.leave(removed)
        heartbeat.end()

    def _expects_another(self) -> bool:
        """Return True where another attempt may follow; on the lead host the controller decides."""
        return self.comes_again or (self.plan.may_try_again and bool(self.launcher.code))

    def _is_empty(self) -> bool:
        """True when no process that this run started here is left."""
        own = self.resources.end() if self.resources is not None else 0
        return all(entry.pid == own for entry in platform.descendants(os.getpid()))

    def begin(self) -> None:
        """Start the launcher, unless other hosts have to be made ready first."""
        if self.plan.workers:
            return
        shared = dict(self.plan.attempt.shared)
        if "MASTER_PORT" not in shared:
            attempt, node = self.plan.attempt, self.plan.lead
            ports = addresses.ports_of_host(attempt, node)
            shared.update(addresses.variables(attempt, {node.number: ports}))
        if self.prepare(shared):
            self.launch(self.plan.attempt.environment)
        else:
            self.leaving = True

    def launch(self, environment: Mapping[str, str]) -> None:
        """Start the launcher with `environment` added to that of this host."""
        error = self.launcher.start({**self.environment, **environment})
        self.follow(self.launcher.output)
        if error:
            self.controller.send(messages.LauncherEnded(127, error))

    def follow(self, output: Output) -> None:
        """Take what comes on these pipes, too."""
        self._output = output
        for fd in output.streams:
            self._poll.register(fd, select.POLLIN)

    def leave(self, removed: Sequence[str]) -> None:
        """Send the last message to the controller."""
        self.controller.send(messages.Gone(tuple(removed)))
        self.controller.drain(SILENCE)

    def _hear(self) -> None:
        """Take the reports that the ranks have sent and pass them on to the controller."""
        try:
            data = os.read(self._fifo, 1 << 20)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):  # what is not a report is dropped
                self._take(messages.report_of(json.loads(line)))

    def _take(self, report: messages.Report) -> None:
        """Take a rank's report and pass it on to the controller."""
        event = report.event
        if event == "container":
            self.engines.add(report.text("engine"))
            return
        key = (report.world, report.rank)
        program = self.programs.get(key)
        if event == "started" or program is None:
            program = self.programs[key] = RankProgram(report, time.monotonic())
        program.add(report)
        if event == "started":
            self._parents.note(program.wrapper)
        program.done = program.done or event in ("joined", "exited")
        program.failed = program.failed or event == "failed"
        if event == "joined":
            self.last_joined = time.time()
        elif event in ("started", "spawning"):
            self.last_joined = 0.0
        if event in ("loading", "linked"):
            report = report.extended(flavour=library_flavour(report.text("path")))
        elif event == "exited":
            killed = report.whole("code") == -signal.SIGKILL
            if killed and self._memory_kills.has(report.whole("pid") or 0):
                report = report.extended(oom=platform.usable_memory())
            program.pids.clear()
            lost = self._parents.ended(program.wrapper, orphaned=report.flag("orphaned"))
            report = report.extended(launcher=lost)
        self._send_report(report)

    def _look_for_orphans(self) -> None:
        """Report the ranks whose launcher, or its daemon here, or `rank.exec`, is gone."""
        lost = [each for each in self.programs.values() if self.words and each.is_unwrapped]
        if lost:
            self._hear()  # perhaps it has reported its end
        for program in [each for each in lost if each.pids]:
            program.kill()
            self._take(program.killed())
        programs = {program.wrapper: program for program in self.programs.values()}
        for pid, launcher in self._parents.lost() if not self.ending else ():
            self._send_report(programs[pid].report("orphaned", launcher=launcher))

    def _send_report(self, report: messages.Report) -> None:
        self.controller.send(messages.RankReport(report, time.monotonic()))

    def _obey(self) -> bool:
        """Carry out the orders of the controller; False when it has gone."""
        for order in self.controller.receive():
            self.silence.heard()
            if isinstance(order, messages.End):
                self._end(order.grace, order.world)
            elif isinstance(order, messages.AskStacks):
                self._look_around(order.name)
            elif isinstance(order, messages.Warn):
                self._warn(order.signal)
            elif isinstance(order, messages.KillRanks):
                self._kill(order.ranks)
            elif isinstance(order, messages.TellRanks) and self.words is not None:
                here = {rank for world, rank in self._alive() if world == _TOP}
                self.words.add(here & set(order.ranks), order.word)
            elif isinstance(order, messages.Flush):
                self._reap()
                self._hear()
                self._look_for_orphans()
                self.controller.send(messages.Flushed(order.world))
            elif isinstance(order, messages.LookAtActivity):
                self._look_at_activity(afresh=order.afresh)
            elif isinstance(order, messages.Watch):
                self._watch(order.every, order.bound)
            elif isinstance(order, messages.Leave):
                self.leaving, self.comes_again = True, order.comes_again
            elif isinstance(order, messages.EndHungLauncher):
                self._end_hung(order.world)
            elif isinstance(order, (messages.Listen, messages.TryLinks, messages.StopListening)):
                self._try_links(order)
            elif isinstance(order, messages.CheckStore):
                self._check_store(order.paths)
            else:
                if isinstance(order, messages.Prepare):  # for a run over several hosts
                    from shanty.runtime.diagnosis.tcp_connections import KeepAlive

                    self.keep_alive = KeepAlive(self._pids)
                self.obey(order)
        if not self.controller.open:
            self._end(0.0, None)
        return self.controller.open

    def obey(self, order: Received) -> None:
        """Carry out the orders to the lead host: make it ready, then start the launcher."""
        if isinstance(order, messages.Prepare):
            self.prepare(order.variables)
        elif isinstance(order, messages.Launch):
            self.launch(order.environment)

    def prepare(self, shared: Mapping[str, str]) -> bool:
        """Make this host ready for ranks and report it; False where that is not possible."""
        if self.plan.lead.container or self.plan.lead.connection.get("kind") == "pod":
            self._look_at_limits()
        shared = {**shared, "SHANTY_STOP_GRACE": f"{self.plan.limits.grace:g}"}
        self.environment = environment(self.plan.lead.environment, shared, os.environ)
        if self.plan.scripted:
            from shanty.runtime.node.rank_script import prepare

            try:
                prepare(self.plan.lead, self.plan.scratch, shared)
                self._pretend_ssh()
            except (ShantyError, OSError) as error:
                self.controller.send(messages.Unready(str(error)))
                return False
        if CONTINUES in self.environment:
            from shanty.runtime.cleanup import take_over_commits

            take_over_commits(self.environment[CONTINUES], self.plan.id)
        if WARM in self.environment and platform.LINUX:
            from shanty.runtime.node.fork_server import ForkServer

            with contextlib.suppress(OSError):  # the ranks start as others do, and say so
                self.fork_server = ForkServer(self.run_dir, self.plan, self.environment)
        found = foreign_variables.settings(os.environ, self.plan.lead.environment.own)
        self.controller.send(messages.Ready(found))
        return True

    def _look_at_limits(self) -> None:
        """Change the MPI's settings where a container keeps ranks from each other's memory."""
        from shanty.runtime.mpi.flavours import FLAVOURS
        from shanty.runtime.node import cross_memory

        if cross_memory.may_be_denied() and not cross_memory.works():
            node = self.plan.lead
            settings = dict(FLAVOURS[node.mpi["flavour"]].without_cma)
            own = node.environment._replace(default={**settings, **node.environment.default})
            nodes = (node._replace(environment=own), *self.plan.workers)
            self.plan = self.plan._replace(attempt=self.plan.attempt._replace(nodes=nodes))

    def _pretend_ssh(self) -> None:
        """Put a fake ssh on PATH: Open MPI's daemons crash without ssh, but never call it."""
        folders = (self.environment.get("PATH") or os.environ.get("PATH", os.defpath)).split(":")
        if not any(os.access(os.path.join(folder, "ssh"), os.X_OK) for folder in folders):
            bin_folder = os.path.join(self.plan.scratch, "bin")
            os.mkdir(bin_folder)
            program = os.path.join(bin_folder, "ssh")
            with open(program, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\necho 'ssh is not installed here' >&2\nexit 127\n")
            os.chmod(program, 0o755)
            self.environment["PATH"] = os.pathsep.join([*folders, bin_folder])

    def _ask_stacks(self, name: str) -> None:
        from shanty.runtime.diagnosis.stacks import StackRequest

        pids: Dict[int, Set[int]] = {}  # by the rank's number, of all worlds
        for program in list(self.programs.values()):
            if program.pids:
                pids.setdefault(program.rank, set()).update(program.pids)
        request = StackRequest(self.run_dir, name, pids)
        if request.tick(time.monotonic()):  # the loop does the rest
            self.stacks.append(request)

    def _warn(self, number: int) -> None:
        """Pass a signal on to the ranks that catch it; it would end the others."""
        reached: Set[int] = set()
        alive = {rank: pids for (_, rank), pids in self._alive().items()}
        for rank, pids in alive.items():
            catching = {pid for pid in pids if platform.catches(pid, number)}
            if not catching:  # perhaps a program that a shell has started
                below = {entry.pid for pid in pids for entry in platform.descendants(pid)}
                catching = {pid for pid in below if platform.catches(pid, number)}
            for pid in catching:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                    reached.add(rank)
        without = tuple(sorted(alive.keys() - reached))
        self.controller.send(messages.Warned(tuple(sorted(reached)), without))

    def _kill(self, ranks: Sequence[int]) -> None:
        """End ranks that may be stopped, and so may what wraps them."""
        for rank in ranks:
            program = self.programs.get((_TOP, rank))
            if program is not None:
                program.kill()

    def _look_at_activity(self, *, afresh: bool) -> None:
        """Report to the controller what the ranks are busy with."""
        from shanty.runtime.diagnosis.activity import ActivitySampler

        if afresh or self.activity is None:
            self.activity = ActivitySampler()
        look, programs = self.activity.look, self._alive()
        self._background.do(lambda: self.controller.send(messages.Activity(look(programs))))

    def _alive(self) -> Dict[Tuple[str, int], Set[int]]:
        return {key: set(p.pids) for key, p in self.programs.items() if p.pids}

    def _check_store(self, paths: Sequence[str]) -> None:
        from shanty.runtime.diagnosis.store_check import damaged

        send = self.controller.send
        self._background.do(lambda: send(messages.StoreDamage(tuple(damaged(paths)))))

    def _watch(self, between_looks: Optional[float], bound: float) -> None:
        """Report every so many seconds whether the ranks move; None ends this."""
        from shanty.runtime.diagnosis.progress_sampler import ProgressSampler

        self.watch = None if between_looks is None else ProgressSampler(self.run_dir, bound)
        self.next_look, self.between_looks = 0.0, between_looks or 0.0

    def _sample(self, now: float) -> None:
        """Report from time to time how busy this host is."""
        if now < self._unsampled_until or not platform.LINUX:
            return
        try:
            from shanty.runtime.node.resource_sampler import ResourceSampler

            if self.resources is None:
                self.resources = ResourceSampler(now)
            sample = self.resources.tick(now)
        except (ImportError, OSError, ValueError) as error:  # the run goes on, watched or not
            print(f"no samples of this host: {error}", file=sys.stderr, flush=True)
            self._unsampled_until = float("inf")
            return
        if sample is not None:
            self.controller.send(messages.Sample(sample, time.monotonic()))

    def _pids(self) -> List[int]:
        """Return the processes of the run on this host: the ranks' and the launcher's."""
        return [entry.pid for entry in platform.descendants(os.getpid())]

    def _try_links(self, order: LinkOrder) -> None:
        from shanty.runtime.diagnosis.link_probe import LinkProbe

        if self.links is None:
            environ = {**os.environ, **self.environment}
            self.links = LinkProbe(self.plan, environ, self.controller.send)
        self.links.obey(order, self._pids)

    def _look_around(self, stacks: str = "") -> None:
        """Report for every rank where it stands and what it does.

        stacks: the name of a request for their stacks. It comes second, as it disturbs the ranks.
        """
        from shanty.runtime.diagnosis.progress_sampler import ProgressSampler

        watch, alive = self.watch or ProgressSampler(self.run_dir), self._alive()

        def look() -> None:
            self.controller.send(watch.look(alive, closely=bool(stacks)))
            if stacks:
                self._ask_stacks(stacks)

        self._background.do(look)
        self.next_look = time.monotonic() + self.between_looks

    def _end(self, grace: float, world: Optional[str]) -> None:
        """Send SIGTERM to a world's ranks (None: the run's), and SIGKILL `grace` seconds later."""
        from shanty.runtime.cleanup import shared_memory_of

        pids = [entry.pid for entry in self._members(None)]
        self.leftovers |= shared_memory_of(pids, self.born)
        if grace > 0:
            programs = [p for p in self.programs.values() if world in (None, p.world)]
            for pid in [pid for program in programs if not program.failed for pid in program.pids]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            if not programs and world is None and self.launcher.code is None and self.launcher.pid:
                os.kill(self.launcher.pid, signal.SIGTERM)
        self.ending.append((time.monotonic() + grace, world))

    def _end_hung(self, world: str) -> None:
        """End a launcher that has outlived its ranks, unless they have left something behind."""
        launcher = int(world) if world.isdigit() and world != "0" else self.launcher.pid
        ended = {launcher, *(p.wrapper for p in self.programs.values() if not p.pids)}
        if launcher and not any(
            entry.pid not in ended and not serves_launcher(entry.pid)
            for entry in platform.descendants(launcher)
        ):
            self.controller.send(messages.LauncherHung(world))
            self._end(0.0, world if world != "0" else None)

    def _members(self, world: Optional[str]) -> List[platform.Process]:
        """Return the processes of a world (None: of the run) on this host, with its launcher."""
        leader = (self.launcher.pid,) if self.launcher.pid else ()
        everything = platform.descendants(os.getpid(), leader)
        if world is None:
            return everything
        wanted = {
            pid
            for program in self.programs.values()
            if program.world == world
            for pid in (*program.pids, program.wrapper)
        }
        if self.launcher.pid and world.isdigit() and world != "0":
            wanted.add(int(world))  # on other hosts that is someone else's number
        return [entry for entry in everything if entry.pid in wanted]

    def _tick(self, now: float) -> None:
        """Do what is due by the clock."""
        self.controller.flush()
        if self.words is not None:
            self.words.tick()
            for rank in self.words.deaf(now):
                self._send_report(self.programs[_TOP, rank].report("deaf"))
        self.tick()
        self._memory_kills.tick(now)
        if self.controller.open and self.silence.is_over(now, SILENCE):
            self.controller.open = False
            self._end(0.0, None)
        self._look_for_orphans()
        for when, world in list(self.ending):
            if now >= when:
                members = self._members(world)
                others = [entry for entry in members if not is_tracker(entry.pid)]
                # Once only a tracker is left, it removes what the others left behind, and ends.
                if others or now >= when + TRACKERS:
                    platform.send(others or members, signal.SIGKILL)
                if not members:
                    self.ending.remove((when, world))
        for program in self.programs.values():
            with contextlib.suppress(ImportError):  # a rank removed shanty's files
                self._look(program, now)
        if self._background.is_idle:
            if self.keep_alive is not None and self.keep_alive.is_due(now):
                keep_alive = self.keep_alive
                self._background.do(lambda: keep_alive.tick(now))
            if self.watch is not None and now >= self.next_look:
                self._look_around()
        for request in list(self.stacks):  # the background adds some
            if not request.tick(now):
                self.stacks.remove(request)
        if not self.over:
            self._sample(now)
        elif not self.ending:
            if self.linger is None:
                self.linger = now + LINGER
            elif now > self.linger:
                self._end(0.0, None)

    def tick(self) -> None:
        """Do what else is due by the clock."""

    def _look(self, program: RankProgram, now: float) -> None:
        """See from outside whether a program that does not report it has loaded an MPI."""
        if program.done or program.looks >= len(_LOOKS):
            return
        if now < program.started + _LOOKS[program.looks]:
            return
        from shanty.runtime.mpi.flavours import starts

        program.looks += 1
        mapped = {path for pid in program.pids for path in platform.mapped_files(pid)}
        found = {path: library_flavour(path) for path in sorted(mapped) if "/libmpi" in path}
        ours = self.plan.lead.mpi["flavour"]
        # A program may have mapped two MPIs: it counts whether one of them fits.
        for path in sorted(filter(found.get, found), key=lambda p: not starts(ours, found[p])):
            program.done = True
            self._send_report(program.report("mapped", path=path, flavour=found[path]))
            return
        if now > program.started + PLAIN:
            self._send_report(program.report("plain"))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | _OWN_CHILDREN)
            except ChildProcessError:
                return
            if not pid:
                return
            if not os.WIFSTOPPED(status):
                self.child_ended(pid, os.waitstatus_to_exitcode(status))

    def child_ended(self, pid: int, code: int) -> None:
        """Note the end of a child: the launcher, or an orphan."""
        if pid == self.launcher.pid:
            self.launcher.code = code
            self.controller.send(messages.LauncherEnded(code))
