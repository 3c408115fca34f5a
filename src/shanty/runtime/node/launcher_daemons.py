"""Starts a launcher's daemons (prted, hydra_pmi_proxy) on a worker, in place of sshd.

The launcher on the lead host calls the program in the place of ssh; the controller passes the
command on to that host's node agent. It runs the command as its own child, so that it can end it.
"""

from __future__ import annotations

import os
import pwd
import shlex
import signal
from typing import Callable, Dict, Mapping, Optional

from shanty.runtime.frames import Output
from shanty.runtime.messages import DaemonEnded, DaemonOutput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.messages import Told

_BOURNE = ("sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "busybox")


class Daemons:
    """The launcher's daemons on this host, each known by the number that the controller gave it."""

    def __init__(
        self, send: Callable[[Told], None], environ: Mapping[str, str], folder: str
    ) -> None:
        """`send` takes messages to the controller."""
        self._send = send
        self._environ = environ
        self._folder = folder
        self._pids: Dict[int, int] = {}
        self.output = Output(self._pass_on)

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
            self._send(DaemonEnded(number, 127, f"{shell}: {error.strerror}"))
        finally:
            for end in ends:
                os.close(end)

    def _pass_on(self, number: int, stream: int, data: bytes) -> None:
        self._send(DaemonOutput(number, stream, data))

    def ended(self, pid: int, code: int) -> bool:
        """Report a child's end to the controller if it is a daemon."""
        number: Optional[int] = self._pids.pop(pid, None)
        if number is None:
            return False
        self.output.finish(number)
        self._send(DaemonEnded(number, code))
        return True


def login_shell() -> str:
    """Return /bin/sh where the login shell is compatible, else the login shell, as sshd uses."""
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        shell = ""
    if not shell or os.path.basename(shell) in _BOURNE:
        return "/bin/sh"
    return shell
