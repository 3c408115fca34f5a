"""Reads what a program or library says of itself: names of functions, and how to leave them.

Only as much of ELF and of DWARF's call frame information as it takes to walk a stack (System V
ABI, DWARF 5 section 6.4, Linux Standard Base on `.eh_frame`). 64 bits, little-endian.
"""

from __future__ import annotations

import bisect
import contextlib
import struct
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

_LOAD, _EH_FRAME_HDR = 1, 0x6474E550  # kinds of program headers
_SYMTAB, _DYNSYM, _FUNCTION = 2, 11, 2
_LONGEST = 512  # bytes of a name
_SYMBOL = struct.Struct("<IBBHQQ")
_WORD = 64  # bits
_WORDS = (1 << _WORD) - 1
_PCREL_SDATA4, _DATAREL_SDATA4, _UDATA4 = 0x1B, 0x3B, 0x03

Rule = Tuple[Any, ...]  # ("offset", n), ("register", r), ("same",), ("value"|"at", expression)


class UnreadableError(Exception):
    """The file, or this place in it, has not what it takes to go on."""


@contextlib.contextmanager
def _trusting_no_number() -> Iterator[None]:
    """Numbers in a file may be anything: what fails because of them is an UnreadableError."""
    try:
        yield
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise UnreadableError(str(error)) from error


class Exit(NamedTuple):
    """How to leave a function at some place: its caller's stack, registers and return address."""

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
        self._sections_at, programs_at = self._at("<Q", 40), self._at("<Q", 32)
        size, count = self._at("<H", 54), self._at("<H", 56)
        self._loads: List[Tuple[int, int, int]] = []  # (file offset, address, bytes)
        self._header = 0
        for number in range(count):
            kind, _, offset, address, _, in_file = struct.unpack_from(
                "<IIQQQQ", data, programs_at + number * size
            )
            if kind == _LOAD:
                self._loads.append((offset, address, in_file))
            elif kind == _EH_FRAME_HDR:
                self._header = address
        self._symbols: Optional[Tuple[List[int], List[Tuple[int, int]]]] = None
        self._exits: Dict[int, Exit] = {}

    def _at(self, form: str, offset: int) -> int:
        return int(struct.unpack_from(form, self._data, offset)[0])

    def _offset(self, address: int) -> int:
        """Where in the file the byte of an address is."""
        for offset, start, size in self._loads:
            if start <= address < start + size:
                return address - start + offset
        raise UnreadableError("an address outside of the file")

    def address(self, offset: int) -> int:
        """The address of a byte of the file."""
        for start, address, size in self._loads:
            if start & -4096 <= offset < start + size:
                return offset - start + address
        raise UnreadableError("a part of the file that is not loaded")

    def symbol(self, address: int) -> str:
        """The function that the address is in; "" when none is known."""
        name, inside = self._nearest(address)
        return name if inside else ""

    def near(self, address: int) -> str:
        """The known function that begins last before the address, which may be beyond its end."""
        return self._nearest(address)[0]

    def _nearest(self, address: int) -> Tuple[str, bool]:
        if self._symbols is None:
            found = {}
            with contextlib.suppress(UnreadableError), _trusting_no_number():
                for value, size, name in self._read_symbols():
                    found[value] = (size, name)
            starts = sorted(found)
            self._symbols = (starts, [found[start] for start in starts])
        starts, rest = self._symbols
        index = bisect.bisect_right(starts, address) - 1
        if index < 0:
            return "", False
        size, at = rest[index]
        text = bytes(self._data[at : at + _LONGEST]).partition(b"\0")[0]
        return text.decode(errors="replace"), address < starts[index] + max(size, 1)

    def _read_symbols(self) -> Iterator[Tuple[int, int, int]]:
        """Address, size and where the name is, of every function."""
        size, count = self._at("<H", 58), self._at("<H", 60)
        sections = [
            struct.unpack_from("<IIQQQQIIQQ", self._data, self._sections_at + n * size)
            for n in range(count)
        ]
        for section in sections:
            if section[1] in (_SYMTAB, _DYNSYM):
                names = sections[section[6]][4]
                table = self._data[section[4] : section[4] + section[5]]
                for name, info, _, home, value, length in _SYMBOL.iter_unpack(bytes(table)):
                    if info & 15 == _FUNCTION and home:
                        yield value, length, names + name

    def exit(self, pc: int) -> Exit:
        """How to leave the function that is at `pc`; UnreadableError when the file does not say."""
        found = self._exits.get(pc)
        if found is None:
            with _trusting_no_number():
                found = self._exits[pc] = self._find_exit(pc)
        return found

    def _find_exit(self, pc: int) -> Exit:
        if not self._header:
            raise UnreadableError("no call frame information")
        at = self._offset(self._header)
        version, _, count_form, table_form = self._data[at : at + 4]
        if (version, count_form, table_form) != (1, _UDATA4, _DATAREL_SDATA4):
            raise UnreadableError("a table of another form")
        low, high = 0, self._at("<I", at + 8)
        table = at + 12
        while high - low > 1:  # the last entry that does not begin behind pc
            middle = (low + high) // 2
            if self._header + self._at("<i", table + 8 * middle) <= pc:
                low = middle
            else:
                high = middle
        entry = self._header + self._at("<i", table + 8 * low + 4)
        return self._leave(entry, pc)

    def _leave(self, entry: int, pc: int) -> Exit:
        """Read the frame description at the address `entry` up to `pc`."""
        at = self._offset(entry)
        length = self._at("<I", at)
        common = _Common(self._data, at + 4 - self._at("<I", at + 4))
        if common.form != _PCREL_SDATA4:
            raise UnreadableError("addresses of another form")
        start = entry + 8 + self._at("<i", at + 8)
        if not start <= pc < start + self._at("<I", at + 12):
            raise UnreadableError("no function is known there")
        reader = _Reader(self._data, at + 16)
        if common.augmented:
            reader.skip(reader.uleb())
        program = _Program(common)
        program.run(_Reader(self._data, common.begins), common.ends, None)
        program.initial = dict(program.rules)
        program.location = start
        program.run(reader, at + 4 + length, pc)
        if program.cfa is None:
            raise UnreadableError("no frame address")
        return Exit(program.cfa, program.rules, common.returns, common.signal)


