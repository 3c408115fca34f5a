"""The node agent: the parent of all that a run starts on a host, and the end of it.

On the lead host it starts the launcher, on others the launcher's daemons. It hears the ranks,
tells the controller, and ends everything when it is told to, when the launcher is done, or when the
controller falls silent. Orphans of the run become its children, so nothing gets away. When all is
gone it sweeps up and leaves.

Modules that are needed only later are imported later: the ranks wait for this one to start.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from shanty.runtime import addresses, foreign, platform
from shanty.runtime.agent.background import Background, load
from shanty.runtime.agent.channel import Channel, decode_reports
from shanty.runtime.agent.heartbeat import FailureDetector, Heartbeat
from shanty.runtime.agent.launcher import Launcher
from shanty.runtime.errors import ShantyError
from shanty.runtime.frames import Output
from shanty.runtime.plan import Plan
from shanty.runtime.rank.reports import open_reports
from shanty.runtime.rank_start import environment
from shanty.runtime.rundir import RunDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.agent.activity import RankActivity
    from shanty.runtime.agent.link_probe import LinkProbe
    from shanty.runtime.agent.progress_sampler import ProgressSampler
    from shanty.runtime.agent.resources import ResourceSampler
    from shanty.runtime.agent.stacks import StackRequest
    from shanty.runtime.agent.tcp_connections import KeepAlive

SILENCE = 10.0  # seconds without a word from the controller after which its ranks are ended
TRACKERS = 2.0  # seconds in which resource trackers may remove what the others have left
LINGER = 2.0  # seconds that what a launcher left running may go on after it
PLAIN = 2.0  # seconds without a libmpi after which a rank counts as no MPI program (so far)
_UNSAMPLED = 0.4  # seconds after which it is measured how busy the host is; first the ranks start
_TICK = 0.25
LATER = tuple(  # what is imported where it is needed
    f"shanty.runtime.{name}"
    for name in (
        *("agent.activity", "agent.cleanup", "agent.link_probe", "agent.progress_sampler"),
        *("agent.resources", "agent.store_check", "agent.tcp_connections"),
        *("mpi.detect", "mpi.flavours", "mpi.processes"),
    )
)
# wait(2): not the ranks that a thread of ours has stopped for a look
_OWN_CHILDREN = 0x20000000 if platform.LINUX else 0
_PROMPT = 0.05  # the same while ranks are asked for their stacks
_LOOKS = (0.3, 0.8, 1.5, 2.1, 4.0, 8.0, 20.0, 60.0)  # seconds after its start: has it an MPI?


class _Program:
    """A rank's program on this host: which processes, and whether it loaded an MPI."""

    def __init__(self, report: Mapping[str, Any], now: float) -> None:
        self.report = {key: report[key] for key in ("rank", "world")}
        self.pids: Set[int] = set()
        self.wrapper = 0
        self.failed = False  # it is ending by itself, which takes a moment
        self.started = now
        self.looks = 0
        self.done = False

    def add(self, report: Mapping[str, Any]) -> None:
        """Learn a process of the program; `exec` only wraps it, and passes signals on itself."""
        if "pid" in report:
            self.pids.add(int(report["pid"]))
        if "exec" in report:
            self.wrapper = int(report["exec"])


