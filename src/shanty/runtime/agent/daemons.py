"""Starts a launcher's daemons (prted, hydra_pmi_proxy) on a worker, in place of sshd.

The launcher on the lead host calls what it believes to be ssh; the controller passes the command
on to that host's node agent, which runs it here: as its own child, so that it ends when it has to.
"""

from __future__ import annotations

import base64
import os
import pwd
import signal
from typing import Any, Dict, List, Mapping, Optional, Tuple

from shanty.runtime.agent.channel import Channel
from shanty.runtime.frames import STDERR, STDOUT

_BOURNE = ("sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "busybox")


class Daemons:
    """The launcher's daemons on this host, each known by the number that the controller gave it."""

    def __init__(self, controller: Channel, environ: Mapping[str, str], folder: str) -> None:
        self._controller = controller
        self._environ = environ
        self._folder = folder
        self._pids: Dict[int, int] = {}
        self.streams: Dict[int, Tuple[int, int]] = {}

    def start(self, number: int, command: str) -> List[int]:
        """Run `command` by a shell; returns the descriptors of its output."""
        actions: List[Tuple[int, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)  # type: ignore[list-item]
        ]
        mine, theirs = [], []
        for stream in (STDOUT, STDERR):
            read, write = os.pipe()
            os.set_blocking(read, False)
            mine.append(read)
            theirs.append(write)
            actions.append((os.POSIX_SPAWN_DUP2, write, stream))
            self.streams[read] = (number, stream)
        # The spawned shell starts in our folder: sshd would have started it in the home.
        shell = login_shell()
        words = f"cd {_quoted(self._folder)} && {command}" if shell == "/bin/sh" else command
        try:
            pid = os.posix_spawn(
                shell,
                [shell, "-c", words],
                self._environ,
                file_actions=actions,
                setsigdef=[signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
            )
            self._pids[pid] = number
        except OSError as error:
            self._controller.send(daemon=number, code=127, error=f"{shell}: {error.strerror}")
        finally:
            for end in theirs:
                os.close(end)
        return mine

    def pump(self, fd: int) -> bool:
        """Pass on what a daemon wrote; False when that stream has ended, and is closed."""
        if self._take(fd) != 0:
            return True
        del self.streams[fd]
        os.close(fd)
        return False

    def _take(self, fd: int) -> Optional[int]:
        """Pass on what there is now; how much, 0 at the end of the stream, None when empty."""
        number, stream = self.streams[fd]
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return None
        if data:
            text = base64.b64encode(data).decode("ascii")
            self._controller.send(daemon=number, stream=stream, data=text)
        return len(data)

    def ended(self, pid: int, code: int) -> bool:
        """Tell the controller of a child's end if it is one of ours."""
        number: Optional[int] = self._pids.pop(pid, None)
        if number is None:
            return False
        for fd, (owner, _) in self.streams.items():
            while owner == number and self._take(fd):
                pass  # its last words; the stream's end is seen by whoever polls it
        self._controller.send(daemon=number, code=code)
        return True


def login_shell() -> str:
    """/bin/sh where the login shell speaks its language, else the login shell, as sshd uses."""
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        shell = ""
    if not shell or os.path.basename(shell) in _BOURNE:
        return "/bin/sh"
    return shell


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def answer_of(message: Mapping[str, Any]) -> Tuple[int, Optional[int], int, bytes]:
    """A daemon's message: its number, exit code (None: not yet), stream and bytes."""
    data = base64.b64decode(message.get("data", ""))
    text = str(message.get("error", ""))
    return (
        int(message["daemon"]),
        message.get("code"),
        int(message.get("stream", STDERR)),
        data or text.encode(),
    )