class _Reader:
    """Reads numbers one after the other."""

    def __init__(self, data: Any, at: int) -> None:
        self.data = data
        self.at = at

    def byte(self) -> int:
        self.at += 1
        return int(self.data[self.at - 1])

    def skip(self, count: int) -> None:
        self.at += count

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > _WORD:
                raise UnreadableError("a number of more than 64 bits")

    def sleb(self) -> int:
        start = self.at
        value = self.uleb()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value

    def block(self) -> bytes:
        size = self.uleb()
        self.at += size
        return bytes(self.data[self.at - size : self.at])


class _Common:
    """What many frame descriptions share."""

    def __init__(self, data: Any, at: int) -> None:
        length = struct.unpack_from("<I", data, at)[0]
        reader = _Reader(data, at + 8)
        version = reader.byte()
        words = bytearray()
        while True:
            byte = reader.byte()
            if not byte:
                break
            words.append(byte)
        self.augmented = words[:1] == b"z"
        self.code, self.stack = reader.uleb(), reader.sleb()
        self.returns = reader.byte() if version == 1 else reader.uleb()
        self.form = 0
        self.signal = b"S" in words
        if self.augmented:
            size = reader.uleb()
            begins = reader.at + size
            for letter in words[1:].decode("ascii", "replace"):
                if letter == "R":
                    self.form = reader.byte()
                elif letter == "L":
                    reader.byte()
                elif letter == "P":
                    width = {2: 2, 3: 4, 4: 8, 0: 8}.get(reader.byte() & 7, 4)
                    reader.skip(width)
            reader.at = begins
        self.begins, self.ends = reader.at, at + 4 + length


