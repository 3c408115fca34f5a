"""Hosts and what they are used for; machine types and the queue for them.

All that the dashboard knows of machines is asked here.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from shanty.client.plain import text, whole
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
from shanty.launch import inventory
from shanty.launch.index import Entry, Runs, read_job
from shanty.launch.machines import queue as queued
from shanty.launch.machines import types as machine_types
from shanty.launch.machines.types import LOCAL
from shanty.launch.options import known
from shanty.launch.options.declared import NODES
from shanty.runtime import platform
from shanty.runtime.errors import ShantyError
from shanty.runtime.plan import read_plan
from shanty.runtime.rundir import RunDir, read_json, storage_errors, write_json
from shanty.runtime.spec import JobSpec

# The fields of JobSpec that a field of the form stands for.
FIELDS: dict[str, tuple[str, ...]] = {
    "machines": ("nodes", "machines"),
    "machine_type": ("machines",),
    "master_type": ("machines",),
    "priority": ("priority",),
}
_HERE = "this-machine"  # the name of what the doctor found here
_ALL = ("machine_type", "master_type", "machines")


def values(form: Form, fields: Collection[str]) -> dict[str, Any]:
    """Return the options of a run that say on which machines, by their names."""
    found: dict[str, Any] = {}
    if form.machine_type and not set(_ALL).isdisjoint(fields):
        master = [(form.master_type, 1)] if form.master_type else []
        found["machines"] = [*master, (form.machine_type, form.machines or 1)]
    elif "machines" in fields:
        found["nodes"] = form.machines
    if "priority" in fields:
        found["priority"] = form.priority or None
    return found


def with_those_of(job: JobSpec, changes: Form) -> Form:
    """Return the changes with what they leave as it is of the job's machine types.

    These are one option of `shanty run`, and several fields of the form.
    """
    given = changes.model_fields_set
    if not job.machines or given.isdisjoint(_ALL):
        return changes
    (kind, count), master = job.machines[-1], job.machines[0][0] if job.machines[1:] else None
    known = {"machine_type": kind, "machines": count, "master_type": master}
    kept = {name: value for name, value in known.items() if name not in given}
    return changes.model_copy(update=kept)


def problems(form: Form, home: Path) -> list[FieldProblem]:
    """Return what is wrong with the fields of the form that are for machines."""
    found: list[FieldProblem] = []

    def say(field: str, what: str, fix: str) -> None:
        found.append(FieldProblem(field=field, what=what, fix=fix))

    for name in ("machine_type", "master_type"):
        value = getattr(form, name)
        if value:
            try:
                machine_types.load(value, home)
            except ShantyError as error:
                say(name, error.what, error.fix)
    target = known.declared((form.on or "").partition(":")[0])
    queue = target is not None and NODES in target.options
    if form.machine_type and form.on:
        say("on", "a machine type says where as well", "leave one of them empty")
    if form.master_type and not form.machine_type:
        say("machine_type", "the master has a type, and the others have none", "name theirs")
    if form.machines is not None and not (queue or form.machine_type):
        queues = [each.title for each in known.BUILTIN if NODES in each.options]
        what = f"a number of machines is for machine types, {' and '.join(queues)}"
        say("machines", what, "name a machine type, or the hosts")
    if form.priority and not form.machine_type:
        say("priority", "a priority is for machine types", "name a machine type")
    return found


def types(home: Path, taken: Collection[str] = ()) -> list[MachineType]:
    """Return the machine types, and how many machines of each are not `taken`."""
    found = []
    for name in machine_types.names(home):
        try:
            kind = machine_types.load(name, home)
            there = kind.machines(home)
        except ShantyError:  # a damaged file, or a group that is gone: `shanty machines` says so
            continue
        known = kind.kind not in machine_types.QUEUES
        free = sum(each not in taken for each in there)
        found.append(
            MachineType(
                name=name, on=kind.on, kind=kind.kind, slots=kind.slots, gpus=kind.gpus,
                total=len(there) if known else None, free=free if known else None,
            )
        )  # fmt: skip
    return found


def queue(runs: Runs, only_of: str | None, account: str) -> list[Waiting]:
    """Return the runs that wait for machines, the next one first."""
    jobs: dict[RunDir, JobSpec] = {}
    for run in runs.on():
        its, job = queued.waiting(run), read_job(run)
        if its is not None and not its.machines and job is not None:
            jobs[run] = job
    ordered = queued.order(jobs)
    entries = {each.id: each for each in runs.known([run.id for run in ordered])}
    found = []
    for place, run in enumerate(ordered, 1):
        entry = entries.get(run.id)
        if entry is None or (only_of is not None and (entry.owner or account) != only_of):
            continue
        needs = ", ".join(f"{count} of {name}" for name, count in jobs[run].machines)
        found.append(
            Waiting(
                id=run.id, name=entry.name, needs=needs, priority=jobs[run].priority, place=place
            )
        )  # fmt: skip
    return found


def groups(home: Path) -> list[str]:
    """Return the names of the groups of hosts."""
    return inventory.names(home)


def machines(home: Path, runs: Runs, only_of: str | None, account: str) -> Machines:
    """Return all hosts that are known, this machine first, and who uses how much of them.

    Runs of others than `only_of` are without their id, if it is set.
    """
    used = _used(runs, only_of, account)
    taken = machine_types.users(runs.on())
    of_types = _types_of(home)
    here = os.uname().nodename
    slots = platform.usable_cores()
    found = [_machine(home, here, None, "localhost", slots, used, of_types.get(LOCAL, []))]
    for group in groups(home):
        try:
            hosts = inventory.load(group, home).hosts
        except ShantyError:  # a damaged file; `shanty hosts` says so
            continue
        for each in hosts:
            kinds = of_types.get(machine_types.key_of(each), [])
            address = each.login + (f":{each.port}" if each.port else "")
            found.append(_machine(home, each.name, group, address, each.slots, used, kinds))
    return Machines(hosts=found, types=types(home, taken), queue=queue(runs, only_of, account))


def _types_of(home: Path) -> dict[str, list[str]]:
    """Return the types of each machine."""
    found: dict[str, list[str]] = {}
    for name in machine_types.names(home):
        with contextlib.suppress(ShantyError):
            for machine in machine_types.load(name, home).machines(home):
                found.setdefault(machine, []).append(name)
    return found


def _machine(
    home: Path,
    name: str,
    group: str | None,
    address: str,
    slots: int | None,
    used: dict[str, list[UsedBy]],
    kinds: list[str],
) -> Machine:
    mine = used.get(name, [])
    free = None if slots is None else max(0, slots - sum(each.slots for each in mine))
    findings, checked = _found(home, group, name)
    return Machine(
        name=name, group=group, address=address, types=kinds, slots=slots, free=free, runs=mine,
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