class NodeAgent:
    """One host's part of one run. `pid` is the controller's, where that is on this host, too."""

    def __init__(self, run: RunDir, plan: Plan, controller: Channel, pid: int = 0) -> None:
        self.run_dir = run
        self.plan = plan
        self.controller = controller
        self.born = time.time()
        self.launcher = Launcher(run, plan)
        self.last_joined = 0.0  # when the last rank came through MPI_Init; 0 if one may still
        self.programs: Dict[Tuple[str, int], _Program] = {}
        self.ending: List[Tuple[float, Optional[str]]] = []  # (when to SIGKILL, which world)
        self.leftovers: Set[str] = set()
        self.engines: Set[str] = set()  # by which ranks have started containers
        self.silence = FailureDetector(pid)  # the controller's
        self.linger: Optional[float] = None
        self.leaving = False  # the controller wants nothing more of us
        self.comes_again = False  # for another attempt
        self.activity: Optional[RankActivity] = None  # while it was silent the last time
        self.stacks: List[StackRequest] = []  # under way
        self.watch: Optional[ProgressSampler] = None  # while the run is silent
        self.next_look = self.between_looks = 0.0
        self.resources: Optional[ResourceSampler] = None
        self._unsampled_until = time.monotonic() + _UNSAMPLED
        self.keep_alive: Optional[KeepAlive] = None  # of a run over several hosts
        self.links: Optional[LinkProbe] = None  # once they were to be tried
        self.environment: Dict[str, str] = {}  # for what starts here, once the host is ready
        self._background = Background()
        self._poll = select.poll()
        self._output: Output  # of the launcher, or of its daemons
        self._fifo = -1  # of the ranks' reports
        self._rest = b""
        self._oom = platform.oom_kills()

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
            signal.signal(number, signal.SIG_IGN)  # the controller decides; SIGKILL is heard by it
        os.mkfifo(self.run_dir.reports, 0o600)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        self._fifo = os.open(self.run_dir.reports, flags)
        keep = open_reports(str(self.run_dir.reports))  # so that the FIFO never ends
        platform.adopt_orphans()
        self.begin()
        # While the launcher is at work: what the end will need at once.
        from shanty.runtime.agent.cleanup import made_between, sweep

        for fd in (wake, self._fifo, self.controller.source):
            self._poll.register(fd, select.POLLIN)
        load(LATER)
        heartbeat = Heartbeat(lambda: self.controller.send(sent=time.monotonic()))
        while True:
            heartbeat.turn()
            pause = _PROMPT if self.stacks else _TICK
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
            from shanty.runtime.agent.cleanup import end_containers

            end_containers(sorted(self.engines), self.plan.lead.run_dir)
        until = self.last_joined or time.time()
        self.leftovers |= made_between(self.plan.leftovers.temporary, self.born, until)
        removed = sweep(
            self.plan.scratch, self.leftovers, self.plan.leftovers.shared_memory, self.born
        )
        self.leave(removed)
        heartbeat.end()

    def _is_empty(self) -> bool:
        """True when nothing that this run started here is left."""
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
            self.controller.send(launcher=127, error=error)

    def follow(self, output: Output) -> None:
        """Take what comes on these pipes, too."""
        self._output = output
        for fd in output.streams:
            self._poll.register(fd, select.POLLIN)

    def leave(self, removed: Sequence[str]) -> None:
        """The last word to the controller."""
        self.controller.send(gone=list(removed))
        self.controller.drain(SILENCE)

    def _hear(self) -> None:
        """Take the reports that the ranks have sent and pass them on to the controller."""
        try:
            data = os.read(self._fifo, 1 << 20)
        except BlockingIOError:
            return
        reports, self._rest = decode_reports(self._rest, data)
        for report in reports:
            if report.get("event") == "container":
                self.engines.add(str(report["engine"]))
                continue
            key = (str(report.get("world")), int(report["rank"]))
            program = self.programs.get(key)
            if report.get("event") == "started" or program is None:
                program = self.programs[key] = _Program(report, time.monotonic())
            program.add(report)
            program.done = program.done or report.get("event") in ("joined", "exited")
            program.failed = program.failed or report.get("event") == "failed"
            more: Dict[str, Any] = {}
            if report.get("event") == "joined":
                self.last_joined = time.time()
            elif report.get("event") in ("started", "spawning"):
                self.last_joined = 0.0
            if report.get("event") in ("loading", "linked"):
                more["flavour"] = _flavour(str(report.get("path")))
            elif report.get("event") == "exited":
                if report.get("code") == -signal.SIGKILL:
                    more["oom"] = (platform.oom_kills() or 0) > (self._oom or 0)
                program.pids.clear()
            self.controller.send(report={**report, **more}, sent=time.monotonic())

    def _obey(self) -> bool:
        """Do what the controller says; False when it is gone."""
        for order in self.controller.receive():
            self.silence.heard()
            if "end" in order:
                self._end(order["grace"], order["end"])
            elif "stacks" in order:
                self._look_around(order["stacks"])
            elif "warn" in order:
                self._warn(order["warn"])
            elif "flush" in order:
                self._hear()
                self.controller.send(flush=order["flush"])
            elif "busy" in order:
                self._look_at_activity(anew=order["busy"])
            elif "watch" in order:
                self._watch(order["watch"], order.get("bound", 0.0))
            elif "leave" in order:
                self.leaving, self.comes_again = True, order["leave"] == "for now"
            elif "hung" in order:
                self._end_hung(order["hung"])
            elif "links" in order:
                self._try_links(order["links"])
            elif "store" in order:
                self._check_store(order["store"])
            elif "alive" not in order:
                if "prepare" in order:  # there are other hosts
                    self._keep_connections()
                self.obey(order)
        if not self.controller.open:
            self._end(0.0, None)
        return self.controller.open

    def obey(self, order: Mapping[str, Any]) -> None:
        """Do what is asked of the lead host's node agent: make ready, then start the launcher."""
        if "prepare" in order:
            self.prepare(order["prepare"])
        elif "launch" in order:
            self.launch(order["launch"])

    def prepare(self, shared: Mapping[str, str]) -> bool:
        """Make this host ready for ranks and say so; false where that cannot be."""
        if self.plan.lead.container or self.plan.lead.connection.get("kind") == "pod":
            self._look_at_limits()
        shared = {**shared, "SHANTY_STOP_GRACE": f"{self.plan.limits.grace:g}"}
        self.environment = environment(self.plan.lead.environment, shared, os.environ)
        if self.plan.scripted:
            from shanty.runtime.agent.rank_script import prepare

            try:
                prepare(self.plan.lead, self.plan.scratch, shared)
                self._pretend_ssh()
            except (ShantyError, OSError) as error:
                self.controller.send(unready=str(error))
                return False
        found = foreign.settings(os.environ, self.plan.lead.environment.own)
        self.controller.send(ready=True, settings=found)
        return True

    def _look_at_limits(self) -> None:
        """Set what ranks need where the container keeps them from each other's memory."""
        from shanty.runtime.agent import cross_memory
        from shanty.runtime.mpi.flavours import FLAVOURS

        if cross_memory.may_be_denied() and not cross_memory.works():
            node = self.plan.lead
            settings = dict(FLAVOURS[node.mpi["flavour"]].without_cma)
            own = node.environment._replace(default={**settings, **node.environment.default})
            nodes = (node._replace(environment=own), *self.plan.workers)
            self.plan = self.plan._replace(attempt=self.plan.attempt._replace(nodes=nodes))

    def _pretend_ssh(self) -> None:
        """Open MPI's daemons crash where there is no ssh, though they never call it."""
        folders = (self.environment.get("PATH") or os.environ.get("PATH", os.defpath)).split(":")
        if not any(os.access(os.path.join(folder, "ssh"), os.X_OK) for folder in folders):
            bin_folder = os.path.join(self.plan.scratch, "bin")
            os.mkdir(bin_folder)
            program = os.path.join(bin_folder, "ssh")
            with open(program, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\necho 'there is no ssh here' >&2\nexit 127\n")
            os.chmod(program, 0o755)
            self.environment["PATH"] = os.pathsep.join([*folders, bin_folder])

    def _ask_stacks(self, name: str) -> None:
        from shanty.runtime.agent.stacks import StackRequest

        pids: Dict[int, Set[int]] = {}  # of a rank in each world with that number
        for program in list(self.programs.values()):
            if program.pids:
                pids.setdefault(program.report["rank"], set()).update(program.pids)
        request = StackRequest(self.run_dir, name, pids)
        if request.tick(time.monotonic()):  # the loop does the rest
            self.stacks.append(request)

    def _warn(self, number: int) -> None:
        """Pass the warning of an end that is near on to ranks that wait for it."""
        for pid in [pid for program in self.programs.values() for pid in program.pids]:
            if platform.catches(pid, number):  # others would end of it
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _look_at_activity(self, *, anew: bool) -> None:
        """Tell the controller what the ranks are busy with."""
        from shanty.runtime.agent.activity import RankActivity

        if anew or self.activity is None:
            self.activity = RankActivity()
        look, programs = self.activity.look, self._alive()
        self._background.do(lambda: self.controller.send(busy=look(programs)))

    def _alive(self) -> Dict[Tuple[str, int], Set[int]]:
        return {key: set(p.pids) for key, p in self.programs.items() if p.pids}

    def _check_store(self, paths: Sequence[str]) -> None:
        from shanty.runtime.agent.store_check import damaged

        self._background.do(lambda: self.controller.send(store=damaged(paths)))

    def _watch(self, between_looks: Optional[float], bound: float) -> None:
        """Tell the controller every so many seconds whether the ranks move; None: no more."""
        from shanty.runtime.agent.progress_sampler import ProgressSampler

        self.watch = None if between_looks is None else ProgressSampler(self.run_dir, bound)
        self.next_look, self.between_looks = 0.0, between_looks or 0.0

    def _sample(self, now: float) -> None:
        """Tell the controller how busy this host is, from time to time."""
        if now < self._unsampled_until or not platform.LINUX:
            return
        try:
            from shanty.runtime.agent.resources import ResourceSampler

            if self.resources is None:
                self.resources = ResourceSampler(now)
            sample = self.resources.tick(now)
        except (ImportError, OSError, ValueError) as error:  # the run goes on, watched or not
            print(f"no samples of this host: {error}", file=sys.stderr, flush=True)
            self._unsampled_until = float("inf")
            return
        if sample is not None:
            self.controller.send(sample=sample, sent=time.monotonic())

    def _keep_connections(self) -> None:
        from shanty.runtime.agent.tcp_connections import KeepAlive

        self.keep_alive = KeepAlive(self._pids)

    def _pids(self) -> List[int]:
        """The processes of the run here: the ranks', and the launcher's."""
        return [entry.pid for entry in platform.descendants(os.getpid())]

    def _try_links(self, order: Mapping[str, Any]) -> None:
        from shanty.runtime.agent.link_probe import LinkProbe

        if self.links is None:
            environ = {**os.environ, **self.environment}
            self.links = LinkProbe(self.plan, environ, self.controller.send)
        self.links.obey(order, self._pids)

    def _look_around(self, stacks: str = "") -> None:
        """Tell the controller of every rank where it stands and what it does.

        stacks: the name of a request for their stacks, which follows: it makes the ranks stir.
        """
        from shanty.runtime.agent.progress_sampler import ProgressSampler

        watch, alive = self.watch or ProgressSampler(self.run_dir), self._alive()

        def look() -> None:
            self.controller.send(**watch.look(alive, closely=bool(stacks)))
            if stacks:
                self._ask_stacks(stacks)

        self._background.do(look)
        self.next_look = time.monotonic() + self.between_looks

    def _end(self, grace: float, world: Optional[str]) -> None:
        """Ask the ranks of a world (None: everything) to end; after `grace` seconds they must."""
        from shanty.runtime.agent.cleanup import shared_memory_of

        pids = [entry.pid for entry in self._members(None)]
        self.leftovers |= shared_memory_of(pids, self.born)
        if grace > 0:
            programs = [p for p in self.programs.values() if world in (None, p.report["world"])]
            for pid in [pid for program in programs if not program.failed for pid in program.pids]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            if not programs and world is None and self.launcher.code is None and self.launcher.pid:
                os.kill(self.launcher.pid, signal.SIGTERM)
        self.ending.append((time.monotonic() + grace, world))

    def _end_hung(self, world: str) -> None:
        """End a launcher that has outlived its ranks, unless they have left something behind."""
        launcher = int(world) if world.isdigit() and world != "0" else self.launcher.pid
        if launcher and not any(
            entry.pid != launcher and not _serves_launcher(entry.pid)
            for entry in platform.descendants(launcher)
        ):
            self.controller.send(hung=world)
            self._end(0.0, world if world != "0" else None)

    def _members(self, world: Optional[str]) -> List[platform.Process]:
        """The processes of a world on this host, its launcher with them; None: of the run."""
        leader = (self.launcher.pid,) if self.launcher.pid else ()
        everything = platform.descendants(os.getpid(), leader)
        if world is None:
            return everything
        wanted = {
            pid
            for program in self.programs.values()
            if program.report["world"] == world
            for pid in (*program.pids, program.wrapper)
        }
        if self.launcher.pid and world.isdigit() and world != "0":
            wanted.add(int(world))  # on other hosts that is someone else's number
        return [entry for entry in everything if entry.pid in wanted]

    def _tick(self, now: float) -> None:
        """Do what is due by the clock."""
        self.controller.flush()
        self.tick()
        if self.controller.open and self.silence.is_over(now, SILENCE):
            self.controller.open = False
            self._end(0.0, None)
        for when, world in list(self.ending):
            if now >= when:
                members = self._members(world)
                others = [entry for entry in members if not _is_tracker(entry.pid)]
                # Once nobody else is left, a tracker removes what they have left, and ends.
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

    def _look(self, program: _Program, now: float) -> None:
        """See from outside whether a program has loaded an MPI, for those that do not say it."""
        if program.done or program.looks >= len(_LOOKS):
            return
        if now < program.started + _LOOKS[program.looks]:
            return
        from shanty.runtime.mpi.flavours import starts

        program.looks += 1
        mapped = {path for pid in program.pids for path in platform.mapped_files(pid)}
        found = {path: _flavour(path) for path in sorted(mapped) if "/libmpi" in path}
        ours = self.plan.lead.mpi["flavour"]
        # A program may have mapped two: what counts is whether one of them fits.
        for path in sorted(filter(found.get, found), key=lambda p: not starts(ours, found[p])):
            program.done = True
            mapping = {"event": "mapped", "path": path, "flavour": found[path]}
            self.controller.send(report={**program.report, **mapping})
            return
        if now > program.started + PLAIN:
            self.controller.send(report={**program.report, "event": "plain"})

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
        """One of our children is gone: the launcher, or an orphan."""
        if pid == self.launcher.pid:
            self.launcher.code = code
            self.controller.send(launcher=code)


@functools.lru_cache(maxsize=16)
def _flavour(path: str) -> str:
    """Returns the flavour of the libmpi at `path`; "" when it cannot be told."""
    from shanty.runtime.mpi.detect import flavour_of_library

    library = flavour_of_library(path)
    return library.flavour if library else ""


def _is_tracker(pid: int) -> bool:
    """True for the process of Python's multiprocessing, or joblib's, that removes what it knows."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return b"resource_tracker" in file.read()
    return False


def _serves_launcher(pid: int) -> bool:
    """True for a process of the launcher's own: a daemon, or its way to another host."""
    from shanty.runtime.mpi.processes import is_launchers

    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
        name = os.path.basename(words[0]).decode(errors="replace")
        return is_launchers(name) or b"rank.rsh_client" in words
    return True
