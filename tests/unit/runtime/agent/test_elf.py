"""What is read of programs: names, and ways out of functions, damaged ones too."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shanty.runtime.agent.elf import Image, UnreadableError, evaluate


def test_what_is_no_program() -> None:
    with pytest.raises(UnreadableError):
        Image(b"#!/bin/sh\n" + bytes(100))


def program(instructions: bytes) -> bytes:
    """An ELF file with one function, at 4096; `instructions` say how to leave it."""
    everything = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 8192, 8192, 4096)
    index_at, common_at, own_at = 256, 276, 300
    index = struct.pack("<IIQQQQQQ", 0x6474E550, 4, *3 * (index_at,), 20, 20, 4)
    file = b"\x7fELF\x02\x01".ljust(32, b"\0") + struct.pack("<QQ", 64, 0)
    file += struct.pack("<IHHHHHH", 0, 64, 56, 2, 0, 0, 0) + everything + index
    file = file.ljust(index_at, b"\0") + struct.pack("<BBBBiI", 1, 0x1B, 0x03, 0x3B, 0, 1)
    file += struct.pack("<ii", 4096 - index_at, own_at - index_at)
    # The caller's stack is at register 7 + 8, the address to go back to right below that.
    common = b"\x01zR\0\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01".ljust(16, b"\0")
    file += struct.pack("<II", 20, 0) + common
    length, begin = 13 + len(instructions), 4096 - own_at - 8
    file += struct.pack("<IIiIB", length, own_at + 4 - common_at, begin, 256, 0)
    return file + instructions


def test_the_way_out_of_a_function() -> None:
    assert Image(program(b"")).exit(4100)[:2] == (("register", 7, 8), {16: ("offset", -8)})
    deeper = Image(program(b"\x44\x0e\x10\x48\x0d\x06"))  # + 4: r7 + 16, + 12: r6 + 16
    cfa = [deeper.exit(place).cfa for place in (4099, 4100, 4108)]
    assert cfa == [("register", 7, 8), ("register", 7, 16), ("register", 6, 16)]


def nowhere(_address: int) -> int:
    raise UnreadableError("no memory")


def values(image: Callable[[], Image], expressions: list[bytes]) -> None:
    """Ask for all that a walk asks for; only an UnreadableError may come of it."""
    with contextlib.suppress(UnreadableError):
        known = image()
        assert isinstance(known.symbol(4100), str)
        leave = known.exit(4100)
        assert leave.cfa[0] == "value" or [type(part) for part in leave.cfa[1:]] == [int, int]
        rules = [leave.cfa, *leave.rules.values()]
        expressions = [*expressions, *(r[1] for r in rules if r[0] in ("value", "at"))]
    for expression in expressions:
        with contextlib.suppress(UnreadableError):
            assert 0 <= evaluate(expression, {7: 1 << 47}, nowhere, (1 << 47,)) < 1 << 64


# Likely bytes: instructions and operations that are known, small numbers, and the largest.
Odd = st.lists(
    st.sampled_from([*range(0x14), 0x16, 0x1A, 0x1C, 0x22, 0x24, 0x2A, 0x2E, 0x44, 0x77, 0xFF])
    | st.integers(0, 255),
    max_size=24,
).map(bytes)


@given(instructions=Odd, expression=Odd)
@example(b"\x0f\x01\x30\x0d\x07", b"\x22")  # a register for an address that has none
@example(b"\x0f\x01\x30\x0e\x08", b"\x09\xff\x24")  # shifted by - 1
@example(b"\x0b", b"\x30" + 3 * b"\x0a\xff\xff\x24")
@example(b"\x0f\x00", b"")
def test_odd_ways_out_of_a_function(instructions: bytes, expression: bytes) -> None:
    values(lambda: Image(program(instructions)), [expression])


@given(at=st.integers(0, 312), patch=st.binary(min_size=1, max_size=8))
@example(at=32, patch=b"\xff" * 8)  # where the program headers are
@example(at=40, patch=b"\xff" * 8)  # where the sections are
def test_damaged_programs(at: int, patch: bytes) -> None:
    file = bytearray(program(b"\x44\x0e\x10"))
    file[at : at + len(patch)] = patch
    struct.pack_into("<HH", file, 58, 64, 1)
    values(lambda: Image(file), [])
