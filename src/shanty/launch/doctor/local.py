"""The doctor's part in a run on this machine: two looks at folders, and more only where they call
for it, since such a run starts in less time than all checks take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from shanty.runtime import platform
from shanty.runtime.rpc.capacity import folder
from shanty.runtime.spec import JobSpec

_PLENTY = 64 << 20  # bytes in /dev/shm that a few ranks never need in whole
_CODES = ("tmp-full", "shm-full", "shm-small", "memory-short", "memory-limit")


def look(job: JobSpec, home: Path, environ: Mapping[str, str], warn: Callable[[str], None]) -> None:
    """Say what may trouble a run here, by `warn`; FoundError for what would end it."""
    tmp = folder("/tmp")
    shared = folder(platform.SHARED_MEMORY) if platform.SHARED_MEMORY else {}
    little = shared.get("free", _PLENTY) < _PLENTY
    if not (tmp["error"] or shared.get("error") or little or job.memory_per_rank):
        return
    from shanty.launch.doctor import here, quick

    found = here.findings(job, home, environ, holds_ranks=True)
    quick.tell([each for each in found if each.code in _CODES], warn)
