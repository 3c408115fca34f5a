"""The cause of a rank's end, as its last lines and the launcher's name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from shanty.runtime.diagnosis.last_words import cause, explained
from shanty.runtime.spec import Failure

OPEN_MPI = """[lab1:00000] *** An error occurred in MPI_Send
[lab1:00000] *** reported by process [4274323457,1]
[lab1:00000] *** on communicator MPI_COMM_WORLD
[lab1:00000] *** MPI_ERR_RANK: invalid rank
[lab1:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
--------------------------------------------------------------------------
prterun has exited due to process rank 1 with PID 0 on node lab1 calling
"abort".
--------------------------------------------------------------------------
\0"""
PT2PT = """--------------------------------------------------------------------------
The OSC pt2pt component does not support MPI_THREAD_MULTIPLE in this release.
Workarounds are to run on a single node.
--------------------------------------------------------------------------"""
MPICH = """Abort(1007851278) on node 1 (rank 1 in comm 0): Fatal error in internal_Recv_c: Message \
truncated, error stack:
internal_Recv_c(339).....: MPI_Recv_c(buf=0x55, count=10, MPI_DOUBLE, 0) failed"""
THROWN = (
    "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("free(): double free detected in tcache 2\nFatal Python error: Aborted", "free(): double"),
        ("malloc(): invalid size (unsorted)", "malloc(): invalid size"),
        ("double free or corruption (!prev)", "double free or corruption"),
        ("corrupted size vs. prev_size", "corrupted size"),
        ("*** stack smashing detected ***: terminated", "stack smashing detected"),
        (
            "Fatal Python error: GC object already tracked\n\n  File",
            "Fatal Python error: GC object",
        ),
        ("Fatal Python error: Segmentation fault\n\nCurrent thread", ""),
        (THROWN, "std::bad_alloc: std::bad_alloc"),
        ("terminate called without an active exception", "terminate called without"),
        (OPEN_MPI, "MPI_Send: MPI_ERR_RANK: invalid rank"),
        (MPICH, "Fatal error in internal_Recv_c: Message truncated"),
        (
            "*** The MPI_Comm_rank() function was called before MPI_INIT was invoked.",
            "The MPI_Comm_rank() function was called before MPI_INIT was invoked",
        ),
        (
            "Attempting to use an MPI routine (internal_x) before initializing or after finalizing "
            "MPICH",
            "Attempting to use an MPI routine (internal_x) before initializing or after finalizing",
        ),
        ("a.out: x.c:3: main: Assertion `n > 0' failed.", "a.out: x.c:3"),
        ("F0000 x.cc:5] Check failed: a == b (1 vs. 2)", "F0000 x.cc:5] Check failed: a == b"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "torch.OutOfMemoryError"),
        ("./prog: error while loading shared libraries: libx.so: cannot open", "./prog: error wh"),
        ("Traceback (most recent call last):\n  File\nValueError: bad", "ValueError: bad"),
        ("cat: write error: No space left on device", "cat: write error: No space"),
        ("At line 3 of file x.f90\nFortran runtime error: End of file", "Fortran runtime error: "),
        ("a warning about malloc() in the manual\nall is well", ""),
        ("epoch 3 of 5: loss 0.4", ""),
    ],
)
def test_the_cause_is_found(text: str, found: str) -> None:
    words = cause(text.splitlines())[0]
    assert words.startswith(found)
    assert bool(words) == bool(found)


def of(
    why: str = "",
    lines: str = "",
    launcher: Sequence[str] = (),
    asked: Mapping[str, str] | None = None,
    there: Mapping[str, str] | None = None,
    signal: str | None = None,
) -> Failure:
    failure = Failure("rank 1 on lab2 ended", why, "", 1, "lab2", signal, tuple(lines.splitlines()))
    where = "on lab2 before the run, as by a login file"
    return explained(failure, launcher, asked or {}, there or {}, where)


def test_a_known_cause_stays_and_gets_a_fix() -> None:
    found = of("OSError: [Errno 24] Too many open files: 'x'", "MemoryError")
    assert found.why == "OSError: [Errno 24] Too many open files: 'x'"
    assert "ulimit -n" in found.fix
    assert of("in main (x.py:3)", "free(): invalid pointer").why == (
        "free(): invalid pointer, in main (x.py:3)"
    )
    assert of("it called MPI_Abort").why == "it called MPI_Abort"
    assert "ulimit -f" in of(signal="SIGXFSZ").fix
    known = Failure("rank 1: cannot run x", "", "write ./x", 1, "lab2")  # all that there is to say
    assert explained(known, (), {}, {}, "") == known


def test_lightgbm_whose_code_cannot_be_left_by_an_exception() -> None:
    why = "rank 1 on h left the training with ValueError: x. The training cannot go on without it."
    found = of(lines=f"shanty.lightgbm: {why} This rank ends.")
    assert (found.why, "correct that error" in found.fix) == (why, True)


def test_what_the_launcher_says_of_an_error_of_mpi() -> None:
    found = of("Exception: MPI_ERR_WIN: invalid window", launcher=PT2PT.splitlines())
    assert found.why.endswith("the launcher says: The OSC pt2pt component does not support "
                              "MPI_THREAD_MULTIPLE in this release. Workarounds are to run on a "
                              "single node.")  # fmt: skip
    assert "thread_level" in found.fix
    server = "MPI_ERR_INTERN: internal error; the launcher says: This requires the support of the "
    assert "by one run" in of(server + "ompi-server tool, which must be executing").fix
    assert of("", launcher=OPEN_MPI.splitlines()).why == "MPI_Send: MPI_ERR_RANK: invalid rank"


NOTICED = """--------------------------------------------------------------------------
prterun noticed that process rank 0 with PID 17086 on node lab1 exited on
signal {}.
--------------------------------------------------------------------------"""


def test_a_rank_that_the_launcher_ended_because_what_started_another_one_is_gone() -> None:
    killed = NOTICED.format("9 (Killed)").splitlines()
    found = of(signal="SIGTERM", launcher=killed)
    assert found.why == (
        "the launcher ended all ranks, since the process that started rank 0 (pid 17086 on lab1) "
        "was ended by SIGKILL"
    )
    assert of(signal="SIGTERM", launcher=NOTICED.format("15 (Terminated)").splitlines()).why == ""
    assert of(signal="SIGSEGV", launcher=killed).why == ""


@pytest.mark.parametrize(
    ("why", "fix"),
    [
        ("Exception: MPI_ERR_RANK: invalid rank", "take the size from it"),
        ("Exception: Invalid rank, error stack:", "take the size from it"),
        ("Exception: MPI_ERR_COMM: invalid communicator", "MPI_COMM_NULL"),
        ("ValueError: expecting 2 items, got 3", "one item for each rank"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", "num_workers"),
        ("RuntimeError: DataLoader worker (pid(s) 7) is killed by signal: Bus error", "/dev/shm"),
    ],
)
def test_what_to_do_about_an_exception(why: str, fix: str) -> None:
    assert fix in of(why).fix


SEED = "Fatal Python error: config_init_hash_seed: PYTHONHASHSEED must be an integer"


def test_a_variable_is_named_with_where_it_was_set() -> None:
    values = {"PYTHONHASHSEED": "abc", "PYTHONHOME": "/x"}
    found = of(lines=SEED, there=values)
    assert "PYTHONHASHSEED=abc was set on lab2 before the run, as by a login file" in found.why
    assert found.fix == "unset PYTHONHASHSEED, or correct its value"
    assert "was set for the run (-e" in of(lines=SEED, asked=values).why
    codec = (
        "Fatal Python error: init_fs_encoding: failed to get the codec of the filesystem encoding"
    )
    assert "PYTHONHOME=/x was set" in of(lines=codec, there=values).why
    trace = "Fatal Python error: init_interp_main: can't initialize tracemalloc"
    asked = {"PYTHONTRACEMALLOC": "99999999"}
    assert "PYTHONTRACEMALLOC=99999999 was set" in of(lines=trace, asked=asked).why
