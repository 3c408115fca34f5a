"""Addresses of runs: the list, its stream, one run, several side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from shanty._version import __version__
from shanty.dashboard.access import Caller, Reader, RunId
from shanty.dashboard.comparison import comparison
from shanty.dashboard.detail import detail, summary
from shanty.dashboard.errors import ANSWERS, BUSY, Refused
from shanty.dashboard.events import BEAT, COMMENT, EventStream, event
from shanty.dashboard.metrics import MetricsCache
from shanty.dashboard.models import Comparison, Detail, Facets, Me, RunList, Tag
from shanty.dashboard.models import State as StateName
from shanty.launch import run_query
from shanty.launch.index import Entry
from shanty.runtime.rundir import RunDir

router = APIRouter(responses=ANSWERS, tags=["runs"])
_MOST_COMPARED = 8
_Words = Annotated[list[Tag], Query(max_length=50)]
_Time = Annotated[float | None, Query(ge=-1e12, le=1e12)]


@router.get("/me")
def me(caller: Reader) -> Me:
    """Return who asks, and of what server."""
    user = caller.user
    return Me(
        name=user.name,
        role=user.role,
        version=__version__,
        home=str(caller.here.home),
        read_only=user.role == "viewer",
    )


@router.get("/runs")
def runs(
    caller: Reader,
    search: Annotated[str, Query(max_length=500)] = "",
    state: Annotated[list[StateName], Query(max_length=20)] = [],  # noqa: B006  FastAPI copies it
    tag: _Words = [],  # noqa: B006
    target: _Words = [],  # noqa: B006
    machine_type: _Words = [],  # noqa: B006
    owner: _Words = [],  # noqa: B006
    since: _Time = None,
    until: _Time = None,
    sort: Literal["created", "name", "state", "took", "ranks"] = "created",
    order: Literal["asc", "desc"] = "desc",
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: Annotated[int, Query(ge=0, le=1000)] = 100,
) -> RunList:
    """List runs. Of one filter's values any will do; of tags and of the words searched, all."""
    query = run_query.Query(
        search=search,
        state=tuple(state),
        tag=tuple(tag),
        target=tuple(target),
        machine_type=tuple(machine_type),
        owner=tuple(owner),
        since=since,
        until=until,
        sort=sort,
        descending=order == "desc",
        offset=offset,
        limit=limit,
        account=caller.here.account,
        only_of=caller.only_of,
    )
    entries, found = caller.here.runs.page(query)
    return RunList(
        total=found.total,
        runs=[summary(entry, caller.here.account) for entry in entries],
        facets=Facets(**found.facets),
    )


@router.get(
    "/runs/stream",
    response_class=Response,
    responses={
        **BUSY,
        200: {
            "description": "Events `run` (a summary) and `gone` (an id), as they come",
            "content": {"text/event-stream": {}},
        },
    },
)
async def stream(caller: Reader) -> EventStream:
    """Send a run whenever it changes or appears; a comment at least every 15 s."""
    return EventStream(_changes(caller), caller.here.stream(caller.user))


async def _changes(caller: Caller) -> AsyncGenerator[bytes]:
    here = caller.here
    subscription = here.hub.subscribe()
    try:
        while not here.closing.is_set() and not subscription.overflown:
            pending = subscription.take()
            for run_id, entry in pending.items():
                if entry is None:
                    yield event("gone", {"id": run_id})
                elif caller.user.sees(entry.owner or here.account):
                    yield event("run", summary(entry, here.account).model_dump())
            try:
                await asyncio.wait_for(subscription.ready.wait(), BEAT)
            except TimeoutError:
                yield COMMENT
    finally:
        here.hub.unsubscribe(subscription)


@router.get("/runs/{run_id}")
def run(caller: Reader, run_id: RunId, request: Request) -> Detail:
    """Return all that is known of a run."""
    found = caller.run(run_id)
    names = metrics_of(request).of(found.metrics).names()
    return detail(entry_of(caller, found), found, caller.here.account, names)


@router.get("/compare")
def compare(
    caller: Reader,
    request: Request,
    run: Annotated[list[Tag], Query(min_length=1, max_length=_MOST_COMPARED)],
) -> Comparison:
    """Put up to 8 runs side by side."""
    found = [caller.run(run_id) for run_id in run]
    if len({each.id for each in found}) < len(found):
        raise Refused(422, "a run is there twice", fix="name each run once")
    entries = [entry_of(caller, each) for each in found]
    metrics = [metrics_of(request).of(each.metrics) for each in found]
    return comparison([summary(each, caller.here.account) for each in entries], found, metrics)


def entry_of(caller: Caller, run: RunDir) -> Entry:
    """Return where a run stands: as the watcher knows it, or as its directory says."""
    known = caller.here.runs.known([run.id])
    return known[0] if known else caller.here.runs.reread([run])[0]


def metrics_of(request: Request) -> MetricsCache:
    """Return the metrics of runs, as far as they have been read."""
    cache: MetricsCache = request.app.state.metrics
    return cache
