"""Addresses of logs: a window, a search, the whole as text, and what is written now."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response, StreamingResponse

from shanty.dashboard import live, log_search, logs
from shanty.dashboard.access import Reader, RunId
from shanty.dashboard.api_runs import metrics_of
from shanty.dashboard.downloads import SANDBOX
from shanty.dashboard.errors import ANSWERS, BUSY, Refused
from shanty.dashboard.events import EventStream
from shanty.dashboard.models import DownloadAddress, LogMatches, LogWindow

router = APIRouter(prefix="/runs/{run_id}", responses=ANSWERS, tags=["logs"])
Rank = Annotated[
    str, Path(description="A number, `launcher` or `agent`.", min_length=1, max_length=16)
]
Attempt = Annotated[int | None, Query(ge=1, le=1_000_000, description="The newest by default.")]


@router.get("/logs/{rank}")
def window(
    caller: Reader,
    run_id: RunId,
    rank: Rank,
    attempt: Attempt = None,
    at: Annotated[str, Query(pattern="^(end|[0-9]{1,16})$")] = "end",
    direction: Literal["forward", "back"] | None = None,
    bytes: Annotated[int, Query(ge=256, le=logs.LARGEST)] = 65536,
    stream: Literal["", "stdout", "stderr"] = "",
) -> LogWindow:
    """Return the lines in a window of bytes.

    `at` is an offset, or `end`; from there it goes back by default, else forward.
    """
    run = logs.attempt_of(caller.run(run_id), attempt)
    back = direction == "back" or (direction is None and at == "end")
    start = None if at == "end" else int(at)
    found = logs.window(logs.log_of(run, rank), start, back=back, length=bytes)
    found.rank = int(rank) if rank.isdigit() else rank
    found.attempt = 1 if run.of_attempt == run.path else int(run.of_attempt.name)
    if stream:
        found.lines = [line for line in found.lines if line.stream == stream]
    return found


@router.get("/logs/{rank}/search", responses=BUSY)
def search(
    caller: Reader,
    run_id: RunId,
    rank: Rank,
    q: Annotated[str, Query(min_length=1, max_length=log_search.LONGEST_PATTERN)],
    attempt: Attempt = None,
    start: Annotated[int, Query(alias="from", ge=0, le=1 << 53)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    regex: bool = False,
    case: bool = False,
) -> LogMatches:
    """Search some MiB of a log; `next` is where to go on."""
    run = logs.attempt_of(caller.run(run_id), attempt)
    path = logs.log_of(run, rank)
    begin = logs.next_line(path, start)
    found = log_search.search(path, q, start=begin, limit=limit, regex=regex, case=case)
    return LogMatches(**found)


@router.get(
    "/logs/{rank}/download",
    response_class=Response,
    responses={200: {"description": "The text", "content": {"text/plain": {}}}},
)
def download(caller: Reader, run_id: RunId, rank: Rank, attempt: Attempt = None) -> Response:
    """Return all that was written, as it was written."""
    run = logs.attempt_of(caller.run(run_id), attempt)
    path = logs.log_of(run, rank)
    name = f"{run_id}-{'rank-' if rank.isdigit() else ''}{rank}.txt"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', **SANDBOX}
    return StreamingResponse(logs.plain_text(path), media_type="text/plain", headers=headers)


@router.post("/logs/{rank}/download", responses=BUSY)
def download_address(
    caller: Reader, run_id: RunId, rank: Rank, attempt: Attempt = None
) -> DownloadAddress:
    """Return an address that serves the text once, within a minute, without a token."""
    return caller.offer(lambda: download(caller, run_id, rank, attempt))


@router.get(
    "/stream",
    response_class=Response,
    responses={
        **BUSY,
        200: {
            "description": "Events `log`, `behind`, `status`, `metrics`, `progress`, as they come",
            "content": {"text/event-stream": {}},
        },
    },
)
def stream(
    caller: Reader,
    run_id: RunId,
    request: Request,
    ranks: Annotated[str, Query(max_length=1000, description="As in 0,1,launcher.")] = "",
    start: Annotated[
        str, Query(alias="from", max_length=4000, description="RANK:OFFSET,…; else the end.")
    ] = "",
) -> EventStream:
    """Send what the logs get, and what changes of the run.

    `behind` with a rank and its log's size comes where more was written than is sent; the last
    lines come after it.
    """
    run = caller.run(run_id)
    names = list(dict.fromkeys(filter(None, ranks.split(","))))
    if len(names) > live.MOST_LOGS:
        raise Refused(422, f"{len(names)} logs are too many for one stream", f"{live.MOST_LOGS}")
    for name in names:
        logs.log_of(run, name)
    offsets: dict[str, int] = {}
    for part in filter(None, start.split(",")):
        name, _, number = part.rpartition(":")
        if not (number.isascii() and number.isdigit()) or len(number) > 16:
            raise Refused(422, f"{part[:40]!r} is not RANK:OFFSET")
        offsets[name] = int(number)
    tail = live.Tail(run, names, offsets)
    source = live.events(caller, run, tail, metrics_of(request))
    return EventStream(source, caller.here.stream(caller.user))
