"""Machine types as they are kept, one file each, and which machines have runs on them.

`<home>/machines/NAME.json`:

{"on": "gpu[1-8]", "slots": 4, "gpus": 1, "options": {}}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shanty.launch import inventory
from shanty.launch.options.known import BUILTIN
from shanty.runtime import site
from shanty.runtime.errors import NotFoundError, StorageError, UsageError
from shanty.runtime.rundir import RunDir, read_json, storage_errors, write_json
from shanty.runtime.site import Host
from shanty.runtime.spec import JobSpec
from shanty.runtime.suggestions import nearest, place

LOCAL = "local"  # this machine
QUEUES = tuple(each.scheme for each in BUILTIN if each.of_machines)  # they give machines
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


@dataclass(frozen=True, slots=True)
class MachineType:
    """Where machines of a type are, and what each of them has.

    `on`: hosts and groups as for `--on`, with ranges as in `gpu[1-8]`; or `local`, or a
    queue (`QUEUES`). `slots` of each host; None: as it has. `gpus` that each has to have.
    `options`: values of a job for its queue, by their names.
    """

    name: str
    on: str
    slots: int | None = None
    gpus: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Who has the machines: `local`, this one; `hosts`; or the name of a queue."""
        name = self.on.partition(":")[0]
        return name if name in (LOCAL, *QUEUES) else "hosts"

    def hosts(self, home: Path) -> tuple[Host, ...]:
        """Return the machines, as hosts; none where a queue gives them.

        UsageError or NotFoundError where `on` names none.
        """
        if self.kind in QUEUES:
            return ()
        if self.kind == LOCAL:
            return (Host(LOCAL),)
        hosts = inventory.resolve(self.on, home)
        return tuple(each._replace(slots=self.slots or each.slots) for each in hosts)

    def machines(self, home: Path) -> dict[str, str]:
        """Return the machines as `--on` takes them, each by the name that is its own."""
        return {key_of(host): inventory.written(host) for host in self.hosts(home)}

    def applied(self, job: JobSpec, count: int) -> JobSpec:
        """Return the job as it goes to the queue that has machines of this type."""
        own = {"on": self.on, "nodes": count, **self.options}
        if self.slots is not None and job.ranks is None and job.ranks_per_host is None:
            own["ranks_per_host"] = self.slots
        if self.gpus and job.gpus_per_rank is None:
            own["gpus_per_rank"] = max(1, self.gpus // (self.slots or self.gpus))
        return job.defaulting(own)

    def to_json(self) -> dict[str, Any]:
        """Return the type's file."""
        values = asdict(self)
        del values["name"]
        return values


def key_of(host: Host) -> str:
    """Return the name of a machine, which is the same in all types that have it."""
    return inventory.written(host._replace(slots=None))


def names(home: Path) -> list[str]:
    """Return the names of all types."""
    return sorted(p.stem for p in (home / "machines").glob("*.json") if _NAME.fullmatch(p.stem))


def load(name: str, home: Path) -> MachineType:
    """Return the type of that name; NotFoundError when there is none, StorageError if damaged."""
    path = home / "machines" / f"{name}.json"
    if not _NAME.fullmatch(name) or not path.is_file():
        raise unknown(name, home)
    value, known = read_json(path) or {}, ("on", "slots", "gpus", "options")
    for key in sorted(value.keys() - set(known)):
        where = place(path, path.read_text(encoding="utf-8"), key)
        raise UsageError(f"{where}: unknown key {key!r}", fix=nearest(key, known))
    if "on" not in value:
        fix = f"shanty machines rm {name}, and add it again"
        raise StorageError(f"{path} is damaged", "it does not say where the machines are", fix)
    return MachineType(name, **value)


def unknown(name: str, home: Path) -> NotFoundError:
    """Return the error for a type that does not exist, with what to do about it."""
    known = names(home)
    if not known:
        return NotFoundError(
            f"machine type {name!r} not found",
            "no machine types are known yet: each is a name for machines of your own",
            f"this machine: shanty machines add {name} --on local; "
            f"others: shanty machines add {name} --on ann@10.0.0.2,ann@10.0.0.3",
        )
    return NotFoundError(
        f"machine type {name!r} not found",
        f"known are {', '.join(known)}",
        nearest(name, known, f"shanty machines add {name} --on HOSTS"),
    )


def save(kind: MachineType, home: Path) -> None:
    """Keep a type, in place of one of the same name. UsageError for an invalid name."""
    if not _NAME.fullmatch(kind.name):
        raise UsageError(
            f"invalid name for a machine type: {kind.name!r}",
            "up to 64 letters, digits, '.', '_', '+' and '-' are allowed, first a letter or digit",
        )
    path = home / "machines" / f"{kind.name}.json"
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, kind.to_json())


def remove(name: str, home: Path) -> None:
    """Forget a type. NotFoundError when there is none."""
    path = home / "machines" / f"{name}.json"
    if not _NAME.fullmatch(name) or not path.exists():
        raise unknown(name, home)
    with storage_errors(path):
        path.unlink(missing_ok=True)


def machines_of(run: RunDir) -> tuple[str, ...]:
    """Return the machines that a run is on, or is to be on: hosts by ssh, or this machine."""
    where = site.read(run)
    if where is None:
        return (LOCAL,)
    if where.machines is not None:
        return where.machines
    if where.target != "ssh":
        return ()  # it waits, or a queue has given its hosts
    return tuple(map(key_of, where.hosts))


def users(runs: Iterable[RunDir]) -> dict[str, list[str]]:
    """Return the ids of the runs on each machine that has any; `runs` are those that are on."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for machine in machines_of(run):
            found.setdefault(machine, []).append(run.id)
    return found
