"""Where a process stands outside of Python: the functions that it is in, and in which MPI call.

A thread is stopped by ptrace(2) for a fraction of a millisecond, while its registers and a piece
of its stack are copied; the stack is walked in the copy. Nothing is changed in the process.
The tracer is a thread of its own: when it ends, whatever it has not let go runs on.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
import threading
import time
import zlib
from typing import Any, Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Tuple

from shanty.runtime.agent.elf import Image, UnreadableError, evaluate

_SEIZE, _INTERRUPT, _GETREGSET, _DETACH = 0x4206, 0x4207, 0x4204, 17
_PRSTATUS = 1
_WALL = 0x40000000  # wait for threads too
_TRIES = 4  # looks at a thread whose stack cannot be walked to its end
_STACK = 256 << 10  # bytes of a stack that are read
_DEEPEST = 250  # frames
_STOP = 0.05  # seconds that a thread may take to stop
_PATIENCE = 2.0  # seconds for all of a host's ranks together
_INNER = {"ompi_mpi_finalize": "MPI_Finalize", "ompi_mpi_init": "MPI_Init"}
MPI = "libmpi"  # how the names of all MPIs' libraries begin


class _Machine(NamedTuple):
    """Where a processor keeps what: indices into the registers that ptrace gives."""

    registers: Tuple[int, ...]  # in DWARF's order
    stack: int  # DWARF's number of the stack pointer
    counter: int
    saved: Tuple[int, ...]  # DWARF's numbers of the registers that a function leaves as they were
    words: int  # in all that ptrace gives
    delicate: FrozenSet[int]  # calls of the system that a stop may end by EINTR, signal(7)


_MACHINES = {
    "x86_64": _Machine(
        (10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16),
        7,
        16,
        (3, 6, 12, 13, 14, 15),
        27,
        # epoll_*, rt_sigtimedwait, sem*op, connect, accept*, send*, recv*, msg*, io_getevents
        frozenset(
            (232, 281, 441, 128, 65, 220, 42, 43, 288, 44, 46, 307, 45, 47, 299, 69, 70, 208)
        ),
    ),
    "aarch64": _Machine(
        (*range(31), 31),
        31,
        32,
        tuple(range(19, 30)),
        34,
        frozenset(
            (22, 441, 137, 193, 192, 203, 202, 242, 206, 211, 269, 207, 212, 243, 189, 188, 4)
        ),
    ),
}


class Frame(NamedTuple):
    """A function that is being carried out: its library (or program) and its name, if known."""

    file: str
    name: str


class Look(NamedTuple):
    """Where a thread stood. `frames`: innermost first.

    `call` is the MPI call that the program is in, "" outside of MPI. `mark` changes whenever the
    program has left that call and has done anything at all before it came back to it. Where the
    stack could not be walked to its end (`whole` is False), an outer call may have been missed.
    """

    frames: Tuple[Frame, ...]
    call: str
    mark: int
    whole: bool = True


class _Copy(NamedTuple):
    registers: Tuple[int, ...]
    base: int
    stack: bytes


class _Mapping(NamedTuple):
    start: int
    end: int
    offset: int
    path: str


class Native:
    """Looks at processes; keeps what it has read of their libraries."""

    def __init__(self) -> None:
        self._machine = _MACHINES.get(os.uname().machine) if sys.platform == "linux" else None
        self._images: Dict[str, Optional[Image]] = {}
        self._maps: Dict[int, List[_Mapping]] = {}

    def looks(self, pids: Iterable[int]) -> Dict[int, Look]:
        """Where the main threads of the processes stand; those that cannot be read are left out.

        UnreadableError when nothing at all could be looked at.
        """
        wanted = list(pids)
        if self._machine is None or not wanted:
            return {}
        # Who sleeps there must not be woken, and is in no call of an MPI, which would poll.
        asleep = [pid for pid in wanted if _system_call(pid) in self._machine.delicate]
        looks = dict.fromkeys(asleep, Look((), "", 0))
        wanted = [pid for pid in wanted if pid not in looks]
        for _ in range(_TRIES):  # some instructions of an MPI cannot be left by what it tells
            copies: Dict[int, _Copy] = {}
            tracer = threading.Thread(target=_copy_all, args=(wanted, self._machine, copies))
            try:
                tracer.start()
            except RuntimeError as error:  # the host, or the container, has too many
                raise UnreadableError(str(error)) from error
            tracer.join()
            looks.update((pid, self._walk(pid, copy)) for pid, copy in copies.items())
            wanted = [pid for pid in copies if not looks[pid].call and not looks[pid].whole]
            if not wanted:
                break
        return looks

    def forget(self) -> None:
        """Processes may have ended, and their numbers may be others' now."""
        self._maps.clear()

    def _walk(self, pid: int, copy: _Copy) -> Look:
        machine = self._machine
        assert machine is not None
        registers = dict(enumerate(copy.registers[index] for index in machine.registers))
        pc, inner, whole = copy.registers[machine.counter], False, False
        frames: List[Tuple[str, Image, int]] = []
        callers: Dict[int, Tuple[int, Dict[int, int]]] = {}

        def read(address: int) -> int:
            at = address - copy.base
            if not 0 <= at <= len(copy.stack) - 8:
                raise UnreadableError("beyond what was read of the stack")
            return int(struct.unpack_from("<Q", copy.stack, at)[0])

        try:
            while len(frames) < _DEEPEST:
                path, image, bias = self._image(pid, pc)
                place = pc - bias - inner
                name = os.path.basename(path)
                frames.append((name, image, place))
                leave = image.exit(place)
                if leave.cfa[0] == "register":
                    cfa = registers[leave.cfa[1]] + leave.cfa[2]
                else:
                    cfa = evaluate(leave.cfa[1], registers, read, ())
                before = dict(registers)
                for register, rule in leave.rules.items():
                    if rule[0] == "offset":
                        registers[register] = read(cfa + rule[1])
                    elif rule[0] == "register":
                        registers[register] = before[rule[1]]
                    elif rule[0] == "at":
                        registers[register] = read(evaluate(rule[1], before, read, (cfa,)))
                    elif rule[0] == "value":
                        registers[register] = evaluate(rule[1], before, read, (cfa,))
                    elif rule[0] == "undefined" and register == leave.returns:
                        whole = True
                        raise UnreadableError("the outermost frame")
                if machine.stack not in leave.rules:
                    registers[machine.stack] = cfa
                pc, inner = registers[leave.returns], not leave.signal
                callers[len(frames) - 1] = (pc, dict(registers))
                if not pc:
                    whole = True
                    break
        except (UnreadableError, OSError, KeyError):
            pass  # as far as it could be read
        return self._judge(frames, callers, copy)._replace(whole=whole)

    def _judge(
        self,
        places: List[Tuple[str, Image, int]],
        callers: Dict[int, Tuple[int, Dict[int, int]]],
        copy: _Copy,
    ) -> Look:
        """Name the frames; find the outermost that is an MPI's."""
        machine = self._machine
        assert machine is not None
        frames = tuple(Frame(name, image.symbol(place)) for name, image, place in places)
        for index in range(len(frames) - 1, -1, -1):
            if frames[index].file.startswith(MPI) and index in callers:
                _, image, place = places[index]
                name = frames[index].name or image.near(place)  # Intel's: a door, the rest behind
                call = mpi_name(name) or f"MPI ({name})"
                pc, registers = callers[index]
                above = copy.stack[registers[machine.stack] - copy.base :]
                state = [pc, *(registers.get(number, 0) for number in machine.saved)]
                mark = zlib.crc32(above, zlib.crc32(repr(state).encode()))
                return Look(frames, call, mark)
        return Look(frames, "", 0)

    def _image(self, pid: int, address: int) -> Tuple[str, Image, int]:
        """What is loaded at the address: its path, itself, and by how much it was moved."""
        mapping = next((m for m in self._maps.get(pid, ()) if m.start <= address < m.end), None)
        if mapping is None:
            self._maps[pid] = _mappings(pid)
            mapping = next((m for m in self._maps[pid] if m.start <= address < m.end), None)
        if mapping is None:
            raise UnreadableError("an address in no file")
        if mapping.path not in self._images:
            self._images[mapping.path] = _open_image(mapping.path)
        image = self._images[mapping.path]
        if image is None:
            raise UnreadableError(f"{mapping.path} cannot be read")
        return mapping.path, image, mapping.start - image.address(mapping.offset)


