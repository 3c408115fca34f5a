"""What a rank or its MPI wrote last is the cause of its end."""

from __future__ import annotations

import pytest

BASE = """
import ctypes, os, shutil, signal
from mpi4py import MPI
world = MPI.COMM_WORLD
if world.rank:
    """
FAULTS = {
    "double free": (
        "l = ctypes.CDLL(None); l.malloc.restype = ctypes.c_void_p; "
        "p = ctypes.c_void_p(l.malloc(64)); l.free(p); l.free(p)",
        "free(): double free",
    ),
    "fatal": ("ctypes.pythonapi.Py_FatalError(b'GC object')", "Fatal Python error: GC object"),
    "descriptors": (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); "
        "files = [open('/dev/null') for _ in range(300)]",
        "Too many open files",
    ),
    "size": (
        "import resource; signal.signal(signal.SIGXFSZ, signal.SIG_DFL); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99)); open('out', 'wb').write(b'x' * 999)",
        "ulimit -f",
    ),
    "folder": (
        "os.mkdir('of-its-own'); os.chdir('of-its-own'); os.rmdir(os.getcwd()); os.getcwd()",
        "FileNotFoundError",
    ),
    "alarm": ("signal.alarm(1); signal.pause()", "a timer of its own"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FAULTS)
def test_the_cause_is_what_the_rank_wrote_last(shanty, name):
    code, why = FAULTS[name]
    script = shanty.script(f"{BASE}{code}\nworld.barrier()\n")
    done = shanty("run", "-n", 2, script)
    failure = shanty.status()["failure"]
    assert failure["rank"] == 1
    assert why in failure["what"] + failure["why"], done.stderr
    assert "runtime/rank/run.py" not in done.stdout
    assert name != "folder" or "of-its-own, was removed" in failure["fix"]


def test_an_error_that_mpi_itself_reports(shanty, flavour):
    """Open MPI has its launcher print it, which is to have the time for that."""
    code = "world.Set_errhandler(MPI.ERRORS_ARE_FATAL); world.Send(b'x', 99)"
    done = shanty("run", "--mpi", flavour, "-n", 2, shanty.script(f"{BASE}{code}\nworld.barrier()"))
    failure = shanty.status()["failure"]
    assert failure["rank"] == 1, done.stderr
    assert "invalid rank" in failure["why"].lower() or flavour == "openmpi4", done.stderr


def test_a_variable_that_keeps_python_from_starting(shanty):
    done = shanty("run", "-e", "PYTHONHASHSEED=abc", "-n", 2, shanty.script("print(1)"))
    assert "PYTHONHASHSEED=abc was set for the run" in done.stderr
    assert "unset PYTHONHASHSEED" in done.stderr
