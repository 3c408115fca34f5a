"""Starts the program of every rank: `boot.py rank.exec PROGRAM ARGS…`, an argv prefix.

It gets its place from the launcher, sets the environment the same way under every MPI, runs the
program, frames its output into the rank's log and reports start and end. It outlives the program by
a few milliseconds and ends with its exit code, 128 + N for signal N. It keeps the descriptor by
which the launcher watches its ranks (Hydra's PMI_FD), so that the node agent learns of the end
first, and relays their messages.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

from shanty.runtime import foreign_variables
from shanty.runtime.frames import STDERR, STDOUT, FrameWriter, Output
from shanty.runtime.lines.command import (
    LOCAL_RANK,
    STARTERS,
    engine_shims,
    insert_runner,
    is_python,
    launcher_of,
    reads_its_script,
    stand_in,
    starts_a_world,
)
from shanty.runtime.mpi import processes
from shanty.runtime.rank import redirect, reports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping, MutableMapping, Sequence

    from shanty.runtime.lines.container_engine import Line
    from shanty.runtime.rank.forked import Forked
    from shanty.runtime.rank.pmi_relay import Relay

STEP = "SHANTY_STEP"  # a task's place by srun, which bypasses the script of its host
PYTHON = "SHANTY_PYTHON"  # the environment variable with this host's interpreter for the job
_GROUP, _GROUPS = "GROUP_RANK", "GROUP_WORLD_SIZE"
_NO_TTY = "SHANTY_NO_TTY"
_ELASTIC = "SHANTY_ELASTIC"
_JOINS, _SEATS = "SHANTY_JOINS", "--seats="  # as in `rundir`, which is not light
# Open MPI's words for each collective that a loss breaks off; it is an error of the call as well.
# And those of its libevent for a connection that the loss has closed.
_NOISE = (b"NBC_Progress: an error ", b"Error in NBC_Start_round() ", b"[warn] Epoll ")
_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
_NOTICES = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)  # which a program may handle
_ABORT_DELAY = 0.05  # seconds in which other ranks' output is written, too
_PARTIAL_MS = 100  # a prompt without a newline is shown after so long
_CANNOT_RUN, _NOT_FOUND = 126, 127  # as a shell has them
_CANNOT_WRITE = 73  # StorageError's
_HELD = 10.0  # seconds beyond the run's grace that a failed rank's end is kept from the launcher


def main(argv: list[str]) -> int:
    """Runs `argv` as this rank; returns the exit code to end with."""
    environ = os.environ
    step = environ.pop(STEP, "").split()  # started by the user's own srun
    if step:
        environ.update(processes.of_step(step))
    rank = processes.number(environ, processes.RANK)
    if rank is None:  # no launcher started us: the program is run as it is
        os.execvp(argv[0], argv)
    size = processes.number(environ, processes.SIZE) or 1
    local = processes.number(environ, processes.LOCAL_RANK) or 0
    local_size = processes.number(environ, processes.LOCAL_SIZE) or 1
    if argv[0].startswith(_SEATS):  # on one machine
        rank, size = local, local_size = _take_seat(argv.pop(0), rank)
    if local_size < size:
        environ.pop("SHANTY_RANK_START", None)  # over hosts, no rank is started again
    started = size  # with the spares
    if environ.get("SHANTY_SPARES"):  # which are the last
        size -= int(environ["SHANTY_SPARES"])
        local_size = min(local_size, size - rank + local) if rank - local < size else local_size
    try:
        channel = reports.open_reports(environ[reports.FIFO])
    except OSError:
        print("shanty: this run has ended: its node agent is gone", file=sys.stderr)
        return 70
    missing = foreign_variables.take(environ)
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": local_size}
    environ.update({key: str(value) for key, value in place.items()})
    if not step:  # else Slurm's PMI gives the place, and Slurm knows which cores are the job's
        environ.update(processes.place_everywhere(rank, size, local, local_size))
        _stay_on_our_cores(environ.get("SHANTY_CPUS", ""))
    environ.setdefault("OMP_NUM_THREADS", threads(environ, local_size))
    _as_torchrun(rank, size, local_size)
    addresses = environ.get("SHANTY_ADDRESSES", "").split(",")
    if 1 < size <= len(addresses) and rank < size:
        environ.setdefault("TF_CONFIG", tensorflow_cluster(addresses[:size], rank))
    pass_by_proxies(environ, addresses)
    if "SLURM_JOB_ID" in environ:
        _as_step(place)
    here = os.path.dirname(os.path.abspath(__file__))
    # Launchers in a rank are refused there.
    path = environ.get("PATH") or os.defpath
    shims = [*engine_shims(f"{here}/shims", path), f"{here}/shims"]
    environ["PATH"] = os.pathsep.join([*shims, path])
    if "DMLC_NUM_WORKER" in environ:  # a line for dmlc-submit has set it, and could not set this
        environ["DMLC_TASK_ID"] = str(rank)
    if "CROSS_RANK" in environ:  # one for deepspeed, likewise
        environ["LOCAL_SIZE"] = str(local_size)
        environ["CROSS_RANK"], environ["CROSS_SIZE"] = environ[_GROUP], environ[_GROUPS]
    if rank != 0 or environ.get(redirect.INPUT) == "":  # a line may give it to none
        redirect.close_input()  # Hydra never closes it
    elif redirect.INPUT in environ:
        redirect.take_input(environ[redirect.INPUT])
    name_user(environ)
    environ.pop("SHANTY_INPUTS", None)  # of an outer run
    for inputs in (os.path.abspath(".shanty/inputs"), f"{environ['SHANTY_RUN_DIR']}/inputs"):
        if os.path.isdir(inputs):  # the first where they were sent, the second on this machine
            environ["SHANTY_INPUTS"] = inputs
    folder = environ.get("SHANTY_ATTEMPT_DIR") or environ["SHANTY_RUN_DIR"]
    path = f"{os.path.abspath(folder)}/logs/rank-{rank}.log"
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)  # it may have been removed
    log = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    writer = FrameWriter(log, int(environ.get("SHANTY_LOG_LIMIT", 1 << 40)), path)
    if missing and local == 0:
        names = ", ".join(missing)
        text = f"shanty: LD_PRELOAD: not found on this host, so ranks start without it: {names}\n"
        writer.feed(STDERR, text.encode(errors="replace"))
    chosen = environ.get(PYTHON)
    if chosen and os.sep not in argv[0] and is_python(argv[0]):
        argv = [chosen, *argv[1:]]  # every host has its own
    argv = [each.replace(LOCAL_RANK, str(local)) for each in argv]
    launcher = launcher_of(argv)
    if launcher is not None and starts_a_world(launcher[1], environ):
        argv = [f"{here}/shims/{launcher[0]}", *launcher[1]]  # which refuses
    argv = stand_in(argv, chosen or "python3")
    environ["SHANTY_RANK_PYTHON"] = sys.executable  # for the shims of container engines
    contained = None
    if os.path.basename(argv[0]) in STARTERS:
        from shanty.runtime.lines import container_engine

        contained = container_engine.find(argv)
        if contained is not None and container_engine.bypasses_shims(contained):
            argv = container_engine.labelled(contained, environ)
    runner = os.path.join(here, "run.py")
    command = insert_runner(argv, runner)
    if command is not argv:  # the hook is a fallback for run.py
        hook = os.path.join(here, "hook")
        paths = [each for each in environ.pop("PYTHONPATH", "").split(os.pathsep) if each != hook]
        if any(paths):
            environ["PYTHONPATH"] = os.pathsep.join(paths)
    report: dict[str, reports.Value] = {"rank": rank, "world": environ.get("SHANTY_WORLD", "0")}
    report.update(size=started, local=local, host=os.uname().nodename, exec=os.getpid())
    program = _Rank(command, writer, channel, report, folder)
    patience = float(environ.pop("SHANTY_WARM_WAIT", "0"))
    if environ.pop("SHANTY_WARM", "") and command is not argv:
        program.runner, program.patience = runner, patience
    if command is argv and not environ.pop(_NO_TTY, ""):  # run.py has Python write lines at once
        program.stdout = redirect.open_terminal
    if contained is not None:
        return program.run_contained(contained)
    if size > 1 and reads_its_script(command):
        return program.refuse(
            f"{argv[0]} reads its script from standard input, which only rank 0 has",
            "write the script to a file, and run that",
        )
    return program.run()


def _take_seat(word: str, rank: int) -> tuple[int, int]:
    """Returns the rank and the size of the run for a rank that takes the place of a lost one."""
    size, _, seats = word[len(_SEATS) :].partition(":")
    seat = int(seats.split(",")[rank])
    os.environ[_JOINS] = "1"
    folder = os.environ.get("SHANTY_ATTEMPT_DIR") or os.environ["SHANTY_RUN_DIR"]
    try:  # noqa: SIM105  contextlib is not light
        os.unlink(f"{folder}/claims/{os.environ.get('SHANTY_WORLD', '0')}-{seat}")
    except OSError:
        pass
    return seat, int(size)


def _stay_on_our_cores(numbers: str) -> None:
    """Moves a rank that its launcher has bound to a core which the run may not use.

    Launchers number all cores of the machine from 0; the run may have only some of them.
    """
    if not numbers:
        return
    ours, bound = sorted(map(int, numbers.split(","))), os.sched_getaffinity(0)
    if not bound <= set(ours):
        try:  # noqa: SIM105  contextlib is not light
            os.sched_setaffinity(0, bound & set(ours) or {ours[core % len(ours)] for core in bound})
        except OSError:  # its container has none of them: the launcher's binding stays
            pass


def threads(environ: Mapping[str, str], local_size: int) -> str:
    """Returns how many threads a rank may have: its share of the host's cores, or its own cores."""
    if environ.get("SHANTY_THREADS"):
        return environ["SHANTY_THREADS"]
    cores = int(environ.get("SHANTY_CORES", "1"))
    if hasattr(os, "sched_getaffinity"):
        cores = min(len(os.sched_getaffinity(0)), max(1, cores // local_size))
    else:
        cores //= local_size
    return str(max(1, cores))


def _as_torchrun(rank: int, size: int, local_size: int) -> None:
    """Sets the variables of torchrun, whose ranks are in groups, one on each host."""
    environ = os.environ
    groups = processes.number(environ, (_GROUPS,)) or 1
    environ.setdefault(_GROUP, "0")
    environ[_GROUPS] = str(min(groups, -(-size // local_size)))  # a line may leave hosts out
    environ["ROLE_RANK"], environ["ROLE_WORLD_SIZE"] = str(rank), str(size)
    environ.setdefault("ROLE_NAME", "default")
    for name in ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"):
        environ.setdefault(name, "0")
    environ.setdefault("TORCHELASTIC_RUN_ID", environ.get("SHANTY_RUN_ID", "shanty"))
    environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # no agent: rank 0 has the store


def _as_step(place: dict[str, int]) -> None:
    """Sets the variables of srun, under which each rank would be a task of a step.

    The job's own values are those of its batch script, which is task 0 of 1 on every host.
    """
    environ = os.environ
    for name, value in (
        ("SLURM_PROCID", place["RANK"]),
        ("SLURM_LOCALID", place["LOCAL_RANK"]),
        ("SLURM_NTASKS", place["WORLD_SIZE"]),
        ("SLURM_NPROCS", place["WORLD_SIZE"]),
        ("SLURM_STEP_NUM_TASKS", place["WORLD_SIZE"]),
        ("SLURM_NODEID", environ.get(_GROUP, "0")),
    ):
        environ[name] = str(value)


def tensorflow_cluster(addresses: Sequence[str], rank: int) -> str:
    """Returns the `TF_CONFIG` of a rank: all ranks are workers, and it is worker `rank`."""
    workers = '", "'.join(addresses)
    task = f'{{"type": "worker", "index": {rank}}}'
    return f'{{"cluster": {{"worker": ["{workers}"]}}, "task": {task}}}'


def pass_by_proxies(environ: MutableMapping[str, str], addresses: Sequence[str]) -> None:
    """Excludes the run's own hosts from a proxy that is set: gRPC would use it."""
    if not any(name.lower() in _PROXIES for name in environ):
        return
    hosts = dict.fromkeys(address.rpartition(":")[0].strip("[]") for address in addresses)
    environ.setdefault("no_proxy", environ.get("NO_PROXY", ""))
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        if name in environ and environ[name].strip() != "*":  # which has to stand alone
            environ[name] = ",".join(filter(None, [environ[name], *hosts]))


def name_user(environ: MutableMapping[str, str]) -> None:
    """Gives a user id without a name one: getpass and torch fail without, as in a pod."""
    if environ.get("LOGNAME") or environ.get("USER"):
        return
    import pwd  # rarely needed

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        environ["USER"] = environ["LOGNAME"] = f"user{os.getuid()}"


class _Rank:
    """The program of one rank, from its start to its end."""

    def __init__(
        self,
        argv: list[str],
        writer: FrameWriter,
        channel: int,
        report: dict[str, reports.Value],
        folder: str,
    ) -> None:
        self.argv = argv
        self.folder = folder  # of the attempt
        self.writer = writer
        self.channel = channel
        self.report = report
        self.output = Output(self._take)
        self.passed = redirect.Passed(os.environ.get(redirect.OUTPUT, ""))
        self.copies = redirect.copies_of(os.environ)
        self.pid = 0
        self.parent = os.getppid()  # the launcher, or its daemon on this host
        self.advice = ""  # for when it fails
        self.stdout: Callable[[], tuple[int, int]] = os.pipe
        self.mute = False  # its output cannot be kept
        self.finalized: int | None = None  # a pipe, of an elastic run: the program has left MPI
        self.noisy = False  # the last line was left out
        self.dismissed = False  # the launcher or the node agent ends the ranks
        self.runner = ""  # `run.py`, where a fork server starts the program
        self.patience = 0.0  # seconds for that server
        self.forked: Forked | None = None
        self.relay: Relay | None = None
        if "PMI_FD" in os.environ:
            from shanty.runtime.rank import pmi_relay

            self.relay = pmi_relay.between(os.environ, self._flush_before_abort)

    def run_contained(self, line: Line) -> int:
        """Starts a line that starts a container, unless it is refused; returns its exit code."""
        from shanty.runtime.lines import container_engine

        refused = container_engine.refusal(line, os.environ)
        if refused is not None:
            return self.refuse(*refused, container_engine.CODE)
        if container_engine.bypasses_shims(line):
            self._tell(event="container", engine=" ".join(line.program))
        self.advice = container_engine.advice(line, int(self.report["size"] or 1))
        return self.run()

    def run(self) -> int:
        """Starts the program, keeps its output until it ends, reports; returns its exit code."""
        wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK) if hasattr(os, "pipe2") else os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._pass_on)
        for number in _NOTICES:  # launchers signal a process group, so the program gets them, too
            signal.signal(number, lambda *_: None)
        try:
            self._start()
        except OSError as error:
            code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN
            from shanty.runtime.rank import post_mortem

            reason, fix = post_mortem.refusal(self.argv[0], error)
            return self.refuse(f"cannot run {self.argv[0]}: {reason}", fix, code)
        self._tell(event="started", pid=self.pid)
        status = self._follow(wake)
        at, self.pid, pid = time.monotonic(), 0, self.pid
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            self._explain(code)
        self.passed.close()
        self.writer.close()
        self._tell_unwritable()
        if self.copies is not None:
            self.copies.close()
        advice = {"fix": self.advice} if self.advice and code > 0 else {}
        orphaned = os.getppid() != self.parent
        self._tell(event="exited", pid=pid, code=code, at=at, orphaned=orphaned, **advice)
        finalized = self._has_finalized(code) if _ELASTIC in os.environ else b"1"
        if finalized == b"0":
            # The launcher ends ranks that were started later once the first ones have ended.
            self._wait_for_end(wake, float("inf"))
        if finalized != b"1":
            # Open MPI tells the other ranks of no other end than this one.
            os.kill(os.getpid(), signal.SIGKILL)
        if code != 0 and self.report["world"] == "0":
            grace = float(os.environ.get("SHANTY_STOP_GRACE", "5"))
            self._wait_for_end(wake, time.monotonic() + grace + _HELD)
        return code if code >= 0 else 128 - code

    def refuse(self, text: str, fix: str, code: int = 2) -> int:
        """Reports why the program is not run; returns the exit code."""
        self.writer.feed(STDERR, os.fsencode(f"shanty: {text}\n"))
        self.writer.close()
        self._tell(event="exited", code=code, why=text, fix=fix, at=time.monotonic())
        return code

    def _has_finalized(self, code: int) -> bytes:
        """Return the word of a program that ended with `code` and left its world as all do."""
        if code != 0 or self.finalized is None:
            return b""
        os.set_blocking(self.finalized, False)
        try:
            return os.read(self.finalized, 1)
        except BlockingIOError:  # a child of it lives, and has the other end
            return b""

    def _wait_for_end(self, wake: int, end: float) -> None:
        """Wait until the node agent ends the run, which gives the other ranks time to write.

        A launcher ends them as soon as it learns that a rank failed, Hydra by SIGKILL.
        """
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self.channel, 0)
        while not self.dismissed and time.monotonic() < end:
            for fd, _ in poll.poll(1000):
                if fd == self.channel:
                    return
                os.read(wake, 512)

    def _explain(self, code: int) -> None:
        """Report what can be found out about a program that failed."""
        from shanty.runtime.rank import post_mortem

        if not is_python(self.argv[0]):
            library = post_mortem.linked_mpi(self.argv[0])
            if library:
                self._tell(event="linked", path=library)
        if code < 0:
            text, where = post_mortem.crash(
                f"{self.folder}/stacks/rank-{self.report['rank']}.crash"
            )
            self._take(None, STDERR, text.encode())
            if where:
                self._tell(event="crashed", where=where)

    def _start(self) -> None:
        kept = (stream for stream in (STDOUT, STDERR) if stream not in self.passed.inherited)
        ends, actions = self.output.open(None, tuple(kept), self.stdout)
        if _ELASTIC in os.environ:
            self.finalized, end = os.pipe()
            os.set_inheritable(end, True)
            os.environ[reports.FINALIZED] = str(end)
            ends = [*ends, end]
        try:
            if self.runner and self._fork(actions):
                return
            reset = [signal.SIGPIPE, signal.SIGXFSZ]
            self.pid = os.posix_spawnp(
                self.argv[0], self.argv, os.environ, file_actions=actions, setsigdef=reset
            )
        finally:
            for end in ends:
                os.close(end)
            if self.relay is not None:
                self.relay.close_ranks_end()

    def _fork(self, actions: Sequence[tuple[int, ...]]) -> bool:
        """Have the fork server start the program; False where that has to start otherwise."""
        from shanty.runtime.rank import forked

        streams = {0: 0, STDOUT: STDOUT, STDERR: STDERR, **{to: end for _, end, to in actions}}
        path = f"{os.environ['SHANTY_RUN_DIR']}/warm"
        try:
            self.forked = forked.start(
                path, self.argv, self.runner, streams, self.patience, lambda: self.dismissed
            )
        except forked.NotForkedError as error:
            if self.report["local"] == 0:
                text = f"shanty: ranks of this host start without --warm: {error}\n"
                self.writer.feed(STDERR, text.encode(errors="replace"))
            return False
        self.pid = pid = self.forked.pid
        for number in _NOTICES:  # it is in a process group of its own
            signal.signal(number, lambda number, _: os.kill(pid, number))
        return True

    def _ended(self) -> int | None:
        """Return how the program has ended, as wait(2) has it; None while it lives."""
        if self.forked is not None:
            return self.forked.status()
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return status if pid else None

    def _follow(self, wake: int) -> int:
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self.channel, 0)  # POLLERR when the node agent closes its end
        for fd in self.output.streams:
            poll.register(fd, select.POLLIN)
        forked = self.forked.fd if self.forked is not None else None
        if forked is not None:
            poll.register(forked, select.POLLIN)
        relayed = self.relay.fds if self.relay is not None else []
        for fd in relayed:
            poll.register(fd, select.POLLIN)
        while True:
            ready = poll.poll(_PARTIAL_MS if self.writer.has_partial else None)
            if not ready:
                self.writer.flush()
            for fd, _ in ready:
                if fd == self.channel:
                    self._pass_on(signal.SIGKILL)
                    poll.unregister(fd)
                elif fd == wake:
                    os.read(wake, 512)
                elif self.relay is not None and fd in relayed:
                    if not self.relay.pump(fd):
                        for each in relayed:
                            poll.unregister(each)
                elif fd != forked and not self.output.pump(fd):
                    poll.unregister(fd)
            status = self._ended()
            if status is not None:
                self.output.finish(None)
                if self.relay is not None:
                    self.relay.finish()
                return status

    def _flush_before_abort(self) -> None:
        """Write what the program has printed, before the launcher kills all ranks."""
        self.output.finish(None)
        time.sleep(_ABORT_DELAY)
        self.output.finish(None)
        self.writer.flush(STDOUT, STDERR)

    def _take(self, _: object, stream: int, data: bytes) -> None:
        if self.finalized is not None:
            data = self._without_noise(data)
        if self.copies is not None:
            self.copies.feed(stream, data)
        if not self.passed.feed(stream, data):
            self.writer.feed(stream, data)
            self._tell_unwritable()

    def _without_noise(self, data: bytes) -> bytes:
        if not self.noisy and not any(word in data for word in _NOISE):
            return data
        kept = []
        for line in data.splitlines(keepends=True):
            noise = line.startswith(_NOISE)
            if not noise and (line != b"\n" or not self.noisy):  # an empty line may come after it
                kept.append(line)
            self.noisy = noise
        return b"".join(kept)

    def _tell_unwritable(self) -> None:
        """End a program whose output cannot be kept."""
        if self.writer.error and not self.mute:
            self.mute = True
            why = f"{reports.UNWRITABLE}: {self.writer.error}"
            self._tell(event="failed", code=_CANNOT_WRITE, why=why, at=time.monotonic())
            self._pass_on(signal.SIGKILL)

    def _pass_on(self, number: int, _frame: object = None) -> None:
        self.dismissed = True
        if self.pid:
            try:  # noqa: SIM105  contextlib is not light
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def _tell(self, **more: reports.Value) -> None:
        reports.send(self.channel, {**self.report, **more})