def mpi_name(symbol: str) -> str:
    """MPI_Send for PMPI_Send, mpi_send_ and the like; "" for what is no call of MPI.

    A call may be left for an inner function before that returns, as by Open MPI at its end.
    """
    symbol = _INNER.get(symbol, symbol)
    name = symbol.rstrip("_")
    name = name[:-2] if name.endswith("_c") else name  # with counts of 64 bits
    if name.lower().startswith("pmpi_"):
        name = name[1:]
    if name.startswith("MPI_"):
        return name
    if name.startswith("mpi_"):  # Fortran's
        name = name[4:].replace("_f08ts", "").replace("_f08", "")
        return f"MPI_{name[:1].upper()}{name[1:]}"
    return ""


def _mappings(pid: int) -> List[_Mapping]:
    found = []
    with open(f"/proc/{pid}/maps", errors="replace") as file:
        for line in file:
            fields = line.split(None, 5)
            if "x" in fields[1] and len(fields) == 6:
                start, _, end = fields[0].partition("-")
                path = fields[5].rstrip("\n")
                found.append(_Mapping(int(start, 16), int(end, 16), int(fields[2], 16), path))
    return found


def _open_image(path: str) -> Optional[Image]:
    try:
        if path == "[vdso]":  # the kernel's own, alike in all processes
            return Image(_own_vdso())
        with open(path, "rb") as file:
            return Image(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError, UnreadableError):
        return None


