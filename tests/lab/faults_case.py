"""What a planted fault is; the modules `faults_*` put theirs into a table of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from faults_world import Plant, World


@dataclass(frozen=True)
class Fault:
    """One row: what is broken, and what doctor has to say of it.

    `host` is the finding's, several where each of them has one; "" is the machine at which the
    command is typed.
    """

    name: str
    title: str
    code: str
    hosts: tuple[str, ...]
    plant: Plant
    level: str = "error"
    drops: bool = False  # packets vanish, so that somebody has to wait
    lab: str = "plain"  # which lab it needs: plain, or two (networks)
    on: str = "{lab}"  # the hosts: words for --on
    words: tuple[str, ...] = ()  # further options, of `doctor` and `run` alike
    runs: bool = False  # `shanty run` is tried as well, and ends with the same finding
    bare_words: tuple[str, ...] = ()  # further options for a bare mpirun
    bare: str = ""  # in place of a measurement, where a bare mpirun has no such case

    @property
    def bound(self) -> float:
        """Seconds that doctor may take."""
        return 20.0 if self.drops else 10.0


Planter = Callable[[World], Iterator[None]]


def table(found: list[Fault]) -> Callable[..., Callable[[Planter], Planter]]:
    """A decorator that makes faults of functions and appends them to `found`."""

    def fault(title: str, code: str, *hosts: str, **more: object) -> Callable[[Planter], Planter]:
        def add(function: Planter) -> Planter:
            name = function.__name__.replace("_", "-")
            plant = contextmanager(function)
            found.append(Fault(name, title, code, hosts, plant, **more))  # type: ignore[arg-type]
            return function

        return add

    return fault
