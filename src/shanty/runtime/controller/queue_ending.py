"""Asks a queue why it ends a run, once it has sent the controller SIGTERM.

Where a queue can be asked, its batch script sets SHANTY_QUEUE_WHY to the command. The command
prints one JSON object: "state" (stopped, failed, or pending where the run is queued again),
"reason", "failure" and "code".
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
from typing import Any, Dict, Optional

from shanty.runtime.errors import STOPPED_EXIT, LaunchError
from shanty.runtime.spec import Failure, State

GRACE = "SHANTY_QUEUE_GRACE"  # seconds that a queue leaves a run after its SIGTERM
WHY = "SHANTY_QUEUE_WHY"  # the command that asks the queue why it ends a run
WARNING = "SHANTY_WARNING"  # the signal that warns of the end
_PATIENCE = 6.0  # seconds for the answer, once everything of the run has ended


def grace(usual: float) -> float:
    """Return the seconds that ranks may take to end after the queue's SIGTERM."""
    with contextlib.suppress(KeyError, ValueError):
        return max(0.5, float(os.environ[GRACE]))
    return usual


class QueueEnding:
    """The question to the queue, asked while the ranks end."""

    def __init__(self) -> None:
        self._process: Optional[subprocess.Popen[str]] = None
        words = shlex.split(os.environ.get(WHY, ""))
        if words:
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, text=True, start_new_session=True,
                    preexec_fn=_ignore_term,
                )  # fmt: skip

    def answer(self) -> Dict[str, Any]:
        """Return the changes of the run's status; none where the queue gives no answer."""
        if self._process is None:
            return {}
        try:
            out, _ = self._process.communicate(timeout=_PATIENCE)
            return _changes(json.loads(out))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        except (ValueError, KeyError, TypeError):
            pass
        return {}


def ended_by_term(failure: Optional[Failure], code: Optional[int]) -> bool:
    """True where nothing has failed, or only since SIGTERM came to all processes of the job."""
    if failure is None or failure.signal == "SIGTERM" or code == 128 + signal.SIGTERM:
        return True
    return failure.rank is None and code == LaunchError.exit_code


def _ignore_term() -> None:
    """Ignore the queue's SIGTERM, which goes to all processes of the job."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _changes(said: Dict[str, Any]) -> Dict[str, Any]:
    state = State(said["state"])
    if state is State.PENDING:
        again = {"up": 0, "joined": 0, "began": None, "started": None, "stalled": None}
        return {"state": state, "reason": str(said["reason"]), "failure": None, **again}
    if state is State.FAILED:
        failure = Failure(**said["failure"])
        return {"state": state, "failure": failure, "exit_code": int(said["code"])}
    if state is not State.STOPPED:
        raise ValueError(f"{state} is not for a queue to say")
    return {"state": state, "failure": None, "exit_code": STOPPED_EXIT}
