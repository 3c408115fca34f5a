"""Puts the application together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from shanty._version import __version__
from shanty.dashboard import (
    api_actions,
    api_data,
    api_logs,
    api_machines,
    api_runs,
    errors,
    static,
)
from shanty.dashboard.access import Reader
from shanty.dashboard.metrics import MetricsCache
from shanty.dashboard.state import Dashboard
from shanty.dashboard.watch import Watcher
from shanty.launch.index import Changes, Runs

PREFIX = "/api/v1"
_ABOUT = """Runs of shanty: list, follow, stop and start them.

Send `Authorization: Bearer TOKEN`; what changes something needs the header `X-Shanty: 1`, too.
Times are seconds since 1970, sizes are bytes. Errors are `{"error": {"what", "why", "fix"}}`.
"""


def application(here: Dashboard) -> FastAPI:
    """Return the application over a server's state; it watches the runs while it is up."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()

        def tell(changes: Changes) -> None:
            try:
                loop.call_soon_threadsafe(here.hub.publish, changes)
            except RuntimeError:  # the loop has ended
                return

        watcher = Watcher(lambda: Runs(here.home, here.targets()), tell)
        watcher.start()
        try:
            yield
        finally:
            watcher.stop()

    app = FastAPI(
        title="shanty",
        version=__version__,
        description=_ABOUT,
        openapi_url=None,  # with a token only; and pages of it would come from a CDN
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.dashboard = here
    app.state.metrics = MetricsCache()
    errors.install(app)
    for each in (api_runs, api_logs, api_data, api_actions, api_machines):
        app.include_router(each.router, prefix=PREFIX)

    @app.get(f"{PREFIX}/openapi.json", include_in_schema=False)
    def openapi(_caller: Reader, _request: Request) -> JSONResponse:
        return JSONResponse(app.openapi())

    app.include_router(static.router)
    return app
