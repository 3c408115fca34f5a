"""The program of the files in `shims/engines`: `boot.py rank.container_line NAME WORDS…`.

It becomes the container engine, or refuses a line by which each rank would be alone in its
container.
"""

from __future__ import annotations

import os
import sys
from typing import Dict, List, Mapping

from shanty.runtime import platform
from shanty.runtime.lines.command import SHELLS, become_next
from shanty.runtime.lines.container_engine import (
    BEFORE,
    CODE,
    Line,
    can_be_ended,
    find,
    labelled,
    refusal,
)
from shanty.runtime.mpi import processes
from shanty.runtime.rank import reports


def main(argv: List[str]) -> int:
    """Becomes the container engine, or refuses to."""
    environ, shims = os.environ, os.path.join(os.path.dirname(os.path.abspath(__file__)), "shims")
    line = find(argv)
    rank = processes.number(environ, processes.RANK)
    if line is not None and rank is not None and reports.FIFO in environ:
        report: Dict[str, reports.Value] = {"rank": rank}
        report["world"] = environ.get("SHANTY_WORLD", "0")
        refused = refusal(line, environ) if is_ranks_program(line) else None
        if refused is not None:
            print(f"shanty: {refused[0]}\n  fix: {refused[1]}", file=sys.stderr)
            _tell(report, event="failed", code=CODE, why=refused[0], fix=refused[1])
            return CODE
        if can_be_ended(line):
            _tell(report, event="container", engine=" ".join(line.program))
        argv = labelled(line, environ)
    name = argv[0]
    become_next(name, argv[1:], os.path.join(shims, "engines", name))
    print(f"{name}: command not found", file=sys.stderr)
    return 127


def is_ranks_program(line: Line) -> bool:
    """Returns True where only shells are between the rank and what this process is to start.

    A container that a Python rank starts, or a shell in the background, only helps the rank.
    """
    if any(name in ("--detach", "-d") for name, _ in line.options):
        return False
    table = platform.processes()
    pid = os.getppid()
    while pid in table:
        words = platform.command(pid)
        if "rank.exec" in words:
            return True
        if not words or os.path.basename(words[0]).lstrip("-") not in (*SHELLS, *BEFORE):
            return False
        pid = table[pid].parent
    return False


def _tell(report: Mapping[str, reports.Value], **more: reports.Value) -> None:
    import time

    try:
        channel = reports.open_reports(os.environ[reports.FIFO])
    except OSError:  # the run has ended
        return
    reports.send(channel, {**report, **more, "at": time.monotonic()})
    os.close(channel)