class _Program:
    """Carries out call frame instructions."""

    def __init__(self, common: _Common) -> None:
        self._common = common
        self.cfa: Optional[Rule] = None
        self.rules: Dict[int, Rule] = {}
        self.initial: Dict[int, Rule] = {}
        self.location = 0
        self._kept: List[Tuple[Optional[Rule], Dict[int, Rule]]] = []

    def run(self, reader: _Reader, end: int, pc: Optional[int]) -> None:
        """Run up to `end`, or to the first instruction that holds only behind `pc`."""
        while reader.at < end:
            code = reader.byte()
            high, low = code & 0xC0, code & 0x3F
            if high == 0x40:
                self.location += low * self._common.code
            elif high == 0x80:
                self.rules[low] = ("offset", reader.uleb() * self._common.stack)
            elif high == 0xC0:
                self._restore(low)
            elif code in (0x02, 0x03, 0x04):
                step = reader.number({2: "<B", 3: "<H", 4: "<I"}[code])
                self.location += step * self._common.code
            else:
                self._one(code, reader)
            if pc is not None and self.location > pc:
                return

    def _restore(self, register: int) -> None:
        self.rules.pop(register, None)
        if register in self.initial:
            self.rules[register] = self.initial[register]

    def _one(self, code: int, reader: _Reader) -> None:
        stack = self._common.stack
        if code in (0x00, 0x2D):  # nothing; a signed return address
            return
        if code == 0x0A:
            self._kept.append((self.cfa, dict(self.rules)))
        elif code == 0x0B:
            self.cfa, self.rules = self._kept.pop()
        elif code == 0x0C:
            self.cfa = ("register", reader.uleb(), reader.uleb())
        elif code == 0x12:
            self.cfa = ("register", reader.uleb(), reader.sleb() * stack)
        elif code in (0x0D, 0x0E, 0x13):
            if self.cfa is None or self.cfa[0] != "register":
                raise UnreadableError("half of a frame address, without the other half")
            _, register, offset = self.cfa
            if code == 0x0D:
                register = reader.uleb()
            else:
                offset = reader.uleb() if code == 0x0E else reader.sleb() * stack
            self.cfa = ("register", register, offset)
        elif code == 0x0F:
            self.cfa = ("value", reader.block())
        elif code in (0x05, 0x11):
            register = reader.uleb()
            self.rules[register] = (
                "offset",
                (reader.uleb() if code == 0x05 else reader.sleb()) * stack,
            )
        elif code == 0x06:
            self._restore(reader.uleb())
        elif code == 0x07:
            self.rules[reader.uleb()] = ("undefined",)
        elif code == 0x08:
            self.rules[reader.uleb()] = ("same",)
        elif code == 0x09:
            self.rules[reader.uleb()] = ("register", reader.uleb())
        elif code in (0x10, 0x16):
            self.rules[reader.uleb()] = ("at" if code == 0x10 else "value", reader.block())
        elif code == 0x2E:
            reader.uleb()
        else:
            raise UnreadableError(f"call frame instruction {code:#x}")


@_trusting_no_number()
def evaluate(expression: bytes, registers: Dict[int, int], read: Any, first: Sequence[int]) -> int:
    """The value of a DWARF expression; `read(address)` gives a word of memory.

    UnreadableError for an expression that has none.
    """
    reader, stack = _Reader(expression, 0), list(first)
    while reader.at < len(expression):
        code = reader.byte()
        if 0x70 <= code <= 0x8F:
            stack.append(registers.get(code - 0x70, 0) + reader.sleb())
        elif 0x30 <= code <= 0x4F:
            stack.append(code - 0x30)
        elif code in (0x08, 0x09):
            stack.append(reader.number("<B" if code == 0x08 else "<b"))
        elif code == 0x06:
            stack.append(read(stack.pop()))
        elif code == 0x23:
            stack.append(stack.pop() + reader.uleb())
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
