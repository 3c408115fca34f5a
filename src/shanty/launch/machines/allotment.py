"""Who gets which machines: first come, first served, higher priorities before. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from shanty.runtime.spec import JobSpec


def allot(
    waiting: Mapping[str, JobSpec],
    types: Mapping[str, Collection[str]],
    taken: Mapping[str, bool],
) -> dict[str, tuple[str, ...]]:
    """Return the machines of each run that gets all that it wants, in the order of its types.

    `waiting` has the jobs of the runs, in the order of the queue: machines of types that one of
    them waits for go to no later one. `types` has the machines of each type, `taken` those with a
    run on them, and whether all of these share.
    """
    found: dict[str, tuple[str, ...]] = {}
    shared = {machine for machine, share in taken.items() if share}
    held, kept = set(taken) - shared, set[str]()
    for run, job in waiting.items():
        barred = held | kept if job.share else held | shared | kept
        free = {
            name: [machine for machine in types.get(name, ()) if machine not in barred]
            for name, _ in job.machines
        }
        chosen = fitting(job.machines, free)
        if chosen is None:
            kept.update(*(types.get(name, ()) for name, _ in job.machines))
            continue
        found[run] = chosen
        (shared if job.share else held).update(chosen)
    return found


def fitting(
    wanted: Sequence[tuple[str, int]], free: Mapping[str, Sequence[str]]
) -> tuple[str, ...] | None:
    """Return a machine for each that is wanted, none twice; None where that cannot be.

    A machine may be of several types: this is a matching, found by augmenting paths.
    """
    places = [name for name, count in wanted for _ in range(count)]
    owner: dict[str, int] = {}

    def find(place: int, seen: set[str]) -> bool:
        candidates = free[places[place]]
        for machine in sorted(candidates, key=lambda one: one in owner):  # free machines first
            if machine not in seen:
                seen.add(machine)
                if machine not in owner or find(owner[machine], seen):
                    owner[machine] = place
                    return True
        return False

    if not all(find(place, set()) for place in range(len(places))):
        return None
    found: list[str] = []
    for name, count in wanted:
        its = range(len(found), len(found) + count)
        found += [machine for machine in free[name] if owner.get(machine) in its]
    return tuple(found)
