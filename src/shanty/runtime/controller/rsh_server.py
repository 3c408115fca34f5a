"""Takes the launcher's calls of ssh, and has the node agents carry them out.

`rank/rsh_client.py`, which the launcher finds as `ssh`, sends the host, the command and its own
output descriptors over a Unix socket and waits for the exit code.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import re
import select
import signal
import socket
from typing import Callable, Dict, List, Optional, Tuple, Union

from shanty.runtime import platform
from shanty.runtime.controller.worker_link import WorkerLink
from shanty.runtime.frames import STDERR
from shanty.runtime.messages import DaemonEnded, DaemonOutput, StartDaemon
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.plan import Plan, namesakes
from shanty.runtime.rank.rsh_client import LOST

_ROOM = 2.0  # seconds for the launcher to read what a daemon of it says
_PIECE = select.PIPE_BUF  # bytes that a pipe with room takes without waiting
# A daemon that ends by one of these did not mean to; SIGTERM is how launchers end them.
_BLOWS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)


class _Call:
    """One call of ssh by the launcher."""

    def __init__(
        self, worker: WorkerLink, connection: socket.socket, outputs: Tuple[int, int], command: str
    ) -> None:
        self.worker = worker
        self.connection = connection
        self.outputs = outputs
        self._unread = False

    def write(self, stream: int, data: bytes) -> None:
        """Pass on a daemon's output; a launcher that does not read it must not block us."""
        fd = self.outputs[stream - 1]
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        with contextlib.suppress(OSError):
            while data and not self._unread:
                if poll.poll(_ROOM * 1000):
                    data = data[os.write(fd, data[:_PIECE]) :]
                else:
                    self._unread = True

    def lose(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.sendall(LOST)

    def end(self, code: int) -> None:
        for fd in self.outputs:
            os.close(fd)
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps({"code": code}).encode() + b"\n")
        self.connection.close()


class RshServer:
    """The controller's end of the socket at which the launcher's ssh calls arrive."""

    def __init__(self, worker_of: Callable[[str], Optional[WorkerLink]], plan: Plan) -> None:
        """`worker_of` finds the worker that a name stands for."""
        self._worker_of = worker_of
        self._lead = plan.lead
        self._prefix: str = plan.lead.mpi["prefix"]
        self._flavour = FLAVOURS[plan.lead.mpi["flavour"]]
        self._namesakes = namesakes(plan.attempt.nodes)
        self._calls: Dict[int, _Call] = {}
        self._count = 0
        self._socket: Optional[socket.socket] = None
        self.killed: Optional[Tuple[str, int]] = None  # host and signal of the first killed daemon
        self.is_elastic = False  # from now on, the launcher must not learn of a lost daemon
        self._lost: List[_Call] = []
        self.ended: Dict[int, int] = {}  # the codes of daemons whose end it does not know of

    def listen(self, path: str) -> int:
        """Open the socket at `path`; returns the descriptor to poll."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with platform.socket_path(path) as name:
            self._socket.bind(name)
        os.chmod(path, 0o600)
        self._socket.listen(256)
        return self._socket.fileno()

    def accept(self) -> Optional[Tuple[WorkerLink, StartDaemon]]:
        """Take one call; returns the order to start the daemon that it asks for, and for whom."""
        assert self._socket is not None
        try:
            connection, _ = self._socket.accept()
        except OSError:  # the caller has gone, or no descriptor is left
            return None
        connection.settimeout(2.0)
        fds = array.array("i")
        try:
            data, ancillary, _, _ = connection.recvmsg(1 << 20, socket.CMSG_SPACE(8))
            for _, _, raw in ancillary:
                fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
            while not data.endswith(b"\n"):
                more = connection.recv(1 << 20)
                if not more:
                    break
                data += more
            call = json.loads(data)
            worker = self._worker_of(call["host"])
            known = worker is not None and worker.live and len(fds) >= 2
            if not known:
                lead = self._lead  # Hydra may not recognise its own host's name
                here = call["host"] in (lead.address, lead.name, *lead.names)
                answer = {"here": True} if here else {"unknown": True}
                connection.sendall(json.dumps(answer).encode() + b"\n")
        except (OSError, ValueError, KeyError, TypeError):
            known = False
        if not known:
            connection.close()
            for fd in fds:
                os.close(fd)
            return None
        assert worker is not None
        self._count += 1
        command = self._for_host(str(call["command"]), worker)
        self._calls[self._count] = _Call(worker, connection, (fds[0], fds[1]), command)
        return worker, StartDaemon(self._count, command)

    def _for_host(self, command: str, worker: WorkerLink) -> str:
        """The command with the MPI's paths as they are on that host."""
        for prefix in sorted({self._prefix, os.path.realpath(self._prefix)}, key=len, reverse=True):
            own = worker.node.mpi["prefix"].replace("\\", r"\\")
            command = re.sub(re.escape(prefix) + r"(?![\w.-])", own, command)
        if worker.name in self._namesakes:
            command = self._flavour.named_daemon(command, worker.node.address)
        return command

    def answer(self, message: Union[DaemonOutput, DaemonEnded]) -> None:
        """Take the output of a daemon, or its end."""
        call = self._calls.get(message.number)
        if call is None:
            return
        if isinstance(message, DaemonOutput):
            call.write(message.stream, message.data)
            return
        call.write(STDERR, message.error.encode())
        if self.is_elastic:
            self.ended[message.number] = message.code
        else:
            self._end(message.number, message.code)

    def without_daemon(self) -> Dict[str, int]:
        """Return the hosts of an elastic run whose daemon has ended, and its exit code."""
        return {self._calls[number].worker.name: code for number, code in self.ended.items()}

    def release(self) -> None:
        """Let the launcher know which daemons have ended: its ranks have, too."""
        while self.ended:
            self._end(*self.ended.popitem())

    def _end(self, number: int, code: int) -> None:
        call = self._calls.pop(number)
        number_of_signal = -code if code < 0 else code - 128  # a shell says 128 + N
        if number_of_signal in _BLOWS and self.killed is None:
            self.killed = (call.worker.name, number_of_signal)
        call.end(code if code >= 0 else 128 - code)

    def dropped(self) -> Optional[WorkerLink]:
        """Return the host whose call of ssh is gone here, while its daemon is on; or None."""
        poll, calls = select.poll(), {c.connection.fileno(): c for c in self._calls.values()}
        for fd in calls:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(0):
            with contextlib.suppress(ConnectionError):
                if calls[fd].connection.recv(1, socket.MSG_PEEK):
                    continue
            return calls[fd].worker
        return None

    def lost(self, worker: WorkerLink) -> None:
        """A host is gone: its calls end as an ssh whose connection was lost does.

        In an elastic run the launcher is not to know: they do not end.
        """
        for number in [n for n, call in self._calls.items() if call.worker is worker]:
            call = self._calls.pop(number)
            if self.is_elastic:
                self.ended.pop(number, None)
                self._lost.append(call)
                call.lose()
            else:
                call.end(255)

    def close(self) -> None:
        """Let go of the socket and of all calls."""
        for call in (*self._calls.values(), *self._lost):
            call.end(255)
        self._calls.clear()
        if self._socket is not None:
            self._socket.close()
