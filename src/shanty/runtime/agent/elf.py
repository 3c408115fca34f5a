"""Reads what a program or library says of itself: names of functions, and how to leave them.

Only as much of ELF and of DWARF's call frame information as it takes to walk a stack (System V
ABI, DWARF 5 section 6.4, Linux Standard Base on `.eh_frame`). 64 bits, little-endian.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import struct
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

_LOAD, _EH_FRAME_HDR = 1, 0x6474E550  # kinds of program headers
_SYMTAB, _DYNSYM, _FUNCTION = 2, 11, 2
_LONGEST_TABLE = 5 << 20  # bytes of symbols; TensorFlow has eight times that, read in seconds
_LONGEST = 512  # bytes of a name
_WORD = 64  # bits
_WORDS = (1 << _WORD) - 1
_PCREL_SDATA4, _DATAREL_SDATA4, _UDATA4 = 0x1B, 0x3B, 0x03

Rule = Tuple[Any, ...]  # ("offset", n), ("register", r), ("same",), ("value"|"at", expression)


class UnreadableError(Exception):
    """The file, or this place in it, has not what it takes to go on."""


# What wrong numbers in a file lead to.
_WRONG_NUMBERS = (struct.error, IndexError, ValueError, OverflowError, TypeError)


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
    rules: Dict[int, Rule]
    returns: int  # the register that stands for the return address
    signal: bool  # the place was interrupted by a signal


class Image:
    """One program or library; addresses are as in the file, before it was loaded anywhere.

    UnreadableError, and no other error, wherever the file makes no sense.
    """

    @_trusting_no_number()
    def __init__(self, data: Any) -> None:
        self._data = data
        if bytes(data[:6]) != b"\x7fELF\x02\x01":
            raise UnreadableError("no ELF of 64 bits")
        at, self._sections_at = struct.unpack_from("<QQ", data, 32)
        count, _, self._sections = struct.unpack_from("<HHH", data, 56)
        headers = list(struct.iter_unpack("<IIQQQQ16x", data[at : at + 56 * count]))
        # File offset, address, bytes
        self._loads = [(h[2], h[3], h[5]) for h in headers if h[0] == _LOAD]
        self._header = next((h[3] for h in headers if h[0] == _EH_FRAME_HDR), 0)
        self._exits: Dict[int, Exit] = {}

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

    def symbol(self, address: int) -> str:
        """Returns the function that the address is in; "" when none is known."""
        name, end = self._nearest(address)
        return name if address < end else ""

    def near(self, address: int) -> str:
        """Returns the known function that begins last before the address, ended or not."""
        return self._nearest(address)[0]

    def _nearest(self, address: int) -> Tuple[str, int]:
        index = bisect.bisect_left(self._functions, (address + 1,))
        if not index:
            return "", 0
        start, (size, at) = self._functions[index - 1]
        text = bytes(self._data[at : at + _LONGEST]).partition(b"\0")[0]
        return text.decode(errors="replace"), start + max(size, 1)

    @functools.cached_property
    def _functions(self) -> List[Tuple[int, Tuple[int, int]]]:
        """Address, size and where the name is, of every function; none of a table too long."""
        found: Dict[int, Tuple[int, int]] = {}
        at = self._sections_at
        with contextlib.suppress(*_WRONG_NUMBERS):
            table = self._data[at : at + 64 * self._sections]
            sections = list(struct.iter_unpack("<IIQQQQIIQQ", table))
            for _, kind, _, _, at, size, strings, *_ in sections:
                if kind in (_SYMTAB, _DYNSYM) and size <= _LONGEST_TABLE:
                    names = sections[strings][4]
                    symbols = struct.iter_unpack("<IBBHQQ", self._data[at : at + size])
                    for name, info, _, home, value, length in symbols:
                        if info & 15 == _FUNCTION and home:
                            found[value] = (length, names + name)
        return sorted(found.items())

    def exit(self, pc: int) -> Exit:
        """Returns how to leave the function at `pc`; UnreadableError when the file is silent."""
        if pc not in self._exits:
            with _trusting_no_number():
                self._exits[pc] = self._exit(self._description(pc), pc)
        return self._exits[pc]

    def _description(self, pc: int) -> int:
        """Returns the address of the last frame description that does not begin behind `pc`."""
        if not self._header:
            raise UnreadableError("no call frame information")
        at = self._offset(self._header)
        version, _, *forms, _, count = struct.unpack_from("<BBBBiI", self._data, at)
        if (version, *forms) != (1, _UDATA4, _DATAREL_SDATA4):
            raise UnreadableError("a table of another form")
        # Where a function begins, and where its description is, in turn.
        table = memoryview(self._data)[at + 12 : at + 12 + 8 * count].cast("i")
        index = bisect.bisect_right(table[::2], pc - self._header) - 1
        return self._header + table[2 * max(index, 0) + 1]

    def _exit(self, entry: int, pc: int) -> Exit:
        """Reads the frame description at the address `entry` up to `pc`."""
        at = self._offset(entry)
        length, back, begin, size = struct.unpack_from("<IIiI", self._data, at)
        common = at + 4 - back  # what many descriptions share
        reader = _Reader(self._data, common + 8)
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
        own = _Reader(self._data, at + 16)
        own.at += own.read("u")
        common_length = struct.unpack_from("<I", self._data, common)[0]
        parts = (reader, common + 4 + common_length), (own, at + 4 + length)
        cfa, rules = _carry_out(parts, start, pc, code_unit, stack_unit)
        return Exit(cfa, rules, returns, b"S" in letters)


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
    parts: Iterable[Tuple[_Reader, int]], location: int, pc: int, code_unit: int, stack_unit: int
) -> Tuple[Rule, Dict[int, Rule]]:
    """Carries out instructions up to those that hold only behind `pc`; each part has its end."""
    cfa: Rule = ()
    rules: Dict[int, Rule] = {}
    kept: List[Tuple[Rule, Dict[int, Rule]]] = []
    for reader, end in parts:
        initial = dict(rules)
        while reader.at < end and location <= pc:
            byte = reader.read("B")
            code = _SHORT.get(byte & 0xC0, byte)
            if code not in _INSTRUCTIONS:
                raise UnreadableError(f"call frame instruction {code:#x}")
            kinds, what = _INSTRUCTIONS[code]
            operands: List[Any] = [] if code == byte else [byte & 0x3F]
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
def evaluate(expression: bytes, registers: Dict[int, int], read: Any, first: Sequence[int]) -> int:
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


_BINARY: Dict[int, Callable[[int, int], int]] = {
    0x1A: lambda a, b: a & b,
    0x1C: lambda a, b: a - b,
    0x22: lambda a, b: a + b,
    0x24: lambda a, b: (a << b) & _WORDS if b < _WORD else 0,
    0x2A: lambda a, b: int(a >= b),
}
