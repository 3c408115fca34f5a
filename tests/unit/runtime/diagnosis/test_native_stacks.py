"""The native stacks of processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runs import wait_for
from shanty.runtime import platform
from shanty.runtime.diagnosis import native_stacks
from shanty.runtime.diagnosis.native_stacks import Frame, Look, look_at, mpi_name

linux = pytest.mark.skipif(not platform.LINUX, reason="Linux only")


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("PMPI_Allreduce", "MPI_Allreduce"),
        ("MPI_Allreduce_c", "MPI_Allreduce"),
        ("mpi_recv_", "MPI_Recv"),
        ("mpi_bcast_f08ts_", "MPI_Bcast"),
        ("ompi_mpi_finalize", "MPI_Finalize"),
        ("opal_progress", ""),
    ],
)
def test_names_of_calls(symbol: str, name: str) -> None:
    assert mpi_name(symbol) == name


@linux
def test_the_native_stack_of_a_process() -> None:
    code = "import time; print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        wait_for(lambda: "S" in Path(f"/proc/{process.pid}/stat").read_text().split()[2])
        looks = look_at([process.pid, 2**22 + 1])
        if not looks:
            pytest.skip("ptrace is not allowed here")
        names = [frame.name for frame in looks[process.pid].frames]
        assert any("nanosleep" in name for name in names[:3])
        assert any(name in ("Py_BytesMain", "main", "__libc_start_main") for name in names[5:])
        assert looks[process.pid].call == ""
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "TracerPid:\t0\n" in status
        assert "State:\tS" in status or "State:\tR" in status
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


ASLEEP = """
import ctypes, select
libc = ctypes.CDLL(None, use_errno=True)
epoll, events = select.epoll(), ctypes.create_string_buffer(12)
print(flush=True)
print(libc.epoll_wait(epoll.fileno(), events, 1, 1500), ctypes.get_errno(), flush=True)
"""


@linux
def test_a_look_does_not_wake_a_thread() -> None:
    process = subprocess.Popen([sys.executable, "-c", ASLEEP], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    call = Path(f"/proc/{process.pid}/syscall")
    wait_for(lambda: "S" in Path(f"/proc/{process.pid}/stat").read_text().split()[2])
    try:
        if not call.read_text().split()[0].isdigit():
            pytest.skip("the kernel does not tell which call it is in")
        for _ in range(5):
            assert look_at([process.pid]).get(process.pid) == Look((), "", 0)
        assert process.communicate(timeout=30)[0] == b"0 0\n"
    finally:
        process.kill()
        process.communicate()


@linux
def test_a_stack_that_could_not_be_walked_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Look((Frame("libmpi.so.12", ""),), "", 0, whole=False)
    found = Look((Frame("libmpi.so.12", ""), Frame("program", "main")), "MPI_Recv", 7)
    process = subprocess.Popen(["sleep", "60"])
    try:
        if not look_at([process.pid]):
            pytest.skip("ptrace is not allowed here")
        walks = [lost, lost, found]
        monkeypatch.setattr(native_stacks, "_walk", lambda *_: walks.pop(0))
        assert look_at([process.pid]) == {process.pid: found}
        monkeypatch.setattr(native_stacks, "_walk", lambda *_: lost)
        assert look_at([process.pid]) == {process.pid: lost}
    finally:
        process.kill()
        process.wait()
