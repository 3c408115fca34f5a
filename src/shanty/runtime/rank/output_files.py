"""A second place for a rank's output: files that the user's launcher line asks for by name.

They are `FOLDER/rank.K/stdout` and `…/stderr`, as horovodrun's --output-filename has them, K with
as many digits as the last rank's; or one file with the lines of all ranks, each with its rank, as
`[K] …`. The run's own logs are written all the same.
"""

from __future__ import annotations

import os
import sys

from shanty.runtime.frames import STDERR, STDOUT, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

VARIABLE = "SHANTY_OUTPUT_FILES"  # the environment variable with the folder's path
LINES = "SHANTY_OUTPUT_LINES"  # the one with the path of the file for all ranks
_NAMES = {STDOUT: "stdout", STDERR: "stderr"}
_LONGEST = 1 << 20  # bytes; a longer line is torn


def for_rank(environ: Mapping[str, str]) -> Copies | Lines | None:
    """The files of the rank whose environment this is; None when none are asked for."""
    folder, file = environ.get(VARIABLE), environ.get(LINES)
    if file:
        return Lines(file, environ["RANK"])
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

    def close(self) -> None:
        """Nothing is kept back."""


class Lines:
    """One rank's part of a file that all ranks append to, whole lines; an error ends it."""

    def __init__(self, path: str, rank: str) -> None:
        self._path = path
        self._label = f"[{rank}] ".encode()
        self._file: int | None = None
        self._begun = {STDOUT: b"", STDERR: b""}
        self._failed = False

    def feed(self, stream: int, data: bytes) -> None:
        """Append the lines that are whole by now."""
        *whole, rest = (self._begun[stream] + data).split(b"\n")
        if len(rest) > _LONGEST:
            whole, rest = [*whole, rest], b""
        self._begun[stream] = rest
        self._write(whole)

    def close(self) -> None:
        """Append last lines that never got a newline."""
        self._write([begun for begun in self._begun.values() if begun])

    def _write(self, lines: list[bytes]) -> None:
        if self._failed or not lines:
            return
        try:
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o644)
            write_all(self._file, b"".join(self._label + line + b"\n" for line in lines))
        except OSError as error:
            self._failed = True
            print(f"shanty: cannot write {self._path}: {error.strerror}", file=sys.stderr)
