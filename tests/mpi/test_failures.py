"""A rank fails while the others wait: the run ends at once and says who and why."""

from __future__ import annotations

import bz2
import gzip
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from runs import WORKERS, wait_for
from shanty.runtime import platform
from shanty.runtime.logfile import last_lines
from shanty.runtime.mpi.processes import is_launchers
from shanty.runtime.rundir import read_json

LOST = {  # ends that are 0 to the system: what rank 1 does, and what is said of it
    "abort": ("c.Abort(0)", "rank 1 on {} called MPI_Abort with code 0"),
    "abort of a part": ("part.Abort(0)", "rank 1 on {} called MPI_Abort with code 0"),
    "exit 256": ("sys.exit(256)", "sys.exit(256): an exit code has 8 bits"),
    "_exit": ("os._exit(256)", "rank 1 on {} ended with exit code 0 without MPI_Finalize"),
}
BEFORE = """
import os, sys
from mpi4py import MPI
c = MPI.COMM_WORLD
part = c.Split(c.rank % 2)
c.barrier()
if c.rank == 1:
    print("rank 1 ends", flush=True)
    {}
c.barrier()
"""
ENDLESS = """
import time
from mpi4py import MPI
while True:
    MPI.COMM_WORLD.barrier()
    time.sleep(0.1)
"""
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


SCRIPT = WORKERS / "misbehave.py"
LINES = {
    **{how: [SCRIPT, how] for how in EXITS},
    "raise, isolated": ["python", "-I", SCRIPT, "raise"],
    "raise, with -X": ["python", "-u", "-X", "dev", SCRIPT, "raise"],
    **{
        f"{how}, in a shell": ["bash", "-c", f"python {SCRIPT} {how}; exit $?"]
        for how in ("raise hook", "exit", "wordless")
    },
}


@pytest.mark.parametrize("case", LINES)
def test_the_first_failure_ends_the_run(shanty, flavour, case):
    how = case.partition(",")[0].split()[0]
    done = shanty("run", "--mpi", flavour, "-n", 4, "--oversubscribe", *LINES[case])
    assert done.returncode == EXITS[how], done.stderr
    assert WORDS[how] in done.stderr
    assert seconds_after_start(shanty) < 3
    failure = shanty.status()["failure"]
    assert failure["rank"] == 2
    assert "rank 2" in done.stderr
    if how == "raise":
        assert done.stderr.count("Traceback") == 1
        assert "a bad thing" in failure["lines"][-1]
        assert "shanty/runtime" not in "".join(failure["lines"])


@pytest.mark.parametrize("case", LOST)
def test_an_end_that_is_0_to_the_system(shanty, flavour, case):
    end, words = LOST[case]
    done = shanty("run", "--mpi", flavour, "-n", 2, shanty.script(BEFORE.format(end)))
    failure = shanty.status()["failure"]
    if "show_help.c" in "".join(last_lines(str(shanty.last.launcher_log), 9)):
        # Open MPI 4.1 has lost the rank's message, which is all that tells it from os._exit(0).
        assert flavour == "openmpi4"
        assert (done.returncode, failure["rank"]) == (72, 1)
        assert "MPI_Abort with code 0" in failure["fix"]
        return
    assert done.returncode == (72 if case == "_exit" else 1), done.stderr
    assert words.format(os.uname().nodename) in f"{failure['what']} {failure['why']}"
    assert failure["rank"] == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_printed_just_before_mpi_abort_is_kept(shanty, flavour, rank):
    """Launchers kill all processes of a run within a millisecond of it."""
    said = [
        'print("the last line of standard output", flush=True)',
        'sys.stderr.write("cannot open data.bin")',  # without a newline
        "c.Abort(3)",
    ]
    script = BEFORE.replace("c.rank == 1", f"c.rank == {rank}").format("; ".join(said))
    done = shanty("run", "--mpi", flavour, "-n", 2, shanty.script(script))
    assert done.returncode == 3, done.stderr
    assert f"[{rank}] the last line of standard output" in done.stdout
    assert f"[{rank}] cannot open data.bin" in done.stderr
    assert shanty.status()["failure"]["rank"] == rank


def test_an_error_without_a_text_has_its_line(shanty):
    done = shanty("run", "-n", 1, shanty.script("import sys\nassert sys.argv[1:]\n"))
    assert "why: AssertionError at " in done.stderr
    assert ".py:2: assert sys.argv[1:]" in done.stderr


def test_a_script_in_standard_input_that_a_shell_passes_on(shanty):
    """Rank 1 has an empty one."""
    script = b"from mpi4py import MPI\nprint(MPI.COMM_WORLD.size)\n"
    done = shanty("run", "-n", 2, "--", "bash", "-c", "python3 -", stdin=script, timeout=60)
    assert done.returncode == 72
    assert "before it reached MPI_Init" in done.stderr
    assert "Only rank 0 has the standard input" in done.stderr


