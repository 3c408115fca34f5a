"""Huge pages under memory that is reduced again and again, such as gradients.

Reducing memory in pages of 4 KiB takes MPI nearly twice as long as in pages of 2 MiB
(docs/how-to/torch.md). Linux can put such pages under memory that is in use: madvise(2),
MADV_COLLAPSE, from Linux 6.1 on. Importing this module starts no MPI.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

LEAST = 4 << 20
"""Bytes from which on it is worth while."""

OFTEN = 3
"""Times that memory is reduced before it counts as staying where it is."""

_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")  # of Linux
_PAGE = 2 << 20
_MADV_COLLAPSE = 25
_MANY = 1000  # places that are remembered

_times: dict[int, int] = {}  # address → how often


def count(address: int, nbytes: int) -> None:
    """Count a reduction of host memory, of LEAST bytes or more: with the third it is widened."""
    times = _times.get(address, 0) + 1
    if times > OFTEN:
        return
    if len(_times) >= _MANY:
        _times.clear()
    _times[address] = times
    if times == OFTEN:
        widen([(address, nbytes)])


def widen(memory: Iterable[tuple[int, int]]) -> None:
    """Put huge pages under host memory (address, bytes), wherever it fills half of one or more.

    Other data in these pages is not changed. Does nothing where such pages are turned off.
    """
    if not _ENABLED.is_file() or "[never]" in _ENABLED.read_text():
        return
    filled: dict[int, int] = {}  # page → bytes of it
    for at, nbytes in memory:
        end = at + nbytes
        while at < end:
            page = at // _PAGE
            upto = min(end, (page + 1) * _PAGE)
            filled[page] = filled.get(page, 0) + upto - at
            at = upto
    libc = ctypes.CDLL(None)
    for page, covered in filled.items():
        if 2 * covered >= _PAGE:
            # If this fails (an older Linux, no huge page free), the pages stay small.
            address, length = ctypes.c_void_p(page * _PAGE), ctypes.c_size_t(_PAGE)
            libc.madvise(address, length, _MADV_COLLAPSE)
