"""Which ranks share a file, as scripts of old name it.

With rabit, a file that all ranks load is shared out among them. Many scripts have split their data
themselves, though, and load `"train.%d" % rank`: such a file is its rank's own, and is not split
again. So the ranks compare what they name. Where the names differ, the content decides whether it
is one file all the same: hosts may have it in different folders.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

_LOOKED_AT = 65536  # bytes at the beginning and at the end of a file


class Claim(NamedTuple):
    """What a rank is about to load."""

    name: str  # as the script has it
    content: str  # says whether it is the same as another's; "" where that cannot be told


def claim(name: str, path: str) -> Claim:
    """The claim on the file `path`, which the script calls `name`; it may be missing."""
    try:
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = file.read(_LOOKED_AT)
            file.seek(max(0, size - _LOOKED_AT))
            last = file.read(_LOOKED_AT)
    except OSError:  # a folder, a pattern, or nothing: whoever loads it will say so
        return Claim(name, "")
    return Claim(name, f"{size} {hashlib.sha256(first + last).hexdigest()}")


def parties(claims: list[Claim]) -> list[int]:
    """For each rank the first one that claims the same: with that one it shares the file."""
    if len({each.name for each in claims}) == 1:
        return [0] * len(claims)
    keys = [each.content or each.name for each in claims]
    return [keys.index(key) for key in keys]