@pytest.mark.parametrize("which", [0, -1], ids=["launcher", "daemon"])
def test_the_launcher_is_killed(shanty, flavour, which):
    """Open MPI's has no daemon on its own host."""
    process = shanty.start("run", "--mpi", flavour, "-n", 2, shanty.script(ENDLESS))
    wait_for(lambda: shanty.status().get("joined") == 2)
    agent = (read_json(shanty.last.agents) or {})["node_agent"]["pid"]
    every = [(e.pid, platform.command(e.pid)) for e in platform.descendants(agent)]
    theirs = [pid for pid, words in every if words and is_launchers(Path(words[0]).name)]
    os.kill(theirs[which], signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    host = os.uname().nodename
    if theirs[which] == theirs[0]:
        assert f"the launcher on host {host} was ended by SIGKILL" in said.decode()
    else:
        assert f"(pid {theirs[which]}) on host {host} is gone" in said.decode()
    assert shanty.status()["failure"]["rank"] is None


def test_an_exit_code_of_256_without_mpi(shanty):
    script = shanty.script("import sys\nsys.exit(256)\n")
    done = shanty("run", "-n", 1, script)
    assert done.returncode == 1
    assert "sys.exit(256): an exit code has 8 bits" in done.stderr


def files_of(folder: Path) -> dict[str, bytes]:
    """What is in each file; of compressed ones, whose headers have the time, what was packed."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name, unpack in (("text.gz", gzip.decompress), ("text.bz2", bz2.decompress)):
        found[name] = unpack(found[name])
    with zipfile.ZipFile(folder / "archive.zip") as archive:
        found["archive.zip"] = archive.read("member")
    return found


@pytest.mark.parametrize("how", ["raise", "exit", "text"])
@pytest.mark.parametrize("words", ["script", "shell"])
def test_what_a_failing_rank_still_writes(shanty, flavour, tmp_path, how, words):
    """The same files as plain Python: threads, submitted work, handlers, open files."""
    if words == "shell" and how == "text":
        pytest.skip("as exit")
    script = WORKERS / "writes.py"
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    plain.mkdir()
    ours.mkdir()
    alone = subprocess.run(
        [sys.executable, script, how, "plain"], cwd=plain, stderr=subprocess.DEVNULL
    )
    line = [script, how, "mpi"]
    if words == "shell":
        line = ["bash", "-c", f"{sys.executable} {script} {how} mpi; exit $?"]
    done = shanty("run", "--mpi", flavour, "-n", 2, "--workdir", ours, *line)
    assert done.returncode == alone.returncode, done.stderr
    assert shanty.status()["failure"]["rank"] == 1
    assert files_of(ours) == files_of(plain)


STUCK = """
import atexit, threading, time
from mpi4py import MPI
world = MPI.COMM_WORLD
if world.rank == 1:
    open("text", "w").write("text")
    file = open("text", "a"); file.write("more")
    atexit.register(print, "the handler has run", flush=True)
    threading.Thread(target=lambda: time.sleep(9999), name="endless").start()
    raise ValueError("a bad batch")
world.barrier()
"""


def test_a_thread_that_never_ends(shanty, flavour, tmp_path):
    """It is waited for as long as the run gives its ranks, and named; the rest is written."""
    (shanty.home / "config.toml").write_text("stop_grace = 2\n")
    done = shanty("run", "--mpi", flavour, "-n", 2, "--workdir", tmp_path, shanty.script(STUCK))
    assert done.returncode == 1
    assert "rank 1 does not wait any longer for its thread 'endless'" in done.stderr
    assert "the handler has run" in done.stdout
    assert (tmp_path / "text").read_text() == "textmore"
    assert seconds_after_start(shanty) < 10


TERM = """
import signal, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD

def save(*_):
    time.sleep(0.5)
    print("saved by", world.rank, flush=True)
    sys.exit(0)

if world.rank != 2:
    signal.signal(signal.SIGTERM, save)
world.barrier()
if world.rank == 1:
    time.sleep(0.3)
    raise ValueError("a bad batch")
if world.rank == 2:  # without a handler: its end must not be that of rank 0
    world.barrier()
time.sleep(60)
"""


def test_the_others_have_time_to_save(shanty, flavour):
    """A launcher that learned of the failure would kill them at once."""
    line = ["--mpi", flavour, "-n", 3, "--oversubscribe", shanty.script(TERM)]
    done = shanty("run", *line)
    assert done.returncode == 1
    assert shanty.status()["failure"]["rank"] == 1
    assert "saved by 0" in done.stdout
    assert seconds_after_start(shanty) < 10


NAN = """
import math, time
import shanty
from mpi4py import MPI
world = MPI.COMM_WORLD
for step in range(8):
    world.barrier()
    late = 5 if world.rank == 1 else 6
    shanty.log(step=step, loss=math.nan if step >= late else 1.0 / (step + 1))
"""


def test_a_loss_that_becomes_nan(shanty, flavour):
    done = shanty("run", "--mpi", flavour, "-n", 2, shanty.script(NAN))
    assert done.returncode == 0, done.stderr
    text = "loss became NaN on rank 1 at step 5, then on rank 0 at step 6"
    assert done.stderr.index(" succeeded after ") < done.stderr.rindex(text)
    assert 1 <= done.stderr.count("loss became NaN on rank 1 at step 5") <= 2
    assert text in shanty("show", "last").stdout
    assert shanty.status()["not_finite"] == text


def test_a_failing_helper_of_a_rank_harms_nothing(shanty, flavour):
    done = shanty("run", "--mpi", flavour, "-n", 4, "--oversubscribe", SCRIPT, "helper")
    assert done.returncode == 0, done.stderr


CHILDREN = """
import os, sys
for end in ("raise", "exit"):
    child = os.fork()
    if not child and end == "raise":
        raise ValueError(3)
    if not child:
        sys.exit("no")
    os.waitpid(child, 0)
"""


def test_failing_children_of_a_rank_harm_nothing(shanty):
    done = shanty("run", "-n", 1, shanty.script(CHILDREN))
    assert done.returncode == 0, done.stderr


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
    assert f"(pid {agent}) was frozen: it has sent nothing for 1" in said.decode()