def _own_vdso() -> bytes:
    for mapping in _mappings(os.getpid()):
        if mapping.path == "[vdso]":
            with open("/proc/self/mem", "rb", buffering=0) as memory:
                memory.seek(mapping.start)
                return memory.read(mapping.end - mapping.start)
    raise UnreadableError("no vdso")


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def _system_call(pid: int) -> int:
    """The number of the call of the system in which the main thread sleeps; -1 for none."""
    try:
        with open(f"/proc/{pid}/syscall") as file:
            word = file.read().split(" ", 1)[0]
    except OSError:
        return -1
    return int(word) if word.isdigit() else -1


def _copy_all(pids: List[int], machine: _Machine, copies: Dict[int, _Copy]) -> None:
    """Copy registers and stacks; one that does not stop is left to the end of this thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    deadline = time.monotonic() + _PATIENCE
    for pid in pids:
        if time.monotonic() > deadline:
            return
        try:
            copy = _copy(libc.ptrace, pid, machine)
        except OSError:
            continue
        if copy is not None:
            copies[pid] = copy


def _copy(ptrace: Any, pid: int, machine: _Machine) -> Optional[_Copy]:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        if ptrace(_SEIZE, pid, None, None) != 0 or ptrace(_INTERRUPT, pid, None, None) != 0:
            return None
        deadline, stopped = time.monotonic() + _STOP, False
        while not stopped and time.monotonic() < deadline:
            found, status = os.waitpid(pid, _WALL | os.WNOHANG)
            if found and not os.WIFSTOPPED(status):
                return None  # it has ended
            stopped = bool(found)
            if not stopped:
                time.sleep(0.0002)
        if not stopped:
            return None
        number = 0 if status >> 16 else os.WSTOPSIG(status)  # a signal of its own: pass it on
        try:
            buffer = (ctypes.c_uint64 * machine.words)()
            vector = _Iovec(ctypes.addressof(buffer), ctypes.sizeof(buffer))
            if ptrace(_GETREGSET, pid, _PRSTATUS, ctypes.addressof(vector)) != 0:
                return None
            registers = tuple(buffer)
            base = registers[machine.registers[machine.stack]]
            memory.seek(base)
            stack = memory.read(_STACK)  # up to the end of what is there
        finally:
            ptrace(_DETACH, pid, None, number)
    return _Copy(registers, base, stack)
