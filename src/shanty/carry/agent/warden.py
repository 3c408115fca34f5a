"""The warden: the parent of all that a run starts on a host, and the end of it.

It starts the launcher, hears the ranks, tells the lead, and ends everything when it is told to,
when the launcher is done, or when the lead falls silent. Orphans of the run become its
children, so nothing gets away. When all is gone it sweeps up and leaves.

Modules that are needed only later are imported later: the ranks wait for this one to start.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

from shanty.carry import platform
from shanty.carry.agent.channel import Channel, decode_reports
from shanty.carry.frames import STDERR, STDOUT, FrameWriter
from shanty.carry.rank import stdin
from shanty.carry.rank.passing import file_identity
from shanty.carry.rank.reports import open_reports
from shanty.carry.rundir import RunDir

SILENCE = 10.0  # seconds without a word from the lead after which its ranks are ended
LINGER = 2.0  # seconds that what a launcher left running may go on after it
SPAWNING = 0.5  # seconds from the first rank's word to the launcher's last file
PLAIN = 2.0  # seconds without a libmpi after which a rank counts as no MPI program (so far)
BEAT = 1.0  # seconds between two words without a reason
_TICK = 0.25
_LOOKS = (0.3, 0.8, 1.5, 2.1, 4.0, 8.0, 20.0, 60.0)  # seconds after its start: has it an MPI?


class _Program:
    """A rank's program on this host: which processes, and whether it loaded an MPI."""

    def __init__(self, report: Mapping[str, Any], now: float) -> None:
        self.report = {key: report[key] for key in ("rank", "world")}
        self.pids: Set[int] = set()
        self.wrapper = 0
        self.started = now
        self.looks = 0
        self.done = False

    def add(self, report: Mapping[str, Any]) -> None:
        """Learn a process of the program; `exec` only wraps it, and passes signals on itself."""
        if "pid" in report:
            self.pids.add(int(report["pid"]))
        if "exec" in report:
            self.wrapper = int(report["exec"])


