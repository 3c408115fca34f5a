"""Hosts and what they are used for; machine types and the queue, once there are any.

All that the dashboard knows of machines is asked here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from shanty.dashboard.models import (
    FieldProblem,
    Form,
    HostFinding,
    Machine,
    Machines,
    MachineType,
    UsedBy,
    Waiting,
)
from shanty.dashboard.plain import text, whole
from shanty.launch.cluster import inventory
from shanty.launch.host import Host
from shanty.launch.index import Entry, Runs
from shanty.runtime import platform
from shanty.runtime.errors import ShantyError
from shanty.runtime.plan import read_plan
from shanty.runtime.rundir import read_json, storage_errors, write_json

# The fields of JobSpec that a field of the form stands for.
FIELDS: dict[str, tuple[str, ...]] = {
    "machines": ("nodes",),
    "machine_type": (),
    "master_type": (),
    "priority": (),
}
_HERE = "this-machine"  # the name of what the doctor found here
_QUEUES = ("slurm", "k8s")


def words(form: Form, fields: Collection[str]) -> list[str]:
    """Return the options of `shanty run` that say on which machines."""
    if "machines" in fields and form.machines is not None:
        return ["--nodes", str(form.machines)]
    return []


def problems(form: Form, home: Path) -> list[FieldProblem]:
    """Return what is wrong with the fields of the form that are for machines."""
    found = []
    names = {each.name for each in types(home)}
    for name in ("machine_type", "master_type"):
        value = getattr(form, name)
        if value and value not in names:
            what = f"there is no machine type {value!r}"
            found.append(FieldProblem(field=name, what=what, fix="leave it empty"))
    if form.machines is not None and (form.on or "").partition(":")[0] not in _QUEUES:
        what = "a number of machines is for queues: Slurm or Kubernetes"
        found.append(FieldProblem(field="machines", what=what, fix="name the hosts, or a group"))
    return found


def types(home: Path) -> list[MachineType]:
    """Return the machine types."""
    return []


def queue(home: Path) -> list[Waiting]:
    """Return the runs that wait in line, the next one first."""
    return []


def groups(home: Path) -> list[str]:
    """Return the names of the groups of hosts."""
    return inventory.names(home)


def machines(home: Path, runs: Runs, only_of: str | None, account: str) -> Machines:
    """Return all hosts that are known, this machine first, and who uses how much of them.

    Runs of others than `only_of` are without their id, if it is set.
    """
    used = _used(runs, only_of, account)
    here = os.uname().nodename
    slots = platform.usable_cores()
    found = [_machine(home, here, None, "localhost", slots, used)]
    for group in groups(home):
        try:
            hosts = inventory.load(group, home).hosts
        except ShantyError:  # a damaged file; `shanty hosts` says so
            continue
        found += [_machine(home, each.name, group, _address(each), each.slots, used)
                  for each in hosts]  # fmt: skip
    return Machines(hosts=found, types=types(home), queue=queue(home))


def _address(host: Host) -> str:
    return host.login + (f":{host.port}" if host.port else "")


def _machine(
    home: Path,
    name: str,
    group: str | None,
    address: str,
    slots: int | None,
    used: dict[str, list[UsedBy]],
) -> Machine:
    mine = used.get(name, [])
    free = None if slots is None else max(0, slots - sum(each.slots for each in mine))
    findings, checked = _found(home, group, name)
    return Machine(
        name=name, group=group, address=address, types=[], slots=slots, free=free, runs=mine,
        findings=findings, checked=checked,
    )  # fmt: skip


def _used(runs: Runs, only_of: str | None, account: str) -> dict[str, list[UsedBy]]:
    """Return the runs that are on, by the hosts that they are on."""
    used: dict[str, list[UsedBy]] = {}
    on = runs.on()
    entries: dict[str, Entry] = {each.id: each for each in runs.known([run.id for run in on])}
    for run in on:
        plan, entry = read_plan(run), entries.get(run.id)
        if plan is None or plan.waits or entry is None or entry.status.state.final:
            continue
        mine = only_of is None or (entry.owner or account) == only_of
        for node in plan.attempt.nodes:
            slots = whole(plan.attempt.placement.get(node.name, node.slots)) or 0
            found = UsedBy(id=run.id if mine else None, slots=slots)
            used.setdefault(text(node.name), []).append(found)
    return used


# ------------------------------------------------------------------- what the doctor has found


def keep(home: Path, group: str | None, report: dict[str, Any]) -> tuple[list[HostFinding], float]:
    """Keep what the doctor said of a group, or of this machine."""
    now = time.time()
    path = _file(home, group)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"time": now, "findings": report.get("findings", [])})
    return [_finding(each) for each in report.get("findings", [])], now


def _file(home: Path, group: str | None) -> Path:
    if group is not None:
        inventory.check_name(group)
    return home / "checks" / f"{group or _HERE}.json"


def _found(home: Path, group: str | None, name: str) -> tuple[list[HostFinding], float | None]:
    try:
        values = read_json(_file(home, group)) or {}
    except ShantyError:
        return [], None
    checked, every = values.get("time"), values.get("findings")
    if not isinstance(checked, (int, float)) or not isinstance(every, list):
        return [], None
    mine = [each for each in every if isinstance(each, dict) and each.get("host") in (name, "")]
    return [_finding(each) for each in mine], float(checked)


def _finding(values: dict[str, Any]) -> HostFinding:
    what = str(values.get("what", ""))
    evidence = str(values.get("evidence", ""))
    return HostFinding(
        code=str(values.get("code", "")),
        severity=str(values.get("level", "")),
        what=f"{what} ({evidence})" if evidence else what,
        fix=str(values.get("fix", "")),
    )


def report_of(text: str) -> dict[str, Any] | None:
    """Return the report that `shanty doctor --json` has printed; None for what is none."""
    for line in reversed(text.splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("findings"), list):
            return value
    return None
