"""Reads the native stacks of processes: the functions that they are in, and in which MPI call.

A thread is stopped by ptrace(2) for a fraction of a millisecond, while its registers and a piece
of its stack are copied; the stack is walked in the copy. Nothing is changed in the process.
The tracer is a thread of its own: when it ends, whatever it has not let go runs on.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import struct
import sys
import threading
import time
import zlib
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from shanty.runtime import platform
from shanty.runtime.diagnosis.elf import File, Image, UnreadableError, evaluate

_SEIZE, _INTERRUPT, _GETREGSET, _DETACH = 0x4206, 0x4207, 0x4204, 17
_PRSTATUS = 1
_REGISTERS = 34  # that ptrace gives, at most
_WALL = 0x40000000  # wait for threads too
_TRIES = 4  # looks at a thread whose stack cannot be walked to its end
_STACK = 256 << 10  # bytes of a stack that are read
_DEEPEST = 250  # frames
_IMAGES = 128  # libraries that are kept open
_STOP = 0.05  # seconds that a thread may take to stop
_PATIENCE = 2.0  # seconds for all of a host's ranks together
# A call may be left for an inner function before that returns, as by Open MPI at its end.
_INNER = {"ompi_mpi_finalize": "MPI_Finalize", "ompi_mpi_init": "MPI_Init"}
_CALL = re.compile(r"[Pp]?(?:MPI|mpi)_(.*?)(?:_f08(?:ts)?)?(?:_c)?_*")  # _c: counts of 64 bits
MPI = "libmpi"  # how the names of all MPIs' libraries begin


class _Machine(NamedTuple):
    """A processor's registers, by their indices in what ptrace gives."""

    registers: Tuple[int, ...]  # in DWARF's order
    stack: int  # DWARF's number of the stack pointer
    counter: int
    saved: Tuple[int, ...]  # DWARF's numbers of the registers that a function leaves as they were


_MACHINES = {
    "x86_64": _Machine(
        (10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16),
        7,
        16,
        (3, 6, 12, 13, 14, 15),
    ),
    "aarch64": _Machine(
        (*range(31), 31),
        31,
        32,
        tuple(range(19, 30)),
    ),
}


class Frame(NamedTuple):
    """A function that is being carried out: its library (or program) and its name, if known."""

    file: str
    name: str


class Look(NamedTuple):
    """The place where a thread stood. `frames`: innermost first.

    `call` is the MPI call that the program is in, "" outside of MPI. `mark` changes whenever the
    program has left that call and has done anything at all before it came back to it. Where the
    stack could not be walked to its end (`whole` is False), an outer call may have been missed.
    """

    frames: Tuple[Frame, ...]
    call: str
    mark: int
    whole: bool = True


_Mapping = Tuple[int, int, int, int, str]  # start, end, where in the file, its inode and path
_Copy = Tuple[Tuple[int, ...], bytes]  # registers as ptrace gives them, and the stack


def look_at(pids: Iterable[int]) -> Dict[int, Look]:
    """Returns where the main threads stand; processes that cannot be read are left out.

    UnreadableError when nothing at all could be looked at.
    """
    machine = _MACHINES.get(os.uname().machine) if sys.platform == "linux" else None
    every = list(pids)
    if machine is None or not every:
        return {}
    looks: Dict[int, Look] = {}
    wanted = [pid for pid in every if not platform.must_not_be_woken(pid)]
    for _ in range(_TRIES):  # at some instructions the frame information of an MPI is wrong
        copies: Dict[int, _Copy] = {}
        tracer = threading.Thread(target=_copy_all, args=(wanted, machine, copies))
        try:
            tracer.start()
        except RuntimeError as error:  # the host, or the container, has too many
            raise UnreadableError(str(error)) from error
        tracer.join()
        looks.update((pid, _walk(pid, machine, *copy)) for pid, copy in copies.items())
        wanted = [pid for pid in copies if not looks[pid].call and not looks[pid].whole]
        if not wanted:
            break
    asleep = [pid for pid in every if pid not in looks and platform.must_not_be_woken(pid)]
    return {**looks, **dict.fromkeys(asleep, Look((), "", 0))}


