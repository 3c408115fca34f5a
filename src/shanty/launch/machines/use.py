"""Which machines have runs on them."""

from __future__ import annotations

from collections.abc import Iterable

from shanty.launch.host import Host
from shanty.launch.machines.types import LOCAL, key_of
from shanty.runtime.rundir import RunDir, read_json


def machines_of(run: RunDir) -> tuple[str, ...]:
    """Return the machines that a run is on, or is to be on: hosts by ssh, or this machine."""
    site = read_json(run.site)
    if site is None:
        return () if run.site.exists() else (LOCAL,)
    if "machines" in site:
        return tuple(site["machines"])
    if site.get("target", "ssh") != "ssh":
        return ()  # it waits, or a queue has given its hosts
    return tuple(key_of(Host(**host)) for host in site.get("hosts", ()))


def users(runs: Iterable[RunDir]) -> dict[str, list[str]]:
    """Return the ids of the runs on each machine that has any; `runs` are those that are on."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for machine in machines_of(run):
            found.setdefault(machine, []).append(run.id)
    return found
