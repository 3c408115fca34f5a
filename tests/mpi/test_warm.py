"""`--warm`: ranks are forked from a Python that has their frameworks imported."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runs import Shanty, wait_for
from shanty.runtime import platform

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

# What a script can see of its start.
SEEN = """
import json, os, random, resource, signal, sys, threading
early = "numpy" in sys.modules
import numpy as np
import mpi4py.MPI as MPI

umask = os.umask(0o22)
told = {
    "argv": sys.argv, "file": __file__, "path": sys.path, "cwd": os.getcwd(), "umask": umask,
    "limits": [resource.getrlimit(n) for n in range(16)],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "ignored": [n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN
                and n != signal.SIGTTIN],  # which Hydra ignores
    "cores": sorted(os.sched_getaffinity(0)), "threads": threading.active_count(),
    "variables": sorted(os.environ), "input": sys.stdin.read(),
    "streams": [repr(each) for each in (sys.stdin, sys.stdout, sys.stderr)],
    "buffers": [type(each.buffer).__name__ for each in (sys.stdin, sys.stdout, sys.stderr)],
    "line": open("/proc/self/cmdline").read(), "words": sys.orig_argv,
    "finders": [type(each).__name__ for each in sys.meta_path],
    "descriptors": len(os.listdir("/proc/self/fd")), "main": sys.modules["__main__"].__file__,
    "size": MPI.COMM_WORLD.allreduce(1),
}
chance = MPI.COMM_WORLD.allgather((random.random(), np.random.rand()))
print(json.dumps({"early": early, "differ": len(set(chance)) == len(chance), "told": told}))
"""
# The first attempt waits for its end; another one says whether its modules were there.
AGAIN = """
import os, sys, time
early = "numpy" in sys.modules
from mpi4py import MPI
import numpy
MPI.COMM_WORLD.Barrier()
print("early" if early else "late", flush=True)
if "SHANTY_ATTEMPT_DIR" not in os.environ:
    time.sleep(300)
