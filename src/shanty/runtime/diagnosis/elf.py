"""Reads the names of functions, and how to leave them, from a program or library.

It knows the parts of ELF and of DWARF's call frame information that are needed to walk a stack
(System V ABI, DWARF 5 section 6.4, Linux Standard Base on `.eh_frame`). 64 bits, little-endian.

A library may have a million symbols, and the node agent must neither grow nor fall silent because
of them. So the beginning of a function comes from the frame information, which is sorted, and its
name from one pass over the symbols, a few thousand at a time. Nothing is mapped: a page of a mapped
file counts as memory, and a truncated file would kill the agent.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import struct
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple

_LOAD, _EH_FRAME_HDR = 1, 0x6474E550  # kinds of program headers
_SYMTAB, _DYNSYM, _FUNCTION = 2, 11, 2
_LONGEST = 512  # bytes of a name
_SYMBOL = 24  # bytes of a symbol
_AT_ONCE = 16384  # symbols; a millisecond's work, between two of which other threads may run
_FUNCTIONS = bytes(kind & 15 == _FUNCTION for kind in range(256))  # by a symbol's `info`
_LONGEST_ENTRY = 1 << 16  # bytes of a frame description
_KEPT = 4096  # places, and names, that an image remembers
_WORD = 64  # bits
_WORDS = (1 << _WORD) - 1
_PCREL_SDATA4, _DATAREL_SDATA4, _UDATA4 = 0x1B, 0x3B, 0x03

Rule = tuple[Any, ...]  # ("offset", n), ("register", r), ("same",), ("value"|"at", expression)


class UnreadableError(Exception):
    """The file, or this place in it, cannot be read."""


# What wrong numbers in a file lead to; a file system may fail as well.
_WRONG_NUMBERS = (struct.error, IndexError, ValueError, OverflowError, TypeError, OSError)


@contextlib.contextmanager
def _trusting_no_number() -> Iterator[None]:
    """Makes an UnreadableError of what fails because of the numbers in a file."""
    try:
        yield
    except _WRONG_NUMBERS as error:
        raise UnreadableError(str(error)) from error


class Exit(NamedTuple):
    """The way out of a function at some place: its caller's stack, registers and return address."""

    cfa: Rule  # ("register", number, offset) or ("value", expression)
    rules: dict[int, Rule]
    returns: int  # the register that stands for the return address
    signal: bool  # the place was interrupted by a signal
    start: int  # where the function begins


