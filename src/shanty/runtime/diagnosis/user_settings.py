"""Names the settings of MPIs that are not shanty's own, where no rank joined the world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, Set, Tuple

from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.parameters import settings
from shanty.runtime.plan import Plan
from shanty.runtime.spec import Failure

_MOST = 5  # settings that are named
_PARAMETERS = "OMPI_MCA_"  # they may stand in files, too


def with_settings(
    failure: Failure,
    plan: Plan,
    asked: Mapping[str, str],
    environ: Mapping[str, str],
    there: Mapping[str, str],
) -> Failure:
    """Add to a failure in MPI_Init the user's settings of the run's MPI.

    `asked` are the variables of the job, `environ` those of the lead host, and `there` those that
    the host of the rank to blame had before the run. Settings of the system's administrator apply
    to every run, so they are left out.
    """
    ours = _pairs(plan.to_json()) - set(asked.items())
    own = FLAVOURS[plan.lead.mpi["flavour"]].setting_prefixes
    every = {prefix for each in FLAVOURS.values() for prefix in each.setting_prefixes}
    others = tuple(every.difference(own))
    found = []
    for name, value, place in sorted(
        settings({**environ, **there, **asked}), key=lambda each: each[2]
    ):
        if place.startswith("/etc/") or (not place and (name, value) in ours):
            continue
        known = _PARAMETERS in own if place else not name.startswith(others)
        if known and f"{name}={value}" not in failure.why:
            before = there.get(name) == value and name not in asked
            origin = f"set on {failure.host}, as by a login file" if before else ""
            origin = f"in {place}" if place else origin
            found.append(f"{name}={value}" + (f" ({origin})" if origin else ""))
    if not found:
        return failure
    named = ", ".join(found[:_MOST]) + (", …" if len(found) > _MOST else "")
    why = f"MPI's world was not joined, and these settings are not shanty's: {named}"
    return replace(
        failure,
        why=f"{failure.why}; {why}" if failure.why else why,
        fix=failure.fix or "see whether these settings are right, or unset them",
    )


def _pairs(value: Any) -> Set[Tuple[str, str]]:
    """Return all names with a text for a value, at any depth."""
    found: Set[Tuple[str, str]] = set()
    if isinstance(value, dict):
        found |= {(key, text) for key, text in value.items() if isinstance(text, str)}
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            found |= _pairs(each)
    return found
