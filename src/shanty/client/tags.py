"""Changes the tags of a run that is there."""

from __future__ import annotations

from collections.abc import Collection

from shanty.launch.index import Runs
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.rundir import RunDir, read_json, storage_errors, write_json

_MOST = 200  # tags of a run


def retag(
    runs: Runs, run: RunDir, add: Collection[str] = (), remove: Collection[str] = ()
) -> tuple[str, ...]:
    """Put tags on a run and take some off; returns those that it has then.

    NotFoundError where its job is not known, UsageError for a tag to take off that it has not, and
    for too many.
    """
    values = read_json(run.job)
    if values is None:
        raise NotFoundError(f"{run.job} is missing or damaged, so it takes no tags")
    given = values.get("tags")
    known = [str(tag) for tag in given] if isinstance(given, list) else []
    missing = [tag for tag in remove if tag not in known]
    if missing:
        raise UsageError(
            f"run {run.id} has no tag {missing[0]}",
            fix="it has " + (", ".join(known) or "none"),
        )
    tags = tuple(dict.fromkeys([*(tag for tag in known if tag not in remove), *add]))
    if len(tags) > _MOST:
        raise UsageError(f"a run has {_MOST} tags at most", fix="take some off first")
    with storage_errors(run.job):
        write_json(run.job, {**values, "tags": list(tags)})
    runs.forget(run)
    return tags