class Warden:
    """One host's part of one run."""

    def __init__(self, run: RunDir, plan: Mapping[str, Any], lead: Channel) -> None:
        self.run_dir = run
        self.plan = plan
        self.lead = lead
        self.born = time.time()
        self.launcher = 0
        self.launcher_code: Optional[int] = None
        self.first_rank = 0.0  # when the first rank spoke
        self.programs: Dict[Tuple[str, int], _Program] = {}
        self.ending: List[Tuple[float, Optional[str]]] = []  # (when to SIGKILL, which world)
        self.leftovers: Set[str] = set()
        self.heard = time.monotonic()
        self.next_beat = 0.0
        self.linger: Optional[float] = None
        self._rest = b""
        self._oom = platform.oom_kills()

    def run(self) -> None:
        """Live until all that this run started here is gone."""
        wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the lead decides; SIGKILL is heard by it
        os.mkfifo(self.run_dir.reports, 0o600)
        fifo = os.open(self.run_dir.reports, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        keep = open_reports(str(self.run_dir.reports))  # so that the FIFO never ends
        platform.adopt_orphans()
        streams = self._launch()
        # While the launcher is at work: what the end will need at once.
        from shanty.carry.agent.sweep import made_between, sweep

        log = os.open(self.run_dir.launcher_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        writer = FrameWriter(log, self.plan["log_limit"])
        poll = select.poll()
        for fd in (wake, fifo, self.lead.source, *streams):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll(_TICK * 1000):
                if fd == wake:
                    os.read(wake, 512)
                elif fd == fifo:
                    self._hear(os.read(fifo, 1 << 16))
                elif fd == self.lead.source:
                    if not self._obey():
                        poll.unregister(fd)
                elif not _pump(fd, streams[fd], writer):
                    poll.unregister(fd)
                    del streams[fd]
                    os.close(fd)
            self._reap()
            self._tick(time.monotonic())
            if writer.has_partial:
                writer.flush()
            if self.launcher_code is not None and not platform.descendants(os.getpid()):
                break
        with contextlib.suppress(BlockingIOError):
            self._hear(os.read(fifo, 1 << 20))
        os.close(keep)
        for fd, stream in streams.items():  # its last words are in the pipes by now
            while _take(fd, stream, writer):
                pass
        writer.close()
        self.leftovers |= made_between(
            self.plan["temporary"], self.born, (self.first_rank or time.time()) + SPAWNING
        )
        removed = sweep(self.plan["scratch"], self.leftovers, self.plan["residue"], self.born)
        self.lead.send(gone=removed)

    def _launch(self) -> Dict[int, int]:
        """Start the launcher; returns the ends of its output and their streams."""
        actions: List[Tuple[int, ...]] = []
        streams, ends = {}, []
        for stream in (STDOUT, STDERR):
            read, write = os.pipe()
            os.set_blocking(read, False)
            streams[read] = stream
            ends.append(write)
            actions.append((os.POSIX_SPAWN_DUP2, write, stream))
        argv, environ = self.plan["argv"], {**os.environ, **self.plan["env"]}
        environ["SHANTY_OUTPUT"] = " ".join(map(file_identity, ends))
        kept = None if self.plan["raw"] else stdin.set_aside()
        if kept is not None:
            os.set_inheritable(kept, False)
            environ[stdin.VARIABLE] = stdin.offer(kept)
        try:
            self.launcher = os.posix_spawn(
                find_program(argv[0], environ.get("PATH", os.defpath)),
                argv,
                environ,
                file_actions=actions,
                setpgroup=0,
                setsigdef=[
                    signal.SIGPIPE,
                    signal.SIGXFSZ,
                    signal.SIGTERM,
                    signal.SIGINT,
                    signal.SIGHUP,
                ],
            )
        except OSError as error:
            self.launcher_code = 127
            self.lead.send(launcher=127, error=f"cannot run {argv[0]}: {error.strerror}")
        finally:
            for end in ends:
                os.close(end)
            os.close(0)
            os.open(os.devnull, os.O_RDONLY)  # the launcher alone reads the run's standard input
        return streams

    def _hear(self, data: bytes) -> None:
        """Take the ranks' reports and pass them on to the lead."""
        reports, self._rest = decode_reports(self._rest, data)
        for report in reports:
            key = (str(report.get("world")), int(report["rank"]))
            program = self.programs.get(key)
            if report.get("event") == "started" or program is None:
                program = self.programs[key] = _Program(report, time.monotonic())
            program.add(report)
            program.done = program.done or report.get("event") in ("joined", "exited")
            more: Dict[str, Any] = {}
            if not self.first_rank:
                self.first_rank = time.time()
            if report.get("event") in ("loading", "linked"):
                more["flavour"] = _flavour(str(report.get("path")))
            elif report.get("event") == "exited":
                if report.get("code") == -signal.SIGKILL:
                    more["oom"] = (platform.oom_kills() or 0) > (self._oom or 0)
                program.pids.clear()
            self.lead.send(report={**report, **more})

    def _obey(self) -> bool:
        """Do what the lead says; False when it is gone."""
        for order in self.lead.receive():
            self.heard = time.monotonic()
            if "end" in order:
                self._end(order["grace"], order["end"])
            elif "stacks" in order:
                for program in self.programs.values():
                    self._ask_stacks(program)
        if not self.lead.open:
            self._end(0.0, None)
        return self.lead.open

    def _ask_stacks(self, program: _Program) -> None:
        # Only a process that waits for the signal survives it: the rank's own file is there.
        path = self.run_dir.rank_stacks(program.report["rank"])
        pids = [pid for pid in program.pids if _catches(pid, platform.STACKS_SIGNAL)]
        if path.exists():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, platform.STACKS_SIGNAL)

    def _end(self, grace: float, world: Optional[str]) -> None:
        """Ask the ranks of a world (None: everything) to end; after `grace` seconds they must."""
        from shanty.carry.agent.sweep import shared_memory_of

        pids = [entry.pid for entry in self._members(None)]
        self.leftovers |= shared_memory_of(pids, self.born)
        if grace > 0:
            programs = [p for p in self.programs.values() if world in (None, p.report["world"])]
            for program in programs:
                for pid in program.pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
            if not programs and world is None and self.launcher_code is None and self.launcher:
                os.kill(self.launcher, signal.SIGTERM)
        self.ending.append((time.monotonic() + grace, world))

    def _members(self, world: Optional[str]) -> List[platform.Process]:
        """The processes of a world on this host, its launcher with them; None: of the run."""
        everything = platform.descendants(os.getpid(), (self.launcher,) if self.launcher else ())
        if world is None:
            return everything
        wanted = {
            pid
            for program in self.programs.values()
            if program.report["world"] == world
            for pid in (*program.pids, program.wrapper)
        }
        if world.isdigit() and world != "0":
            wanted.add(int(world))
        return [entry for entry in everything if entry.pid in wanted]

    def _tick(self, now: float) -> None:
        """What is due by the clock."""
        if self.lead.open:
            if now >= self.next_beat:
                self.next_beat = now + BEAT
                self.lead.send(beat=True)
            if now > self.heard + SILENCE:
                self.lead.open = False
                self._end(0.0, None)
        for when, world in list(self.ending):
            if now >= when:
                members = self._members(world)
                platform.send(members, signal.SIGKILL)
                if not members:
                    self.ending.remove((when, world))
        for program in self.programs.values():
            self._look(program, now)
        if self.launcher_code is not None and not self.ending:
            if self.linger is None:
                self.linger = now + LINGER
            elif now > self.linger:
                self._end(0.0, None)

    def _look(self, program: _Program, now: float) -> None:
        """See from outside whether a program has loaded an MPI, for those that do not say it."""
        from shanty.carry.mpi.kin import starts

        if program.done or program.looks >= len(_LOOKS):
            return
        if now < program.started + _LOOKS[program.looks]:
            return
        program.looks += 1
        mapped = {path for pid in program.pids for path in platform.mapped_files(pid)}
        found = {path: _flavour(path) for path in sorted(mapped) if "/libmpi" in path}
        ours = self.plan["installation"]["flavour"]
        # A program may have mapped two: what counts is whether one of them fits.
        for path in sorted(filter(found.get, found), key=lambda p: not starts(ours, found[p])):
            program.done = True
            mapping = {"event": "mapped", "path": path, "flavour": found[path]}
            self.lead.send(report={**program.report, **mapping})
            return
        if now > program.started + PLAIN:
            self.lead.send(report={**program.report, "event": "plain"})

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.launcher:
                self.launcher_code = os.waitstatus_to_exitcode(status)
                self.lead.send(launcher=self.launcher_code)


def _flavour(path: str) -> str:
    """Which MPI the libmpi at `path` is; "" when it cannot be told."""
    from shanty.carry.mpi.library import flavour_of_library

    library = flavour_of_library(path)
    return library.flavour if library else ""


def find_program(name: str, path: str) -> str:
    """The file that a shell would run for `name`; `name` itself when there is none."""
    if os.sep in name:
        return name
    for folder in path.split(os.pathsep):
        file = os.path.join(folder, name)
        if os.access(file, os.X_OK) and os.path.isfile(file):
            return file
    return name


def _pump(fd: int, stream: int, writer: FrameWriter) -> bool:
    """Move what the launcher wrote into its log; False when the stream has ended."""
    return _take(fd, stream, writer) != 0


def _take(fd: int, stream: int, writer: FrameWriter) -> Optional[int]:
    """Move what there is now; how much, 0 at the end of the stream, None when it is empty."""
    try:
        data = os.read(fd, 1 << 16)
    except BlockingIOError:
        return None
    if data:
        writer.feed(stream, data)
    return len(data)


def _catches(pid: int, number: int) -> bool:
    """True when the process has a handler for the signal; where the system is silent, True."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return not platform.LINUX
