"""Starts the agents of a run: `boot.py agent.start RUN_DIR`.

One process becomes the controller, its child the node agent. The child starts first: the controller
loads the rest of its modules while the launcher is already at work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import List

from shanty.runtime import platform
from shanty.runtime.channel import Channel
from shanty.runtime.errors import ShantyError
from shanty.runtime.plan import Plan, read_plan
from shanty.runtime.rundir import RunDir, write_json

LATER = (  # what the controller imports where it is needed
    "shanty.runtime.controller.attempts",
    "shanty.runtime.controller.container_lead",
    "shanty.runtime.diagnosis.link_check",
    "shanty.runtime.controller.profile",
    "shanty.runtime.node.resource_sampler",
    "shanty.runtime.diagnosis.store_check",
    "shanty.runtime.diagnosis.user_settings",
)


def main(argv: List[str]) -> int:
    """Control the run whose directory is `argv[0]`."""
    run = RunDir(Path(argv[0]))
    plan = read_plan(run)
    if plan is None:
        print(f"{run.plan} is missing or damaged", file=sys.stderr)
        return 71
    if plan.waits or plan.attempt.number > 1:
        from shanty.runtime import run_status
        from shanty.runtime.cleanup import end_waiting
        from shanty.runtime.controller import attempts

        if run_status.read_status(run).state.final:
            return 0  # it was taken out of the queue as its hosts came
        try:
            run, plan = attempts.begin(run, plan)
        except (ShantyError, OSError, ValueError, KeyError, TypeError) as error:
            words = ("the run could not begin", f"{type(error).__name__}: {error}", "")
            if isinstance(error, ShantyError):
                words = (error.what, error.why, error.fix)
            end_waiting(run, plan)
            code = _fail(run, *words)
            attempts.end_attempts(plan)
            return code
    if plan.lead.container:
        return _control_container(run, plan)
    (to_controller, from_agent), (to_agent, from_controller) = os.pipe(), os.pipe()
    controller = os.getpid()
    agent = os.fork()
    if agent == 0:
        os.close(to_controller)
        os.close(from_controller)
        return _be_agent(run, plan, Channel(to_agent, from_agent), controller)
    os.close(to_agent)
    os.close(from_agent)
    return _be_controller(run, plan, Channel(to_controller, from_controller), agent)


def _control_container(run: RunDir, plan: Plan) -> int:
    from shanty.runtime.controller import container_lead

    try:
        channel, process = container_lead.start(run, plan)
    except OSError as error:
        program = plan.lead.container["program"]
        what = f"the container on {plan.lead.name} cannot be started"
        return _fail(run, what, f"{program}: {error.strerror}", "see whether it is still installed")
    return _be_controller(run, plan, channel, process.pid)


def _be_controller(run: RunDir, plan: Plan, channel: Channel, agent: int) -> int:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # the run's standard input is the node agent's to give away
    os.close(null)
    platform.adopt_orphans()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # requests are seen without it, too
    from shanty.runtime.run_agents import agents_record

    write_json(run.agents, agents_record(controller=os.getpid(), node_agent=agent))
    from shanty.runtime.controller.controller import Controller
    from shanty.runtime.node.background import load

    load(LATER)
    again = Controller(run, plan).run(channel, agent)
    if plan.lead.container:
        from shanty.runtime.controller import container_lead

        container_lead.leave(agent, plan)
    else:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(agent, 0)
    if again:  # in a process that remembers nothing of this attempt
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        words = [*plan.lead.host_boot, "agent.start", str(run.path)]
        os.execv(words[0], words)
    return 0


def _be_agent(run: RunDir, plan: Plan, channel: Channel, controller: int) -> int:
    from shanty.runtime.node.node_agent import NodeAgent

    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    NodeAgent(run, plan, channel, controller).run()
    if not channel.open:
        _fail(
            run,
            f"the controller on {os.uname().nodename} (pid {controller}) was killed",
            "without it the run cannot be led, so the node agent ended the ranks",
            "see `shanty logs --agent`; run again",
        )
    return 0


def _fail(run: RunDir, what: str, why: str, fix: str) -> int:
    """Write down that the run has failed; returns its exit code."""
    from shanty.runtime.errors import LaunchError
    from shanty.runtime.run_status import conclude
    from shanty.runtime.spec import Failure, State

    conclude(run, State.FAILED, Failure(what, why, fix), LaunchError.exit_code)
    return LaunchError.exit_code
