"""A rank fails while the others wait: the run ends at once and says who and why."""

from __future__ import annotations

import os
import signal
import time

import pytest

from runs import WORKERS, wait_for
from shanty.runtime.rundir import read_json

EXITS = {"raise": 1, "wordless": 1, "exit": 3, "kill": 137, "segv": 139, "abort": 7}
WORDS = {
    "raise": "ValueError: a bad thing",
    "wordless": "WordlessError: <exception str() failed>",
    "exit": "sys.exit(3)",
    "kill": "SIGKILL",
    "segv": "SIGSEGV",
    "abort": "exit code 7",
}


def seconds_after_start(shanty) -> float:
    """How long after all ranks had joined the run had ended."""
    from shanty.runtime.rundir import read_lines

    def ended() -> list[float]:
        states = [e for e in read_lines(shanty.last.events) if e["event"] == "state"]
        return [e["time"] for e in states if e["status"]["state"] == "failed"]

    wait_for(ended)  # the command ends once the status says so, which is written first
    events = read_lines(shanty.last.events)
    joined = max(e["time"] for e in events if e["event"] == "rank-joined")
    return ended()[0] - joined


@pytest.mark.parametrize("how", EXITS)
def test_the_first_failure_ends_the_run(shanty, flavour, how):
    done = shanty(
        "run", "--mpi", flavour, "-n", 4, "--oversubscribe", WORKERS / "misbehave.py", how
    )
    assert done.returncode == EXITS[how], done.stderr
    assert WORDS[how] in done.stderr
    assert seconds_after_start(shanty) < 3
    failure = shanty.status()["failure"]
    if how == "abort" and flavour in ("mpich", "intel"):
        assert "MPI_Abort" in done.stderr  # Hydra kills all ranks at once: none can be named
    else:
        assert failure["rank"] == 2
        assert "rank 2" in done.stderr
    if how == "raise":
        assert done.stderr.count("Traceback") == 1
        assert "a bad thing" in failure["lines"][-1]
        assert "shanty/runtime" not in "".join(failure["lines"])


def test_a_rank_that_leaves_without_finalize(shanty, flavour):
    done = shanty(
        "run", "--mpi", flavour, "-n", 4, "--oversubscribe", WORKERS / "misbehave.py", "leave"
    )
    assert done.returncode == 72
    assert "without MPI_Finalize" in done.stderr
    assert shanty.status()["failure"]["rank"] == 2


def test_a_failing_helper_of_a_rank_harms_nothing(shanty, flavour):
    done = shanty(
        "run", "--mpi", flavour, "-n", 4, "--oversubscribe", WORKERS / "misbehave.py", "helper"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("end", ["raise ValueError(3)", "sys.exit('no')"])
def test_a_failing_child_of_a_rank_harms_nothing(shanty, end):
    fork = f"import os, sys\nchild = os.fork()\nif not child:\n    {end}\nos.waitpid(child, 0)\n"
    done = shanty("run", "-n", 1, shanty.script(fork))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("options", [["-I"], ["-u", "-X", "dev"]])
def test_python_with_options_of_its_own(shanty, flavour, options):
    done = shanty(
        "run",
        "--mpi",
        flavour,
        "-n",
        4,
        "--oversubscribe",
        "python",
        *options,
        WORKERS / "misbehave.py",
        "raise",
    )
    assert done.returncode == 1
    assert "a bad thing" in done.stderr
    assert seconds_after_start(shanty) < 3


@pytest.mark.parametrize("how", ["raise", "exit", "wordless"])
def test_a_python_hidden_in_a_shell(shanty, flavour, how):
    script = WORKERS / "misbehave.py"
    done = shanty(
        "run",
        "--mpi",
        flavour,
        "-n",
        4,
        "--oversubscribe",
        "bash",
        "-c",
        f"python {script} {how}; exit $?",
    )
    assert done.returncode == EXITS[how], done.stderr
    assert shanty.status()["failure"]["rank"] == 2


def test_a_time_limit(shanty, flavour):
    script = shanty.script("import time\nfrom mpi4py import MPI\ntime.sleep(100)\n")
    began = time.monotonic()
    done = shanty("run", "--mpi", flavour, "-n", 2, "--time-limit", "2s", script)
    assert done.returncode == 124
    assert "time limit of 2 s" in done.stderr
    assert time.monotonic() - began < 20


def test_a_script_that_cannot_be_compiled(shanty):
    done = shanty("run", "-n", 2, shanty.script("def\n"))
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr
    assert "run.py" not in done.stderr


REMOVES = """
import os, shutil
from mpi4py import MPI
world = MPI.COMM_WORLD
print("before", flush=True)
world.barrier()
if world.rank == 0:
    shutil.rmtree(os.environ["SHANTY_RUN_DIR"] + "{below}")
world.barrier()
for number in range(1000):
    print("after", number)
print(end="", flush=True)
{then}
"""


def test_logs_are_removed_during_the_run(shanty, flavour):
    """They are put back."""
    script = shanty.script(REMOVES.format(below="/logs", then=""))
    done = shanty("run", "--mpi", flavour, "-n", 2, script)
    assert done.returncode == 0, done.stderr
    words = ["before", *(f"after {number}" for number in range(1000))]
    assert sorted(done.stdout.splitlines()) == sorted(f"[{r}] {w}" for r in (0, 1) for w in words)
    logged = shanty("logs", "last").stdout
    assert sorted(logged.splitlines()) == sorted(done.stdout.splitlines())


def test_the_run_s_folder_is_removed_during_the_run(shanty):
    script = shanty.script(REMOVES.format(below="", then="world.recv(source=0)"))
    done = shanty("run", "-n", 2, script)
    assert done.returncode == 71
    assert f"was removed during the run: {shanty.last.path}\n" in done.stderr
    assert "[1] before" in done.stdout.splitlines()
    assert "[1] before" in shanty("logs", "last").stdout.splitlines()
    assert "failed" in shanty("ps").stdout


def test_a_node_agent_that_is_stopped(shanty):
    """It is no less frozen where other processes are busy."""
    script = shanty.script("from mpi4py import MPI\nprint('on', flush=True)\nwhile True: pass\n")
    process = shanty.start("run", "-n", 2, script)
    wait_for(lambda: shanty.status().get("joined") == 2)
    agent = (read_json(shanty.last.agents) or {})["node_agent"]["pid"]
    began = time.monotonic()
    os.kill(agent, signal.SIGSTOP)
    _, said = process.communicate(timeout=40)
    assert process.returncode == 71
    assert time.monotonic() - began < 20
    assert f"(pid {agent}) was frozen: it has said nothing for 1" in said.decode()
