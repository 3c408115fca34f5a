"""A second place for a rank's output: files that the user's launcher line asks for by name.

They are `FOLDER/rank.K/stdout` and `…/stderr`, as horovodrun's --output-filename has them, K with
as many digits as the last rank's. The run's own logs are written all the same.
"""

from __future__ import annotations

import os
import sys

from shanty.carry.frames import STDERR, STDOUT, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

VARIABLE = "SHANTY_OUTPUT_FILES"  # the environment variable with the folder's path
_NAMES = {STDOUT: "stdout", STDERR: "stderr"}


def for_rank(environ: Mapping[str, str]) -> Copies | None:
    """The files of the rank whose environment this is; None when none are asked for."""
    folder = environ.get(VARIABLE)
    if not folder:
        return None
    rank, last = int(environ["RANK"]), int(environ["WORLD_SIZE"]) - 1
    return Copies(f"{folder}/rank.{rank:0{len(str(last))}}")


class Copies:
    """The files of one rank, made when there is something to write; an error ends them."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files: dict[int, int] = {}
        self._failed = False

    def feed(self, stream: int, data: bytes) -> None:
        """Append `data`, as it was read from `stream`."""
        if self._failed:
            return
        try:
            if stream not in self._files:
                os.makedirs(self._folder, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
                path = f"{self._folder}/{_NAMES[stream]}"
                self._files[stream] = os.open(path, flags, 0o644)
            write_all(self._files[stream], data)
        except OSError as error:
            self._failed = True
            print(f"shanty: cannot write {self._folder}: {error.strerror}", file=sys.stderr)
