"""Which ranks share files, as scripts of old name them.

With rabit, a file that all ranks load is shared out among them. Many scripts have split their data
themselves, though, and load `"train.%d" % rank`: such a file is its rank's own, and is not split
again. So the ranks compare what they name. Where the names differ, the files decide whether they
are the same all the same, each by its last name and content: hosts may have them in different
folders, and users `~/data`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from shanty.xgboost.errors import DataError

_LOOKED_AT = 65536  # bytes at the beginning and at the end of a file; of many files, of all of them
_LEAST = 4096


class Claim(NamedTuple):
    """What a rank is about to load."""

    name: str  # as the script has it
    content: str  # says whether it is the same as another's; "" where that cannot be told
    files: str = ""  # the last names of the files; "" where they cannot be told


def claim(name: str, files: Sequence[str]) -> Claim:
    """The claim on `files`, which the script calls `name`; they may be missing."""
    length = max(_LEAST, _LOOKED_AT // max(1, len(files)))
    total, digest = 0, hashlib.sha256()
    try:
        for path in files:
            with Path(path).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                first = file.read(length)
                file.seek(max(length, size - length))
                last = file.read(length)
            if first.startswith(b"\x1f\x8b"):  # gzip; six bytes say when and where it was packed
                first = first[:4] + first[10:]
            digest.update(b"%d %d %d " % (size, len(first), len(last)) + first + last)
            total += size
    except OSError:  # whoever loads it will say so
        return Claim(name, "")
    if not files:
        return Claim(name, "")
    names = "/".join(os.path.basename(path) for path in files)
    return Claim(name, f"{total} bytes {digest.hexdigest()}", names)


def parties(claims: list[Claim]) -> list[int]:
    """For each rank the first one that claims the same: with that one it shares the files.

    DataError where one name means different files to two ranks.
    """
    first: dict[str, int] = {}
    for rank, each in enumerate(claims):
        if each.content:
            other = first.setdefault(each.name, rank)
            if claims[other].content != each.content:
                raise DataError(_different(each.name, other, rank, claims))
    if len({each.name for each in claims}) == 1:
        return [0] * len(claims)
    keys = [each[1:] if each.content else each.name for each in claims]
    return [keys.index(key) for key in keys]


def _different(name: str, one: int, other: int, claims: list[Claim]) -> str:
    sizes = [claims[rank].content.rpartition(" ")[0] for rank in (one, other)]
    return (
        f"The ranks see different files under one name, {name}: rank {one} of {sizes[0]}, rank "
        f"{other} of {sizes[1]}. Files of one name are shared out, so hosts without a shared "
        "folder need equal copies. Rows that are each rank's own need a name of each rank's own: "
        "train.0, train.1, …."
    )