class File:
    """The content of a file, of which slices are read when they are asked for."""

    _fd = -1

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __getitem__(self, part: slice) -> bytes:
        return os.pread(self._fd, part.stop - part.start, part.start)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class Image:
    """One program or library; addresses are as in the file, before it was loaded anywhere.

    UnreadableError, and no other error, wherever the file makes no sense.
    """

    @_trusting_no_number()
    def __init__(self, data: Any) -> None:
        """`data`: bytes, or a `File`."""
        self._data = data
        if self._read(0, 6) != b"\x7fELF\x02\x01":
            raise UnreadableError("no ELF of 64 bits")
        at, self._sections_at = self._unpack("<QQ", 32)
        count, _, self._sections = self._unpack("<HHH", 56)
        headers = list(struct.iter_unpack("<IIQQQQ16x", self._read(at, 56 * count)))
        # File offset, address, bytes
        self._loads = [(h[2], h[3], h[5]) for h in headers if h[0] == _LOAD]
        self._header = next((h[3] for h in headers if h[0] == _EH_FRAME_HDR), 0)
        self._exits: dict[int, Exit] = {}
        self._names: dict[int, str] = {}  # by where functions begin, if that is known

    def _read(self, at: int, size: int) -> bytes:
        if at < 0 or size < 0:
            raise UnreadableError("a place before the file")
        return bytes(self._data[at : at + size])

    def _unpack(self, form: str, at: int) -> tuple[int, ...]:
        return struct.unpack(form, self._read(at, struct.calcsize(form)))

    def _offset(self, address: int) -> int:
        """Returns where in the file the byte of an address is."""
        for offset, start, size in self._loads:
            if start <= address < start + size:
                return int(address - start + offset)
        raise UnreadableError("an address outside of the file")

    def address(self, offset: int) -> int:
        """Returns the address of a byte of the file."""
        for start, address, size in self._loads:
            if start & -4096 <= offset < start + size:
                return int(offset - start + address)
        raise UnreadableError("a part of the file that is not loaded")

    def symbols(self, addresses: Collection[int]) -> dict[int, str]:
        """Returns the function that each address is in, all by one look; "" for an unknown one."""
        starts = {address: self._start(address) for address in addresses}
        if len(self._names) > _KEPT:
            self._names.clear()
        wanted = {start for start in starts.values() if start is not None} - self._names.keys()
        if wanted:
            found = self._look_up(wanted)
            self._names.update((start, found.get(start, (0, ""))[1]) for start in wanted)
        return {
            address: self._around(address) if start is None else self._names[start]
            for address, start in starts.items()
        }

    def symbol(self, address: int) -> str:
        """Returns the function that the address is in; "" when none is known."""
        return self.symbols((address,))[address]

    def _start(self, address: int) -> int | None:
        """Returns where the function at the address begins, by the frame information."""
        try:
            return self.exit(address).start
        except UnreadableError:
            return None

    def _around(self, address: int) -> str:
        """Returns the function that the address is in where no frame information says so."""
        if address not in self._names:
            start, size, name = self._nearest(address)
            self._names[address] = name if address < start + max(size, 1) else ""
        return self._names[address]

    def near(self, address: int) -> str:
        """Returns the known function that begins last before the address, ended or not."""
        return self._nearest(address)[2]

    def _nearest(self, address: int) -> tuple[int, int, str]:
        start = -1
        with contextlib.suppress(*_WRONG_NUMBERS, UnreadableError):
            for _, starts, functions, _ in self._tables():
                known = filter(address.__ge__, compress(starts, functions))
                start = max(start, max(known, default=-1))
        return (start, *self._look_up({start}).get(start, (0, "")))

    def _look_up(self, wanted: set[int]) -> dict[int, tuple[int, str]]:
        """Returns size and name of the functions that begin at these addresses."""
        found: dict[int, tuple[int, str]] = {}
        with contextlib.suppress(*_WRONG_NUMBERS, UnreadableError):
            for table, starts, functions, names in self._tables():
                for start in wanted.intersection(compress(starts, functions)):
                    index = -1
                    for _ in range(starts.count(start)):
                        index += 1 + starts[index + 1 :].index(start)
                        name, _, _, home, _, size = struct.unpack_from(
                            "<IBBHQQ", table, _SYMBOL * index
                        )
                        if functions[index] and home:
                            text = self._read(names + name, _LONGEST).partition(b"\0")[0]
                            found[start] = size, text.decode(errors="replace")
        return found

    def _tables(self) -> Iterator[tuple[bytes, Sequence[int], bytes, int]]:
        """Yields the symbols, some at a time: as they are, where each begins, whether it is a
        function, and where the names are.
        """
        table = self._read(self._sections_at, 64 * self._sections)
        sections = list(struct.iter_unpack("<IIQQQQIIQQ", table))
        for _, kind, _, _, at, size, strings, *_ in sections:
            if kind in (_SYMTAB, _DYNSYM):
                for begin in range(0, size, _SYMBOL * _AT_ONCE):
                    part = self._read(at + begin, min(size - begin, _SYMBOL * _AT_ONCE))
                    part = part[: len(part) // _SYMBOL * _SYMBOL]
                    if not part:
                        break
                    starts = array("Q", part)[1::3]
                    yield part, starts, part[4::_SYMBOL].translate(_FUNCTIONS), sections[strings][4]

    def exit(self, pc: int) -> Exit:
        """Returns how to leave the function at `pc`; UnreadableError when the file is silent."""
        if pc not in self._exits:
            if len(self._exits) > _KEPT:
                self._exits.clear()
            with _trusting_no_number():
                self._exits[pc] = self._exit(self._description(pc), pc)
        return self._exits[pc]

    def _description(self, pc: int) -> int:
        """Returns the address of the last frame description that does not begin behind `pc`."""
        if not self._header:
            raise UnreadableError("no call frame information")
        at = self._offset(self._header)
        version, _, *forms, _, count = self._unpack("<BBBBiI", at)
        if (version, *forms) != (1, _UDATA4, _DATAREL_SDATA4):
            raise UnreadableError("a table of another form")
        # Where a function begins, and where its description is, in turn.
        starts = _Table(count, lambda index: self._unpack("<i", at + 12 + 8 * index)[0])
        index = bisect.bisect_right(starts, pc - self._header) - 1
        return self._header + self._unpack("<i", at + 16 + 8 * max(index, 0))[0]

    def _entry(self, at: int) -> bytes:
        """Returns the frame description, or what many share, that begins there in the file."""
        size = 4 + self._unpack("<I", at)[0]
        if size > _LONGEST_ENTRY:
            raise UnreadableError("a frame description of that size")
        return self._read(at, size)

    def _exit(self, entry: int, pc: int) -> Exit:
        """Reads the frame description at the address `entry` up to `pc`."""
        at = self._offset(entry)
        description = self._entry(at)
        back, begin, size = struct.unpack_from("<IiI", description, 4)
        common = self._entry(at + 4 - back)  # what many descriptions share
        reader = _Reader(common, 8)
        version = reader.read("B")
        letters = bytes(iter(lambda: reader.read("B"), 0))
        code_unit, stack_unit = reader.read("u"), reader.read("s")
        returns = reader.read("B" if version == 1 else "u")
        form = 0
        if letters[:1] == b"z":
            first = reader.read("u") + reader.at  # instruction
            for letter in letters[1:].decode("ascii", "replace"):
                encoding = reader.read("B") if letter in "LPR" else 0
                if letter == "R":
                    form = encoding
                elif letter == "P":
                    reader.at += {2: 2, 3: 4, 4: 8, 0: 8}.get(encoding & 7, 4)
            reader.at = first
        if form != _PCREL_SDATA4:
            raise UnreadableError("addresses of another form")
        start = entry + 8 + begin
        if not start <= pc < start + size:
            raise UnreadableError("no function is known there")
        own = _Reader(description, 16)
        own.at += own.read("u")
        parts = (reader, len(common)), (own, len(description))
        cfa, rules = _carry_out(parts, start, pc, code_unit, stack_unit)
        return Exit(cfa, rules, returns, b"S" in letters, start)


class _Table(Sequence[int]):
    """A sorted column of numbers in a file, for bisect to read a few of."""

    def __init__(self, count: int, read: Callable[[int], int]) -> None:
        self._count = count
        self._read = read

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._read(index)


class _Reader:
    """Reads numbers one after the other."""

    def __init__(self, data: Any, at: int) -> None:
        self.data = data
        self.at = at

    def read(self, kind: str) -> Any:
        """Reads one of a kind: u ULEB128, s SLEB128, x an expression, else a letter of struct's."""
        if kind == "B":
            self.at += 1
            return self.data[self.at - 1]
        if kind == "x":
            size = self.read("u")
            self.at += size
            return bytes(self.data[self.at - size : self.at])
        if kind not in "us":
            (value,) = struct.unpack_from("<" + kind, self.data, self.at)
            self.at += struct.calcsize("<" + kind)
            return value
        value, bits, byte = 0, 0, 128
        while byte & 128:
            if bits > _WORD:
                raise UnreadableError("a number of more than 64 bits")
            byte = self.data[self.at]
            value |= (byte & 127) << bits
            self.at += 1
            bits += 7
        return value - (1 << bits) if kind == "s" and byte & 64 else value


# Call frame instructions: operands as _Reader has them (upper case: times the unit of the stack)
# and what is done. Where that is the name of a rule, the first operand is the rule's register.
_INSTRUCTIONS = {
    0x00: ("", "nothing"),
    0x02: ("B", "advance"),
    0x03: ("H", "advance"),
    0x04: ("I", "advance"),
    0x05: ("uU", "offset"),
    0x06: ("u", "restore"),
    0x07: ("u", "undefined"),
    0x08: ("u", "same"),
    0x09: ("uu", "register"),
    0x0A: ("", "remember"),
    0x0B: ("", "recall"),
    0x0C: ("uu", "cfa"),
    0x0D: ("u", "cfa register"),
    0x0E: ("u", "cfa offset"),
    0x0F: ("x", "cfa value"),
    0x10: ("ux", "at"),
    0x11: ("uS", "offset"),
    0x12: ("uS", "cfa"),
    0x13: ("S", "cfa offset"),
    0x16: ("ux", "value"),
    0x2D: ("", "nothing"),  # a signed return address
    0x2E: ("u", "nothing"),
}
_SHORT = {0x40: 0x02, 0x80: 0x05, 0xC0: 0x06}  # with the first operand in the lower six bits


def _carry_out(
    parts: Iterable[tuple[_Reader, int]], location: int, pc: int, code_unit: int, stack_unit: int
) -> tuple[Rule, dict[int, Rule]]:
    """Carries out instructions up to those that hold only behind `pc`; each part has its end."""
    cfa: Rule = ()
    rules: dict[int, Rule] = {}
    kept: list[tuple[Rule, dict[int, Rule]]] = []
    for reader, end in parts:
        initial = dict(rules)
        while reader.at < end and location <= pc:
            byte = reader.read("B")
            code = _SHORT.get(byte & 0xC0, byte)
            if code not in _INSTRUCTIONS:
                raise UnreadableError(f"call frame instruction {code:#x}")
            kinds, what = _INSTRUCTIONS[code]
            operands: list[Any] = [] if code == byte else [byte & 0x3F]
            for kind in kinds[len(operands) :]:
                value = reader.read(kind.lower() if kind in "US" else kind)
                operands.append(value * stack_unit if kind in "US" else value)
            if what == "advance":
                location += operands[0] * code_unit
            elif what == "restore":
                rules.pop(operands[0], None)
                if operands[0] in initial:
                    rules[operands[0]] = initial[operands[0]]
            elif what == "remember":
                kept.append((cfa, dict(rules)))
            elif what == "recall":
                cfa, rules = kept.pop()
            elif what == "cfa":
                cfa = ("register", *operands)
            elif what == "cfa value":
                cfa = ("value", *operands)
            elif what in ("cfa register", "cfa offset"):
                if cfa[:1] != ("register",):
                    raise UnreadableError("half of a frame address, without the other half")
                half = 1 if what == "cfa register" else 2
                cfa = (*cfa[:half], *operands, *cfa[half + 1 :])
            elif what != "nothing":
                rules[operands[0]] = (what, *operands[1:])
    if not cfa:
        raise UnreadableError("no frame address")
    return cfa, rules


@_trusting_no_number()
def evaluate(expression: bytes, registers: dict[int, int], read: Any, first: Sequence[int]) -> int:
    """Returns the value of a DWARF expression; `read(address)` gives a word of memory.

    UnreadableError for an expression that has none.
    """
    reader, stack = _Reader(expression, 0), list(first)
    while reader.at < len(expression):
        code = reader.read("B")
        if 0x70 <= code <= 0x8F:
            stack.append(registers.get(code - 0x70, 0) + reader.read("s"))
        elif 0x30 <= code <= 0x4F:
            stack.append(code - 0x30)
        elif code in (0x08, 0x09):
            stack.append(reader.read("B" if code == 0x08 else "b"))
        elif code == 0x06:
            stack.append(read(stack.pop()))
        elif code == 0x23:
            stack.append(stack.pop() + reader.read("u"))
        elif code in _BINARY:
            second = stack.pop()
            stack.append(_BINARY[code](stack.pop(), second))
        else:
            raise UnreadableError(f"DWARF operation {code:#x}")
    return stack[-1] & _WORDS


_BINARY: dict[int, Callable[[int, int], int]] = {
    0x1A: lambda a, b: a & b,
    0x1C: lambda a, b: a - b,
    0x22: lambda a, b: a + b,
    0x24: lambda a, b: (a << b) & _WORDS if b < _WORD else 0,
    0x2A: lambda a, b: int(a >= b),
}