"""
NOTE = "ranks of this host start without --warm"


def seen(shanty: Shanty, *words: str) -> list[dict[str, Any]]:
    """What the ranks of a run see, in the order of their ranks."""
    done = shanty("run", "-n", "2", *words, stdin=b"some input\n", timeout=120)
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if '{"early"' in line)
    return [json.loads(line.partition("] ")[2]) for line in lines]


def test_a_rank_is_as_without_it(shanty: Shanty, flavour: str) -> None:
    shanty.script(SEEN, "train.py")
    words = ["--mpi", flavour, "train.py", "-x", "two words"]
    warm = seen(shanty, "--warm", *words)
    assert [each["early"] for each in warm] == [True, True]
    assert warm[0]["differ"]
    cold = seen(shanty, *words)
    assert [each["early"] for each in cold] == [False, False]
    for with_it, without in zip(warm, cold, strict=True):
        assert with_it["told"] == without["told"]


@pytest.fixture
def agents_of(shanty: Shanty) -> Iterator[Any]:
    """Start a run that waits; returns its process and the pids of node agent and fork server."""

    def begin(*words: str) -> tuple[Any, int, int]:
        process = shanty.start("run", "-n", 2, *words, shanty.script(AGAIN))
        logs = lambda: [path.read_text() for path in shanty.last.rank_logs().values()]  # noqa: E731
        wait_for(lambda: shanty.status() and sum("early" in log for log in logs()) == 2, 60)
        agent = shanty.agents()["node_agent"]
        return process, agent, server_of(agent)

    yield begin


def server_of(agent: int) -> int:
    (found,) = (
        entry.pid
        for entry in platform.descendants(agent)
        if entry.parent == agent and "fork_server.py" in str(platform.command(entry.pid))
    )
    return found


def ended(process: Any) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=90)
    return process.returncode, out.decode(), err.decode()


def test_another_attempt_is_forked_from_the_same_server(
    shanty: Shanty, flavour: str, agents_of: Any
) -> None:
    process, agent, server = agents_of("--warm", "--mpi", flavour, "--retries", "1")
    launchers = [e for e in platform.descendants(agent) if e.parent == agent and e.pid != server]
    for entry in launchers:
        os.kill(entry.pid, signal.SIGKILL)
    code, out, err = ended(process)
    assert code == 0, err
    assert (out.count("early"), out.count("late")) == (4, 0)
    assert NOTE not in out + err
    assert "attempt 2 of 2" in err
    wait_for(lambda: platform.process(server) is None, 10, "the server is left")
    assert not shanty.last.warm.exists()


def test_the_server_is_killed_and_so_is_the_agent(shanty: Shanty, agents_of: Any) -> None:
    """Running ranks do not need the server, the next ones start without it."""
    process, agent, server = agents_of("--warm", "--retries", "1")
    (line,) = {tuple(platform.command(entry.pid)) for entry in ranks_of(server)}
    assert line[-1].endswith("script.py")
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: platform.process(server) is None, 10)
    stacks = shanty("stacks").stdout.splitlines()
    assert stacks[0] == "ranks 0-1:"
    assert [line.split("/")[-1] for line in stacks[1:] if line] == ["script.py:9"]
    os.kill(agent, signal.SIGKILL)
    code, out, err = ended(process)
    assert code == 0, err
    assert out.count("early") == 4  # the agent of the second attempt has started another server
    assert platform.process(agent) is None


def ranks_of(server: int) -> list[platform.Process]:
    return [e for e in platform.descendants(server) if e.parent != server]


def test_a_signal_ends_a_rank(shanty: Shanty, agents_of: Any) -> None:
    """A signal ends a rank as it would any other."""
    process, _, server = agents_of("--warm")
    os.kill(ranks_of(server)[0].pid, signal.SIGSEGV)
    code, _, err = ended(process)
    assert code == 139, err
    assert "SIGSEGV" in err


def test_a_run_that_is_stopped_leaves_nothing(agents_of: Any) -> None:
    process, agent, server = agents_of("--warm")
    ranks = ranks_of(server)
    assert len(ranks) == 2
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 130
    pids = [agent, server, *(entry.pid for entry in ranks)]
    wait_for(lambda: not any(map(platform.process, pids)), 10, "processes are left")


def test_what_cannot_be_forked_starts_as_ever(shanty: Shanty) -> None:
    """Modules that start threads or MPI, a variable that is read early, a name of the script's."""
    thread = "threading.Thread(target=time.sleep, args=[60], daemon=True)"
    shanty.script(f"import threading, time\n{thread}.start()\n", "busy.py")
    shanty.script("from mpi4py import MPI\n", "parallel.py")
    shanty.script("import os\nprint('rank', os.environ['RANK'])\n", "train.py")
    (shanty.folder / "library").mkdir()
    for folder in ("library/", ""):
        shanty.script("", f"{folder}colours.py")
    here = {"PYTHONPATH": f"{shanty.folder}:{shanty.folder}/library"}
    for modules, why in (
        ("busy", "the import of its modules starts threads"),
        ("parallel", "the import of its modules starts MPI"),
        ("colours", f"the script has a {shanty.folder}/colours.py of its own"),
    ):
        done = shanty("run", f"--warm={modules}", "-n", "2", "train.py", env=here)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("] rank ") == 2
        assert f"{NOTE}: {why}" in done.stdout + done.stderr


def test_refusals(shanty: Shanty, tmp_path: Path) -> None:
    shanty.script("import os\nos.environ['A'] = 'b'\nimport torch\n", "plain.py")
    for words, why in (
        (["--warm", "plain.py"], "plain.py imports no framework at its top"),
        (["--warm=a-b", "plain.py"], "--warm takes the names of modules, not 'a-b'"),
        (["--warm=torch", "echo", "x"], "--warm needs a Python script"),
        (["--warm", "--", "mpirun", "-n", "2", "python", "plain.py"], "needs a Python script"),
    ):
        done = shanty("run", *words)
        assert done.returncode == 2, done.stderr
        assert why in done.stderr
