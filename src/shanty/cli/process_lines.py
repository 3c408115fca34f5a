"""Makes a run of a line for torchrun, `accelerate launch` or deepspeed: its processes are ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shanty.client import options
from shanty.client.command import make_script
from shanty.runtime.errors import UsageError
from shanty.runtime.lines import launchers
from shanty.runtime.lines.command import is_python
from shanty.runtime.lines.process_line import ProcessLine
from shanty.runtime.mpi.hostfiles import read_file
from shanty.runtime.platform import usable_cores
from shanty.runtime.spec import Command, Module, Program

_PLAIN = ("python", "python3")  # these mean the run's own


@dataclass
class Typed:
    """A line that was typed, what it asks for, and the interpreter that it names, if any."""

    line: ProcessLine
    python: str | None


def read(
    name: str, rest: Sequence[str], first: str, workspace: Path, environ: Mapping[str, str]
) -> Typed:
    """Return what a line asks for: the launcher's name, its words, and what was typed for it."""
    line = launchers.parse(name, rest, environ, lambda path: read_file(str(workspace / path)))
    python = None
    if is_python(first):
        python = None if first in _PLAIN else first
    elif os.sep in first and (workspace / first).with_name("python").exists():
        python = str((workspace / first).with_name("python"))
    return Typed(line, python)


def as_run(
    typed: Typed, workspace: Path, given: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[Command, dict[str, Any]]:
    """Return what each rank runs, and the options of the run: those that were typed and the line's.

    UsageError where they contradict each other.
    """
    from shanty.launch import interpreter

    line, values = typed.line, dict(given)
    table = options.defaults(workspace)
    values["python"] = given["python"] or typed.python
    line.settle(interpreter.choose(values["python"] or table.get("python"), workspace, environ))
    if line.hostfile:
        _take_hosts(line, values, workspace)
    there = {**table, **{key: value for key, value in values.items() if value is not None}}
    local = not there.get("on") and not there.get("hostfile")
    each = given["ranks_per_host"]
    if each and line.per_node is None and line.processes is None:
        line.per_node = each
    says_number = line.per_node is not None or line.processes is not None
    own = given["ranks"] if says_number else there.get("ranks")
    slots = usable_cores()
    count = line.count(1 if local else None, slots, own)
    if each and count.per_host not in (None, each):
        raise UsageError(
            f"--ranks-per-host {each} contradicts {line.says_number} {count.per_host}",
            fix="leave one of them out",
        )
    values["ranks"] = count.ranks
    values["ranks_per_host"] = each if local else count.per_host or each
    if local and (count.ranks or 0) > slots:  # such a launcher takes any number here
        values["oversubscribe"] = True
    values["env"] = {**line.variables, **given["env"]}
    return _command(line, workspace), values


def _take_hosts(line: ProcessLine, values: dict[str, Any], workspace: Path) -> None:
    """Take the hosts of the file that a line names, unless the run has hosts already."""
    if values["on"] or values["hostfile"]:
        line.leave_out(line.hostfile, "the run has its hosts")
        return
    values["hostfile"] = str(workspace / line.hostfile)
    line.default = "cpu"  # as many as it has slots


def _command(line: ProcessLine, workspace: Path) -> Command:
    first, *rest = line.words()
    if line.no_python:
        return Program((first, *rest))
    if line.module:
        return Module(first, tuple(rest))
    return make_script(first, rest, workspace)
