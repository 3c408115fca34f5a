"""Machine types as they are kept: one file each, `<home>/machines/NAME.json`.

{"on": "gpu[1-8]", "slots": 4, "gpus": 1, "options": {}}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from shanty.launch.cluster import inventory
from shanty.launch.host import Host
from shanty.runtime.errors import NotFoundError, StorageError, UsageError
from shanty.runtime.rundir import read_json, storage_errors, write_json
from shanty.runtime.spec import JobSpec
from shanty.runtime.unknown import nearest, place

Kind = Literal["local", "hosts", "slurm", "k8s"]
LOCAL = "local"  # this machine
QUEUES = ("slurm", "k8s")  # which have a queue of their own
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


@dataclass(frozen=True, slots=True)
class MachineType:
    """Where machines of a type are, and what each of them has.

    `on`: hosts and groups as for `--on`, with ranges as in `gpu[1-8]`; or `local`, `slurm…`,
    `k8s…`. `slots` of each host; None: as it has. `gpus` that each has to have. `options`: fields
    of JobSpec, for Slurm and Kubernetes.
    """

    name: str
    on: str
    slots: int | None = None
    gpus: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """Who has the machines: this is the one, hosts are, or a queue gives them."""
        named: dict[str, Kind] = {"local": "local", "slurm": "slurm", "k8s": "k8s"}
        return named.get(self.on.partition(":")[0], "hosts")

    def hosts(self, home: Path) -> tuple[Host, ...]:
        """Return the machines, as hosts; none where a queue gives them.

        UsageError or NotFoundError where `on` names none.
        """
        if self.kind in QUEUES:
            return ()
        if self.kind == LOCAL:
            return (Host(LOCAL),)
        hosts = inventory.resolve(self.on, home)
        return tuple(replace(each, slots=self.slots or each.slots) for each in hosts)

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
        plain = JobSpec(job.command)
        typed = {key for key in own if getattr(job, key) != getattr(plain, key)}
        return replace(job, **{key: value for key, value in own.items() if key not in typed})

    def to_json(self) -> dict[str, Any]:
        """Return the type's file."""
        return {
            "on": self.on,
            "slots": self.slots,
            "gpus": self.gpus,
            "options": dict(self.options),
        }


def key_of(host: Host) -> str:
    """Return the name of a machine, which is the same in all types that have it."""
    return inventory.written(replace(host, slots=None))


def names(home: Path) -> list[str]:
    """Return the names of all types."""
    return sorted(p.stem for p in (home / "machines").glob("*.json") if _NAME.fullmatch(p.stem))


def load(name: str, home: Path) -> MachineType:
    """Return the type of that name; NotFoundError when there is none, StorageError if damaged."""
    path = home / "machines" / f"{name}.json"
    if not _NAME.fullmatch(name) or not path.is_file():
        raise unknown(name, home)
    value = read_json(path) or {}
    unknown_keys = value.keys() - {"on", "slots", "gpus", "options"}
    if unknown_keys:
        key = min(unknown_keys)
        where = place(path, path.read_text(encoding="utf-8"), key)
        raise UsageError(
            f"{where}: unknown key {key!r}", fix=nearest(key, ("on", "slots", "gpus", "options"))
        )
    try:
        return MachineType(
            name, str(value["on"]), value.get("slots"), value.get("gpus"), value.get("options", {})
        )
    except KeyError as error:
        fix = f"shanty machines remove {name}, and add it anew"
        raise StorageError(f"{path} is damaged", f"it has no {error}", fix) from error


def unknown(name: str, home: Path) -> NotFoundError:
    """Return the error for a type that there is not, with what to do about it."""
    known = names(home)
    if not known:
        return NotFoundError(
            f"there is no machine type {name!r}",
            "no machine types are known yet: each is a name for machines of your own",
            f"this machine: shanty machines add {name} --on local; "
            f"others: shanty machines add {name} --on ann@10.0.0.2,ann@10.0.0.3",
        )
    near = get_close_matches(name, known, 1)
    return NotFoundError(
        f"there is no machine type {name!r}",
        f"known are {', '.join(known)}",
        f"did you mean {near[0]}?" if near else f"shanty machines add {name} --on HOSTS",
    )


def save(kind: MachineType, home: Path) -> None:
    """Keep a type, in place of one of the same name. UsageError for a name that none may have."""
    if not _NAME.fullmatch(kind.name):
        raise UsageError(
            f"{kind.name!r} is no name for a machine type",
            "it has letters, digits, '.', '_', '+' and '-' only, at most 64",
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
