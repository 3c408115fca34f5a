"""The node agent of the lead host in a container, started by the controller, which is outside.

The standard input of rank 0 comes through a FIFO in the run's directory, since the standard streams
of a container are the channel between the two agents.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import List, Tuple

from shanty.runtime import platform
from shanty.runtime.channel import Channel
from shanty.runtime.cleanup import end_container
from shanty.runtime.containers.container import Container, with_this_host
from shanty.runtime.containers.engines import environ_of, wrapped
from shanty.runtime.errors import LaunchError
from shanty.runtime.plan import Plan, read_plan
from shanty.runtime.run_status import conclude, read_status
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import Failure, State

_INPUT = "input"  # the FIFO
_PIECE = 1 << 16
_ENDING = 2.0  # seconds for an engine's command to end with its container; podman may take 20
_REMOVING = 25.0  # seconds for it where nothing waits, so that it removes the container itself
_LAST_WORD = 5.0  # seconds for a controller that still lives to write how the run ended


def start(run: RunDir, plan: Plan) -> Tuple[Channel, subprocess.Popen[bytes]]:
    """Start the container and the node agent in it; our standard input goes to rank 0."""
    container = with_this_host(Container.from_json(plan.lead.container))
    words = wrapped(container, [*plan.lead.boot, "agent.container_lead", str(run.path)])
    _feed(run.of_attempt / _INPUT)
    with log_of(run).open("ab") as log:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **environ_of(container)},
            start_new_session=True,
        )
    assert process.stdin is not None and process.stdout is not None
    return Channel(process.stdout.fileno(), process.stdin.fileno()), process


def log_of(run: RunDir) -> Path:
    """Return the log of the engine's command."""
    return run.logs / "container.log"


def ended(pid: int, patience: float = _ENDING) -> int:
    """Return the exit code of the engine's command, which is killed where it does not end."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def end_of(run: RunDir, plan: Plan, pid: int, *, began: bool) -> Failure:
    """Return why the engine's command has ended; `began`: the node agent was ready for ranks."""
    from shanty.runtime.containers import engine_errors

    code = ended(pid)
    return engine_errors.ended(
        plan.lead, code, log_of(run).read_text(errors="replace"), began=began
    )


def leave(pid: int, plan: Plan) -> None:
    """Let the engine's command remove the container; where its engine hangs, both are ended."""
    with contextlib.suppress(ChildProcessError):  # how it ended is known already
        if ended(pid, _REMOVING) == -signal.SIGKILL:
            end_container(plan)


def _feed(path: Path) -> None:
    """Copy our standard input into the FIFO, by a process of its own that ends with us."""
    os.mkfifo(path, 0o600)
    ours = os.getpid()
    if os.fork():
        return
    platform.end_with_parent(signal.SIGKILL)
    with contextlib.suppress(OSError):
        if os.getppid() == ours:
            sink = os.open(path, os.O_WRONLY)  # waits for the node agent
            while data := os.read(0, _PIECE):
                while data:
                    data = data[os.write(sink, data) :]
    os._exit(0)


def main(argv: List[str]) -> int:
    """Be the node agent of the run whose directory is `argv[0]`."""
    from shanty.runtime.node.node_agent import NodeAgent

    platform.continue_host()
    run = RunDir(Path(argv[0]))
    plan = read_plan(run)
    if plan is None:
        return 71
    run = RunDir(run.path, plan.attempt.number)
    sink = os.dup(1)
    os.dup2(2, 1)  # nothing but messages may get into the channel
    channel = Channel(os.dup(0), sink)
    source = os.open(run.of_attempt / _INPUT, os.O_RDONLY)
    os.dup2(source, 0)
    os.close(source)
    NodeAgent(run, plan, channel).run()
    if not channel.open:
        _conclude(run, plan)
    return 0


def _conclude(run: RunDir, plan: Plan) -> None:
    """Write down that the controller was killed, unless it writes the end of the run itself."""
    until = time.monotonic() + _LAST_WORD
    while not read_status(run).state.final and time.monotonic() < until:
        time.sleep(0.1)
    failure = Failure(
        f"the controller on {plan.lead.name} was killed",
        "without it the run cannot be led, so the node agent ended the ranks",
        "see `shanty logs --agent`; run again",
    )
    conclude(run, State.FAILED, failure, LaunchError.exit_code)
