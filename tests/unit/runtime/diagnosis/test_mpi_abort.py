"""What the MPIs write when a rank calls MPI_Abort, and what is made of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from plans import world_of
from shanty.runtime.diagnosis.mpi_abort import abort, caller, with_error
from shanty.runtime.diagnosis.mpi_world import MpiWorld
from shanty.runtime.frames import STDERR, FrameWriter
from shanty.runtime.messages import Report
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import Failure

OPENMPI5 = """--------------------------------------------------------------------------
MPI_ABORT was invoked on rank 0 in communicator MPI COMMUNICATOR 3 SPLIT FROM 0
  Proc: [[57273,1],1]
  Errorcode: 256

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes."""
OPENMPI4 = """MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
with errorcode 0."""
OPENMPI4_SPLIT = OPENMPI4.replace(
    "1 in communicator MPI_COMM_WORLD", "0 in communicator MPI_COMM_SELF"
)
MPICH = (
    "Abort(-1) on node 1 (rank 0 in comm 496): "
    "application called MPI_Abort(comm=0x84000001, -1) - process 0"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (OPENMPI5, (1, 256)),
        (OPENMPI4, (1, 0)),
        (OPENMPI4_SPLIT, (None, 0)),
        (MPICH, (1, -1)),
        ("the docs of MPI_Abort", (None, None)),
    ],
)
def test_who_called_it(text: str, found: tuple[int | None, int | None]) -> None:
    assert caller(text.splitlines()) == found


def write(path: Path, text: str) -> None:
    import os

    path.parent.mkdir(parents=True, exist_ok=True)
    writer = FrameWriter(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1 << 20)
    writer.feed(STDERR, text.encode() + b"\n")
    writer.close()


def ended(*codes: int | None) -> dict[str, MpiWorld]:
    """Ranks that joined and ended so; None: no end of it was seen."""
    world = world_of(len(codes), *len(codes) * "h")
    for rank, code in enumerate(codes):
        report = {"rank": rank, "size": len(codes), "host": "h", "pid": 1}
        library = "Open MPI v5.0.11"
        more = {"mpi_rank": rank, "mpi_size": len(codes), "library": library, "path": "/l"}
        world.report(Report({**report, "event": "joined", **more}), 1.0)
        if code is not None:
            world.report(Report({**report, "event": "exited", "code": code, "at": 2.0 + rank}), 3.0)
    return {"0": world}


def test_a_launcher_that_hides_it(tmp_path: Path) -> None:
    """Hydra kills the ranks, what watches them with them, and ends with 0."""
    run = RunDir(tmp_path)
    write(run.rank_log(1), MPICH.replace("-1", "0"))
    found = abort(run, ended(None, None), None)
    assert found is not None
    assert found.code == 1
    assert found.failure.what == "rank 1 on h called MPI_Abort with code 0"
    assert found.failure.rank == 1


def test_a_rank_that_ended_with_0(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run.launcher_log, OPENMPI4_SPLIT)
    worlds = ended(-15, 0)
    found = abort(run, worlds, worlds["0"].left_early(worlds["0"].ranks[1]))
    assert found is not None
    assert (found.failure.rank, found.code) == (1, 1)


def test_a_code_that_the_system_keeps(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write(run.rank_log(1), MPICH)
    found = abort(run, ended(None, None), Failure("the launcher ended with exit code 255"))
    assert found is not None
    assert found.code == 255
    assert found.failure.what == "rank 1 on h ended with exit code 255"
    assert "MPI_Abort" in found.failure.why


def test_what_is_not_an_abort(tmp_path: Path) -> None:
    """A rank that failed by itself stays to blame, and a run that ended well has ended well."""
    run = RunDir(tmp_path)
    write(run.rank_log(0), MPICH)
    worlds = ended(3, -15)
    assert abort(run, worlds, Failure("rank 0 ended with exit code 3", rank=0)) is None
    worlds = ended(0, 0)
    for rank in (0, 1):
        worlds["0"].report(Report({"event": "finalized", "rank": rank}), 1.0)
    assert abort(run, worlds, None) is None


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (
            ["Abort(609) on node 0 (rank 0 in comm 0): Fatal error in internal_Allreduce_c: "
             "Message truncated, error stack:"],
            "MPI_Allreduce failed: Message truncated",
        ),
        (
            ["Abort(1) on node 1 (rank 1 in comm 0): Fatal error in PMPI_Recv: Unknown, error "
             "stack:"],
            "MPI_Recv failed: Unknown",
        ),
        (
            ["*** An error occurred in MPI_Bcast", "*** MPI_ERR_TRUNCATE: message truncated"],
            "MPI_Bcast failed: MPI_ERR_TRUNCATE: message truncated",
        ),
        (["something else"], ""),
    ],
)  # fmt: skip
def test_an_error_of_mpi_that_has_ended_its_rank(lines: list[str], why: str) -> None:
    failure = with_error(Failure("rank 0 ended", lines=tuple(lines)))
    assert failure.why == why
    assert bool(failure.fix) == ("truncated" in why)


def test_an_error_before_there_is_a_world(tmp_path: Path) -> None:
    """Each rank is then "node 0" to MPICH; whose log it is counts. The cause ends its stack."""
    run = RunDir(tmp_path)
    text = (
        "Abort(472532111) on node 0 (rank 0 in comm 0): Fatal error in internal_Init_thread: "
        "Other MPI error, error stack:\n"
        "MPID_Init(1778)..............: \n"
        "find_provider(3064)..........: OFI fi_getinfo() failed (ofi_init.c:3064)"
    )
    write(run.rank_log(1), text)
    found = abort(run, ended(None, None), Failure("the launcher ended with exit code 143"))
    assert found is not None
    assert (found.failure.rank, found.code) == (1, 143)
    why = with_error(replace(found.failure, lines=tuple(text.splitlines()))).why
    assert why == "MPI_Init_thread failed: OFI fi_getinfo() failed (ofi_init.c:3064)"
