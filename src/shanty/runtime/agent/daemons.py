"""Starts a launcher's daemons (prted, hydra_pmi_proxy) on a worker, in place of sshd.

The launcher on the lead host calls what it believes to be ssh; the controller passes the command
on to that host's node agent, which runs it here: as its own child, so that it ends when it has to.
"""

from __future__ import annotations

import base64
import os
import pwd
import shlex
import signal
from typing import Any, Dict, Mapping, Optional, Tuple

from shanty.runtime.agent.channel import Channel
from shanty.runtime.frames import STDERR, Output

_BOURNE = ("sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "busybox")


class Daemons:
    """The launcher's daemons on this host, each known by the number that the controller gave it."""

    def __init__(self, controller: Channel, environ: Mapping[str, str], folder: str) -> None:
        self._controller = controller
        self._environ = environ
        self._folder = folder
        self._pids: Dict[int, int] = {}
        self.output = Output(self._send)

    def start(self, number: int, command: str) -> None:
        """Run `command` by a shell."""
        ends, actions = self.output.open(number)
        nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        # The spawned shell starts in our folder: sshd would have started it in the home.
        shell = login_shell()
        words = f"cd {shlex.quote(self._folder)} && {command}" if shell == "/bin/sh" else command
        try:
            pid = os.posix_spawn(
                shell,
                [shell, "-c", words],
                self._environ,
                file_actions=[nothing, *actions],
                setsigdef=[signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
            )
            self._pids[pid] = number
        except OSError as error:
            self._controller.send(daemon=number, code=127, error=f"{shell}: {error.strerror}")
        finally:
            for end in ends:
                os.close(end)

    def _send(self, number: int, stream: int, data: bytes) -> None:
        text = base64.b64encode(data).decode("ascii")
        self._controller.send(daemon=number, stream=stream, data=text)

    def ended(self, pid: int, code: int) -> bool:
        """Tell the controller of a child's end if it is one of ours."""
        number: Optional[int] = self._pids.pop(pid, None)
        if number is None:
            return False
        self.output.finish(number)
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
