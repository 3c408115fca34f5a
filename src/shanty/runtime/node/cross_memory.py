"""Checks whether a process here may copy memory of another process (CMA, process_vm_readv(2)).

MPIs do so for large messages between ranks of a host. Where the kernel forbids it to containers,
MPICH 5 hangs, Open MPI 4.1 prints a line for every message, and each has a setting to do without.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

from shanty.runtime import platform

_LENGTH = 64


class _Piece(ctypes.Structure):
    """The kernel's struct iovec."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def may_be_denied() -> bool:
    """True where a filter of system calls, or Yama, limits this process."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        if any(line.split() == ["Seccomp:", "2"] for line in file):
            return True
    path = "/proc/sys/kernel/yama/ptrace_scope"
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        return int(file.read()) > 0
    return False


def works() -> bool:
    """Have one child read the memory of another, as ranks of a host do."""
    if not platform.LINUX:
        return False
    text = ctypes.create_string_buffer(os.urandom(_LENGTH), _LENGTH)
    held = os.fork()
    if held == 0:
        signal.pause()
        os._exit(0)
    reader = os.fork()
    if reader == 0:
        os._exit(0 if _read(held, text) else 1)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]) == 0
    except ChildProcessError:
        return True  # its exit code was taken elsewhere; the answer is unknown
    finally:
        os.kill(held, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(held, 0)


def _read(pid: int, text: ctypes.Array[ctypes.c_char]) -> bool:
    """Read the other child at the same address, since both are copies of one process."""
    copy = ctypes.create_string_buffer(_LENGTH)
    here = _Piece(ctypes.addressof(copy), _LENGTH)
    there = _Piece(ctypes.addressof(text), _LENGTH)
    libc = ctypes.CDLL(None)
    taken = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return bool(taken == _LENGTH and copy.raw == text.raw)
