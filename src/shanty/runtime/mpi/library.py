"""Tells which MPI a libmpi is, by the file itself.

The names in its symbol table tell the flavour, a text in its read-only data the version. Its
own name tells little: MPICH and Intel MPI are both `libmpi.so.12`, Open MPI 4 and 5 both
`libmpi.so.40`, and two wheels in one environment overwrite each other's `libmpi.so`.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections import Counter
from typing import List, NamedTuple, Optional, Tuple


class Library(NamedTuple):
    """What a libmpi says of itself; `version` is None where no text in it looks like one."""

    flavour: str
    version: Optional[str]


# Flavour, a name that its symbol table holds, the shape of its version; the first that fits is
# taken. Open MPI 3 speaks 4's dialect and Open MPI 6 speaks 5's: the runtime below makes the
# difference, ORTE until 4 and PRRTE since 5, and only ORTE's library is linked into libmpi.
_SIGNS = (
    ("openmpi4", b"libopen-rte.", rb"[34]\.\d+\.\d+[a-z]*\d*"),
    ("openmpi5", b"ompi_mpi_comm_world", rb"[5-9]\.\d+\.\d+[a-z]*\d*"),
    ("intel", b"I_MPI_", rb"20\d\d\.\d+(?:\.\d+)?"),
    ("mpich", b"PMPI_Init", rb"[3-9]\.\d+(?:\.\d+)?(?:[a-z]+\d+)?"),
)

# Not the bindings beside it: libmpifort, libmpi_cxx, libmpi_usempi, libmpi_java.
_NAME = re.compile(r"libmpi(ch)?(_(abi|cray|gnu|intel|amd|nvidia)\w*)?\.(so|dylib|\d+)")


def flavour_of_library(path: str) -> Optional[Library]:
    """Returns the flavour and version of a libmpi; None when the file is none or cannot be read.

    A linker script in its place (`libmpi.so` of the wheels) is followed. Takes a few
    milliseconds: of a library of 40 MB only the symbol names and the texts are looked at.
    """
    if not _NAME.match(os.path.basename(path)):
        return None
    try:
        with (
            open(real_library(path), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _identify(data)
    except (OSError, ValueError, struct.error):  # ValueError: an empty file
        return None


def real_library(path: str) -> str:
    """Returns a path that dlopen takes: what a linker script names, else `path` itself."""
    with open(path, "rb") as file:
        named = re.match(rb"(?:INPUT|GROUP)\s*\(\s*([^\s)]+)", file.read(256))
    return os.path.join(os.path.dirname(path), os.fsdecode(named[1])) if named else path


def _identify(data: mmap.mmap) -> Optional[Library]:
    names, texts = _regions(data)
    for flavour, name, version in _SIGNS:
        if data.find(name, *names) >= 0:
            return Library(flavour, _version_in(data[texts[0] : texts[1]], version))
    return None


def _version_in(texts: bytes, shape: bytes) -> Optional[str]:
    """Returns the text of that shape that occurs most often; of several, the first."""
    found: List[bytes] = re.findall(rb"\0(" + shape + rb")(?=\0)", texts)
    if not found:
        return None
    in_three_parts = [text for text in found if text.count(b".") == 2]
    return Counter(in_three_parts or found).most_common(1)[0][0].decode()


def _regions(data: mmap.mmap) -> Tuple[Tuple[int, int], Tuple[int, int]]:
    """Returns where a library's symbol names and read-only data lie: two pairs of offsets.

    Known for 64-bit little-endian ELF, which is every Linux that the wheels support; of other
    files (Mach-O) both are the whole file.
    """
    whole = (0, len(data))
    if data[:6] != b"\x7fELF\x02\x01":
        return whole, whole
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    sections = []
    for index in range(count):
        name, _, _, _, start, length = struct.unpack_from("<IIQQQQ", data, table + index * size)
        sections.append((name, start, start + length))
    found = {}
    for name, start, end in sections:
        at = sections[names_index][1] + name
        found[data[at : data.find(b"\0", at)]] = (start, end)
    return found.get(b".dynstr", whole), found.get(b".rodata", whole)
