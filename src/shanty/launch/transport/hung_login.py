"""Ends what a login left on a host where a login file hangs, and finds out what it waits for.

A process without a terminal goes on when its connection ends, so a login in a file that hangs
(~/.bashrc, ~/.ssh/rc) would stay. Another login is needed to end it, and hangs in the same place.
That one has a terminal: Ctrl-\\ there ends the command that hangs, while bash itself ignores
SIGQUIT and goes on to our command.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import time

from shanty.launch.transport.openssh import ALONE, Route, command_to

_TIME = 6.0  # seconds for all of it
_BETWEEN = 0.4  # seconds between two keys
_QUIT = b"\x1c"  # Ctrl-\
_FOUND, _END = "shanty-hangs ", "shanty-hangs."
# The sessions that began at most $1 seconds ago, with a login from this machine, and are still in a
# login file: of each process the command is shown, then it is killed. The last `set` of each loop
# makes $4 the session and ${20} the start of a process (proc(5)).
_SCRIPT = (
    'most=$1; up=$(cut -d. -f1 /proc/uptime); us="SSH_CONNECTION=${SSH_CONNECTION%% *} "; '
    'set -- $(sed "s/.*) //" /proc/$$/stat); own=$4; all=" "; '
    "for p in /proc/[0-9]*; do "
    'c=$(tr "\\0" " " <$p/cmdline) || continue; '
    'case "$c" in *shanty-tries*|*/.ssh/rc*|*/etc/ssh/sshrc*) ;; *) continue;; esac; '
    'grep -qzF "$us" $p/environ || continue; set -- $(sed "s/.*) //" $p/stat); '
    '[ "$4" != "$own" ] && [ $((up - ${20} / 100)) -le "$most" ] && all="$all$4 "; done; '
    "for p in /proc/[0-9]*; do "
    'set -- $(sed "s/.*) //" $p/stat); case "$all" in *" ${4:-none} "*) '
    f'echo; echo "{_FOUND}$(tr "\\0" " " <$p/cmdline)"; kill -9 ${{p#/proc/}};; esac; done; '
    f'echo; echo "{_END}"'
)
_OURS = ("shanty-tries", "/.ssh/rc", "/etc/ssh/sshrc", "sshd")


def end(route: Route, seconds: float) -> str:
    """End the logins of the last `seconds` that hang on a host; the command that they wait for.

    "" if it cannot be found out.
    """
    script = shlex.join(["sh", "-c", f"{{ {_SCRIPT}; }} 2>/dev/null", "sh", str(int(seconds) + 2)])
    words = [*command_to(route, ALONE), "-tt", "-o", "BatchMode=yes", "--", route.host.login]
    process = subprocess.Popen(
        [*words, f"exec {script}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, bufsize=0, process_group=0,
    )  # fmt: skip
    assert process.stdin and process.stdout
    said, until = b"", time.monotonic() + _TIME
    with process:
        try:
            while _END.encode() not in said and time.monotonic() < until:
                if select.select([process.stdout], [], [], _BETWEEN)[0]:
                    data = os.read(process.stdout.fileno(), 1 << 16)
                    if not data:
                        break
                    said += data
                else:
                    process.stdin.write(_QUIT)
        except OSError:  # it has ended
            pass
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    lines = said.decode(errors="replace").splitlines()
    found = [line.removeprefix(_FOUND).strip() for line in lines if line.startswith(_FOUND)]
    return next((each for each in reversed(found) if not any(w in each for w in _OURS)), "")
