"""Checks the files that shanty keeps on the hosts, after a failure that damage would explain.

Each host compares its MPI and its Python environment with the record from when they were made.
Damage is noted there, so that the next run makes the damaged part again.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Callable, Dict, List, Sequence

from shanty.runtime import rundir, stored_tree
from shanty.runtime.errors import LaunchError, WorldError
from shanty.runtime.messages import CheckStore
from shanty.runtime.plan import Node, Plan
from shanty.runtime.spec import Failure

_PATIENCE = 10.0  # seconds for all hosts together
_READING = 8.0  # for each of them
_SIGNALS = ("SIGSEGV", "SIGBUS", "SIGILL")
_NOT_RUN = (126, 127)  # exit codes of what could not be started, as a shell has them
# How a program ends when a file is missing, empty or cut short.
_WORDS = (
    *("ImportError", "ModuleNotFoundError", "SyntaxError", "OSError", "AttributeError"),
    *("cannot run", "RuntimeError: cannot load MPI library"),
)


def explains(failure: Failure, code: int) -> bool:
    """True where a missing or broken file may be behind a failure."""
    if failure.rank is None:
        return code in (LaunchError.exit_code, WorldError.exit_code, *_NOT_RUN)
    return failure.signal in _SIGNALS or code in _NOT_RUN or failure.why.startswith(_WORDS)


def damaged(paths: Sequence[str]) -> List[str]:
    """Mark the damaged ones of these trees of the store, and return their damaged files."""
    until = time.monotonic() + _READING
    store = os.path.join(rundir.home(os.environ), "store")
    found = []
    for path in paths:
        if os.path.dirname(os.path.dirname(path)) != store:
            continue  # an MPI or an environment of the user's own
        files = stored_tree.damage(path, content=True, until=until)
        if files:
            stored_tree.condemn(path, files)
            found.append(f"{stored_tree.named(files)} of {path}")
    return found


class StoreCheck:
    """One check of all hosts of a run."""

    def __init__(self, plan: Plan, tell_host: Callable[[str, CheckStore], None]) -> None:
        self._until = time.monotonic() + _PATIENCE
        self._found: Dict[str, Sequence[str]] = {}
        self._awaited = {worker.name for worker in plan.workers}
        for worker in plan.workers:
            tell_host(worker.name, CheckStore(tuple(_trees(worker))))
        self.hear(plan.lead.name, damaged(_trees(plan.lead)))

    def hear(self, host: str, found: Sequence[str]) -> None:
        """Take what `damaged` found on a host."""
        self._awaited.discard(host)
        if found:
            self._found[host] = found

    @property
    def over(self) -> bool:
        """True once all hosts have answered, or have had their time."""
        return not self._awaited or time.monotonic() > self._until

    def explained(self, failure: Failure) -> Failure:
        """The failure with what was found."""
        if not self._found:
            return failure
        what = (f"host {host}: damaged: {', '.join(each)}" for host, each in self._found.items())
        return replace(
            failure,
            why="; ".join(filter(None, [*what, failure.why])),
            fix="run it again: damaged files are replaced",
        )


def _trees(node: Node) -> List[str]:
    """Return the trees of a host's store that a run uses."""
    folders = [node.mpi["prefix"], os.path.dirname(os.path.dirname(node.python))]
    return [*folders, node.mpi4py.partition("|")[0]] if node.mpi4py else folders