def _walk(pid: int, machine: _Machine, copied: Tuple[int, ...], stack: bytes) -> Look:
    """Names the frames, as far as they can be read; finds the outermost that is an MPI's."""
    registers = {number: copied[index] for number, index in enumerate(machine.registers)}
    base, pc, inner = registers[machine.stack], copied[machine.counter], False
    places: List[Tuple[str, Image, int]] = []  # of the frames
    outermost: Optional[Tuple[int, int, Dict[int, int]]] = None
    whole = False

    def read(address: int) -> int:
        at = address - base
        if not 0 <= at <= len(stack) - 8:
            raise UnreadableError("beyond what was read of the stack")
        return int(struct.unpack_from("<Q", stack, at)[0])

    try:
        mappings = _mappings(pid)
        while not whole and len(places) < _DEEPEST:
            path, image, bias = _image(mappings, pc)
            place = pc - bias - inner
            places.append((os.path.basename(path), image, place))
            leave = image.exit(place)
            if leave.rules.get(leave.returns) == ("undefined",):  # the outermost frame
                whole = True
                break
            before, what = registers, leave.cfa[1]
            if leave.cfa[0] == "register":
                cfa = before[what] + leave.cfa[2]
            else:
                cfa = evaluate(what, before, read, ())
            registers = {**before, machine.stack: cfa}
            for register, (rule, *operands) in leave.rules.items():
                if rule == "offset":
                    registers[register] = read(cfa + operands[0])
                elif rule == "register":
                    registers[register] = before[operands[0]]
                elif rule in ("at", "value"):
                    value = evaluate(operands[0], before, read, (cfa,))
                    registers[register] = read(value) if rule == "at" else value
            pc, inner = registers[leave.returns], not leave.signal
            whole = not pc
            if places[-1][0].startswith(MPI):
                outermost = len(places) - 1, pc, registers
    except (UnreadableError, OSError, KeyError):
        pass
    frames = _named(places)
    if outermost is None:
        return Look(frames, "", 0, whole)
    index, pc, registers = outermost
    _, image, place = places[index]
    name = frames[index].name or image.near(place)  # Intel's: a door, the rest behind
    state = [pc, *(registers.get(number, 0) for number in machine.saved)]
    above = stack[registers[machine.stack] - base :]
    mark = zlib.crc32(above, zlib.crc32(repr(state).encode()))
    return Look(frames, mpi_name(name) or f"MPI ({name})", mark, whole)


def _named(places: Sequence[Tuple[str, Image, int]]) -> Tuple[Frame, ...]:
    """Returns the frames, each image's names looked up together."""
    of_image: Dict[Image, Set[int]] = {}
    for _, image, place in places:
        of_image.setdefault(image, set()).add(place)
    names = {image: image.symbols(found) for image, found in of_image.items()}
    return tuple(Frame(file, names[image][place]) for file, image, place in places)


def _image(mappings: Iterable[_Mapping], address: int) -> Tuple[str, Image, int]:
    """Returns what is loaded at the address: its path, itself, and by how much it was moved."""
    for start, end, offset, inode, path in mappings:
        if start <= address < end:
            image = _open_image(path, inode)
            if image is None:
                raise UnreadableError(f"{path} cannot be read")
            return path, image, start - image.address(offset)
    raise UnreadableError("an address in no file")


def mpi_name(symbol: str) -> str:
    """Returns MPI_Send for PMPI_Send, mpi_send_ and the like; "" for other functions."""
    found = _CALL.fullmatch(_INNER.get(symbol, symbol))
    return f"MPI_{found[1][:1].upper()}{found[1][1:]}" if found else ""


def _mappings(pid: int) -> List[_Mapping]:
    found = []
    with open(f"/proc/{pid}/maps", errors="replace") as file:
        for line in file:
            fields = line.rstrip("\n").split(None, 5)
            if "x" in fields[1] and len(fields) == 6:
                start, _, end = fields[0].partition("-")
                place = int(start, 16), int(end, 16), int(fields[2], 16)
                found.append((*place, int(fields[4]), fields[5]))
    return found


@functools.lru_cache(maxsize=_IMAGES)
def _open_image(path: str, _inode: int) -> Optional[Image]:
    """Returns a library, which is kept while it is the same file; None if it cannot be read."""
    try:
        if path == "[vdso]":  # the kernel's own, alike in all processes
            ((start, end, *_),) = [found for found in _mappings(os.getpid()) if found[-1] == path]
            with open("/proc/self/mem", "rb", buffering=0) as memory:
                memory.seek(start)
                return Image(memory.read(end - start))
        return Image(File(path))
    except (OSError, ValueError, UnreadableError):
        return None


def _copy_all(pids: List[int], machine: _Machine, copies: Dict[int, _Copy]) -> None:
    """Copies registers and stacks; the end of this thread frees a process that does not stop."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    deadline = time.monotonic() + _PATIENCE
    for pid in pids:
        if time.monotonic() > deadline:
            return
        with contextlib.suppress(OSError):
            copy = _copy(libc.ptrace, pid, machine)
            if copy is not None:
                copies[pid] = copy


def _copy(ptrace: Any, pid: int, machine: _Machine) -> Optional[_Copy]:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        if platform.must_not_be_woken(pid):
            return None
        if ptrace(_SEIZE, pid, None, None) != 0 or ptrace(_INTERRUPT, pid, None, None) != 0:
            return None
        found, status, deadline = 0, 0, time.monotonic() + _STOP
        while not found:
            if time.monotonic() >= deadline:
                return None
            found, status = os.waitpid(pid, _WALL | os.WNOHANG)
            if not found:
                time.sleep(0.0002)
        if not os.WIFSTOPPED(status):
            return None  # it has ended
        number = 0 if status >> 16 else os.WSTOPSIG(status)  # a signal of its own: pass it on
        try:
            buffer = (ctypes.c_uint64 * _REGISTERS)()
            vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), ctypes.sizeof(buffer))
            if ptrace(_GETREGSET, pid, _PRSTATUS, ctypes.addressof(vector)) != 0:
                return None
            memory.seek(buffer[machine.registers[machine.stack]])
            return tuple(buffer), memory.read(_STACK)  # up to the end of what is there
        finally:
            ptrace(_DETACH, pid, None, number)
