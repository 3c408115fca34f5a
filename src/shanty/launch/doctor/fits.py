"""Whether what a job asked for each of its ranks is there, on this machine."""

from __future__ import annotations

from shanty.launch.doctor import quick
from shanty.launch.doctor.facts import Need, Seen
from shanty.launch.doctor.hosts import of_capacity
from shanty.launch.doctor.needs import HERE
from shanty.launch.finding import Level
from shanty.runtime import platform
from shanty.runtime.rpc import capacity, survey
from shanty.runtime.spec import JobSpec


def here(job: JobSpec, ranks: int) -> None:
    """PrepareError when `ranks` with their memory and GPUs do not fit on this machine."""
    facts = {
        "memory": survey.memory(),
        "gpus": survey.gpus() if job.gpus_per_rank else [],
        "cores": platform.usable_cores(),
        "machine_cores": platform.usable_cores(),
        "room": {"available": capacity.available()},
    }
    need = Need({"": ranks}, job.memory_per_rank or 0, job.gpus_per_rank or 0, oversubscribe=True)
    found = of_capacity(Seen(HERE, facts, {}), need)
    errors = [each for each in found if each.level is Level.ERROR]
    if errors:
        raise quick.refused(errors)
