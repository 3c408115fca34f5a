"""kill -9 of every process of ours, one and all, with a container: nothing is left of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from engines import ContainedShanty
from runs import wait_for
from shanty.runtime.rundir import RunDir

SCRIPT = """
import time
from mpi4py import MPI
MPI.COMM_WORLD.barrier()
print("up", flush=True)
time.sleep(600)
"""
_LEFT = 15.0  # seconds after which nothing may be left


def processes(run: RunDir) -> dict[int, list[str]]:
    """The processes of a run, of its container and of its engine, by their commands."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        if run.id.encode() in words or f"SHANTY_RUN_ID={run.id}".encode() in environ:
            found[int(entry.name)] = words.decode(errors="replace").split("\0")
    return found


def is_of_engine(words: list[str]) -> bool:
    """True for what is the engine's own: its daemons' helpers. Its command is ours to start."""
    return os.path.basename(words[0]) in ("conmon", "containerd-shim", "containerd-shim-runc-v2")


def started(shanty: ContainedShanty, *words: str) -> tuple[subprocess.Popen[bytes], RunDir]:
    shanty.script(SCRIPT)
    before = set((shanty.home / "runs").glob("*"))
    words = ("--packages", "none", *words)
    cli = shanty.start("run", *shanty.image_words, *words, "-n", "2", "script.py")
    wait_for(lambda: set((shanty.home / "runs").glob("*")) - before, 60, "a run")
    return cli, shanty.last


def until_up(run: RunDir) -> None:
    def up() -> bool:
        logs = run.rank_logs()
        return len(logs) == 2 and all(b"up" in path.read_bytes() for path in logs.values())

    wait_for(up, 60, "ranks")


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def nothing_left(shanty: ContainedShanty, run: RunDir) -> None:
    wait_for(lambda: not processes(run), _LEFT, f"processes are left: {processes(run)}")
    wait_for(lambda: not shanty.engine.containers(), _LEFT, "a container is left")
    name = f"shanty-{run.id[-11:]}"
    for folder in ("/tmp", "/dev/shm"):
        wait_for(lambda folder=folder: not Path(folder, name).exists(), _LEFT, f"{folder}/{name}")


@pytest.mark.parametrize("who", ["controller", "engine's command", "both", "node agent", "all"])
def test_whoever_is_killed_the_container_is_gone(shanty: ContainedShanty, who: str) -> None:
    cli, run = started(shanty)
    try:
        until_up(run)
        agents, found = shanty.agents(), processes(run)
        victims = {
            "controller": [agents["controller"]],
            "engine's command": [agents["node_agent"]],
            "both": [agents["controller"], agents["node_agent"]],
            "node agent": [
                pid
                for pid, words in found.items()
                if "agent.container_lead" in words
                and pid != agents["node_agent"]
                and not is_of_engine(words)
                and words[0] != "docker"
            ],
            "all": [cli.pid, *(pid for pid, words in found.items() if not is_of_engine(words))],
        }[who]
        assert victims
        kill(victims)
        if who == "all" and shanty.engine.name == "apptainer":  # its /tmp is the machine's
            wait_for(lambda: not processes(run), _LEFT, f"processes are left: {processes(run)}")
            assert shanty("ps", "--json").returncode == 0  # whoever looks next removes that
        nothing_left(shanty, run)
        cli.communicate(timeout=60)
        assert shanty("ps", "--json").returncode == 0  # whoever looks concludes it
        state = str(shanty.status()["state"])
        # Apptainer's container ends with the engine's command, so that nobody is left to write.
        nobody = who == "all" or (who == "both" and shanty.engine.name == "apptainer")
        assert state == ("lost" if nobody else "failed")
    finally:
        cli.kill()
        cli.communicate()


def test_the_command_line_may_go(shanty: ContainedShanty) -> None:
    cli, run = started(shanty)
    until_up(run)
    kill([cli.pid])
    cli.communicate()
    assert shanty("stop", run.id).returncode == 0
    nothing_left(shanty, run)
    assert shanty.status()["state"] == "stopped"


def test_killed_while_the_container_starts(shanty: ContainedShanty) -> None:
    """All that there is, as soon as there is a controller."""
    cli, run = started(shanty)
    try:
        wait_for(run.agents.exists, 30, "a controller")
        kill([cli.pid, *(p for p, words in processes(run).items() if not is_of_engine(words))])
        wait_for(lambda: not processes(run), _LEFT, f"processes are left: {processes(run)}")
        assert shanty("ps", "--json").returncode == 0  # one that never began is removed by that
        nothing_left(shanty, run)
    finally:
        cli.kill()
        cli.communicate()


def test_ctrl_c(shanty: ContainedShanty) -> None:
    cli, run = started(shanty)
    until_up(run)
    os.kill(cli.pid, signal.SIGINT)
    _, err = cli.communicate(timeout=60)
    assert cli.returncode == 130, err.decode()
    nothing_left(shanty, run)
