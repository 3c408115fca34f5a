"""The fork server of a host (`--warm`), as its node agent knows it; `rank/fork_server.py` is it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import Dict, Mapping

from shanty.runtime import platform
from shanty.runtime.plan import Plan
from shanty.runtime.rank.exec import threads
from shanty.runtime.rank.fork_server import KEEP, OWN
from shanty.runtime.rundir import RUN_ID, WARM, RunDir

_PATIENCE = 2.0  # seconds for a server that has nothing to do


class ForkServer:
    """Starts the server, or takes over that of the attempt before."""

    def __init__(self, run: RunDir, plan: Plan, environment: Mapping[str, str]) -> None:
        self._path = run.warm
        self._pid = 0
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._link.settimeout(_PATIENCE)
        try:
            self._own()
            self._pid = int(self._link.recv(100))
        except (OSError, ValueError):  # there is none yet, or no more
            self._link.close()
            self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with contextlib.suppress(OSError):  # its ranks find no server, and start as others do
                self._start(run, plan, environment)
                self._own()
        self._born = platform.born(self._pid)
        platform.look_behind(self._pid)
        self.kept = False

    def _own(self) -> None:
        """Connect to the server, which ends with this process from now on."""
        with platform.socket_path(str(self._path)) as short:
            self._link.connect(short)
        self._link.sendall(OWN)

    def _start(self, run: RunDir, plan: Plan, environment: Mapping[str, str]) -> None:
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with platform.socket_path(str(self._path)) as short:
            listener.bind(short)
        listener.listen(1024)
        run.logs.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = os.open(run.logs / "warm.log", flags, 0o644)
        python = plan.lead.python
        listener.set_inheritable(True)
        fd, agent = str(listener.fileno()), str(os.getpid())
        program = str(Path(__file__).parents[1] / "rank" / "fork_server.py")
        argv = [python, program, fd, agent, str(self._path), python, environment[WARM]]
        if plan.scripted:  # as the launcher, whose ranks it forks
            argv = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', f"{plan.scratch}/work", *argv]
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ]
        reset = [getattr(signal, f"SIG{name}") for name in ("XFSZ", "PIPE", "TERM", "INT", "HUP")]
        try:
            self._pid = os.posix_spawn(
                argv[0], argv, _environment(plan, environment),
                file_actions=actions, setpgroup=0, setsigdef=reset,
            )  # fmt: skip
        finally:
            os.close(log)
            listener.close()

    def leave(self, *, keep: bool) -> None:
        """End the server, or leave it to the node agent of the next attempt."""
        with contextlib.suppress(OSError):
            if keep:
                self._link.sendall(KEEP)
                self.kept = True
        self._link.close()
        if not self.kept:
            self._path.unlink(missing_ok=True)
            if self._pid and platform.is_alive(self._pid, self._born):
                os.kill(self._pid, signal.SIGKILL)


def _environment(plan: Plan, environment: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment of the ranks, as far as it is known before they start."""
    environ = {**os.environ, **environment}
    # It outlives its attempt: what ends the rest of that by this mark does not mean it.
    environ.pop(RUN_ID, None)
    hook = f"{plan.lead.package}/shanty/runtime/rank/hook"
    paths = [each for each in environ.pop("PYTHONPATH", "").split(os.pathsep) if each != hook]
    if any(paths):
        environ["PYTHONPATH"] = os.pathsep.join(paths)
    ranks = plan.ranks or 1
    here = plan.attempt.placement.get(plan.lead.name, ranks)
    environ.setdefault("OMP_NUM_THREADS", threads(environ, here))
    return environ
