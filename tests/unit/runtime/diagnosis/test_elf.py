"""What is read of programs: names, and ways out of functions, damaged ones too."""

from __future__ import annotations

import bisect
import contextlib
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shanty.runtime.diagnosis import elf
from shanty.runtime.diagnosis.elf import File, Image, UnreadableError, evaluate


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


Functions = Sequence[tuple[int, int, str]]  # where each begins, its size and its name


def library(functions: Functions, described: bool, others: Sequence[int] = ()) -> bytes:
    """An ELF file with these functions; `described`: a frame description says how to leave each.

    `others` are the addresses of what is not a function: data, and labels.
    """
    names = b"\0" + b"".join(name.encode() + b"\0" for _, _, name in functions)
    symbols, at_name = bytearray(24), 1
    for start, size, name in functions:
        symbols += struct.pack("<IBBHQQ", at_name, 0x12, 0, 1, start, size)
        at_name += len(name) + 1
    for start in others:
        symbols += struct.pack("<IBBHQQ", 1, 0x11, 0, 1, start, 8)
    symbols_at = 256
    names_at = symbols_at + len(symbols)
    sections_at = names_at + len(names)
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 0, 11, 0, 0, symbols_at, len(symbols), 2, 0, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, names_at, len(names), 0, 0, 1, 0)
    common_at = sections_at + len(sections)
    common = struct.pack("<II", 20, 0) + b"\x01zR\0\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01\0\0"
    index_at = common_at + len(common)
    entries_at = index_at + 12 + 8 * len(functions)
    index = bytearray(struct.pack("<BBBBiI", 1, 0x1B, 0x03, 0x3B, 0, len(functions)))
    entries = bytearray()
    for start, size, _ in sorted(functions):
        at = entries_at + len(entries)
        index += struct.pack("<ii", start - index_at, at - index_at)
        entries += struct.pack("<IIiIB", 13, at + 4 - common_at, start - at - 8, size, 0)
    headers = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 1 << 40, 1 << 40, 4096)
    headers += struct.pack("<IIQQQQQQ", 0x6474E550, 4, *3 * (index_at,), 20, 20, 4)
    file = b"\x7fELF\x02\x01".ljust(32, b"\0") + struct.pack("<QQ", 64, sections_at)
    file += struct.pack("<IHHHHHH", 0, 64, 56, 2 if described else 1, 64, 3, 0) + headers
    return bytes(
        file.ljust(symbols_at, b"\0") + symbols + names + sections + common + index + entries
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    gaps=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), min_size=1, max_size=12),
    others=st.lists(st.integers(10_000, 10_400), max_size=4),
    described=st.booleans(),
    order=st.randoms(use_true_random=False),
    at_once=st.integers(1, 30),
)
def test_names_of_functions(
    monkeypatch: pytest.MonkeyPatch,
    gaps: list[tuple[int, int]],
    others: list[int],
    described: bool,
    order: Random,
    at_once: int,
) -> None:
    """The same however few symbols are looked at together, and in whichever order they are."""
    functions, start = [], 10_000
    for size, gap in gaps:
        functions.append((start, size, f"f{start}"))
        start += size + gap
    starts = [each[0] for each in functions]
    mixed = list(functions)
    order.shuffle(mixed)
    monkeypatch.setattr(elf, "_AT_ONCE", at_once)
    image = Image(library(mixed, described, others))
    edges = (edge for begin, size, _ in functions for edge in (begin, begin + size))
    places = {9_990, start + 9, *(edge + step for edge in edges for step in (-1, 0))}
    found = image.symbols(places)
    for place in places:
        index = bisect.bisect_right(starts, place) - 1
        before = functions[index] if index >= 0 else (0, 0, "")
        assert image.near(place) == before[2]
        assert found[place] == (before[2] if place < before[0] + before[1] else "")
        assert image.symbol(place) == found[place]


def test_a_library_with_many_symbols(tmp_path: Path) -> None:
    """As TensorFlow's: a name costs little memory, and other threads may run in between."""
    functions = [(1 << 30 | 64 * number, 48, f"f{number}") for number in range(40_000)]
    path = tmp_path / "large.so"
    path.write_bytes(library(functions, True, range(8, 320_008, 8)))
    longest = 0

    class Counted(File):
        def __getitem__(self, part: slice) -> bytes:
            nonlocal longest
            longest = max(longest, part.stop - part.start)
            return super().__getitem__(part)

    image = Image(Counted(str(path)))
    tracemalloc.start()
    try:
        places = {functions[index][0] + 5: f"f{index}" for index in range(7, 40_000, 2_345)}
        assert image.symbols(places) == places
        assert image.near(functions[-1][0] + 1000) == "f39999"
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert longest <= 1 << 19


def test_a_library_that_is_cut_short_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "replaced.so"
    path.write_bytes(library([(4096, 64, "before")], True))
    image = Image(File(str(path)))
    path.write_bytes(b"")
    with pytest.raises(UnreadableError):
        image.exit(4100)
    assert image.symbol(4100) == image.near(4100) == ""
