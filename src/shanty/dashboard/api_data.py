"""Addresses of what a run has left beside its logs: metrics, resources, artifacts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from shanty.client.plain import text
from shanty.dashboard import artifacts
from shanty.dashboard.access import Reader, RunId
from shanty.dashboard.api_runs import metrics_of
from shanty.dashboard.downloads import SANDBOX
from shanty.dashboard.errors import ANSWERS, BUSY, Refused
from shanty.dashboard.models import (
    Artifacts,
    DownloadAddress,
    Metrics,
    Preview,
    Resources,
)
from shanty.launch import resources as of_hosts

router = APIRouter(prefix="/runs/{run_id}", responses=ANSWERS, tags=["data"])
Within = Annotated[str, Query(max_length=4096, description="Below the run's artifacts.")]
_CHUNK = 128 << 10
_IMAGES = sorted(set(artifacts.IMAGES.values()))


@router.get("/metrics")
def metrics(
    caller: Reader,
    run_id: RunId,
    request: Request,
    names: Annotated[str, Query(max_length=8000, description="As in loss,accuracy.")] = "",
    points: Annotated[int, Query(ge=2, le=4000)] = 1000,
) -> Metrics:
    """Return series of metrics, with the least and the greatest of what is left out."""
    run = caller.run(run_id)
    wanted = [name for name in names.split(",") if name]
    return Metrics(series=metrics_of(request).of(run.metrics).thinned(wanted, points))


@router.get("/resources")
def resources(
    caller: Reader, run_id: RunId, points: Annotated[int, Query(ge=2, le=4000)] = 500
) -> Resources:
    """Return what the hosts had in use over time."""
    found = of_hosts.read(caller.run(run_id), points)
    return Resources(hosts={text(name): series for name, series in found.items()})


@router.get("/artifacts")
def listing(caller: Reader, run_id: RunId, path: Within = "") -> Artifacts:
    """List a folder of what the run has saved."""
    return artifacts.entries(caller.run(run_id).artifacts, path)


@router.get(
    "/artifacts/raw",
    response_class=Response,
    responses={
        200: {
            "description": "The file",
            "content": {kind: {} for kind in ("application/octet-stream", *_IMAGES)},
        }
    },
)
def raw(caller: Reader, run_id: RunId, path: Within, inline: bool = False) -> Response:
    """Return a file: to be saved, or, of images only, to be shown."""
    run = caller.run(run_id)
    name = path.rpartition("/")[2]
    image = artifacts.IMAGES.get(PurePosixPath(name.lower()).suffix)
    if inline and image is None:
        raise Refused(422, "only images are shown", "png, jpeg, gif and webp", "download it")
    with artifacts.opened_file(run.artifacts, path):
        pass  # what is not there is said before anything is sent
    kind = "inline" if inline else "attachment"
    headers = {"Content-Disposition": f"{kind}; filename*=UTF-8''{quote(name)}", **SANDBOX}
    media = image if inline else "application/octet-stream"
    return StreamingResponse(_pieces(run.artifacts, path), media_type=media, headers=headers)


@router.post("/artifacts/raw", responses=BUSY)
def raw_address(caller: Reader, run_id: RunId, path: Within) -> DownloadAddress:
    """Return an address that serves the file once, within a minute, without a token."""
    return caller.offer(lambda: raw(caller, run_id, path))


def _pieces(folder: Path, path: str) -> Iterator[bytes]:
    with artifacts.opened_file(folder, path) as (file, size):
        at = 0
        while at < size and (data := os.pread(file, min(_CHUNK, size - at), at)):
            yield data
            at += len(data)


@router.get("/artifacts/preview")
def preview(
    caller: Reader,
    run_id: RunId,
    path: Within,
    offset: Annotated[int, Query(ge=0, le=1 << 53)] = 0,
) -> Preview:
    """Return a part of a file to look at: 256 KiB of text, or 200 rows of a table."""
    return artifacts.preview(caller.run(run_id).artifacts, path, offset)
