"""Server-sent events: written one by one, never ahead of what the client has taken.

`uvicorn` lets a sender wait while the client does not read, and the kernel ends a connection on
which nothing gets through for long (`serving`). So nothing piles up here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shanty.dashboard import errors
from shanty.dashboard.errors import Refused
from shanty.dashboard.plain import plain

BEAT = 15.0  # seconds without an event after which a comment is sent


def event(name: str, data: Any) -> bytes:
    """Return one event; `data` is JSON, which has no line breaks of its own."""
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a number that JSON lacks
        text = json.dumps(plain(data), separators=(",", ":"))
    return f"event: {name}\ndata: {text}\n\n".encode()


COMMENT = b": still here\n\n"


class EventStream(Response):
    """Answers with events until the source ends or the client leaves."""

    media_type = "text/event-stream"

    def __init__(
        self, source: AsyncIterator[bytes], admission: AbstractContextManager[None]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._source = source
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events while `admission` is held; the source is closed in any case."""
        try:
            with self._admission:
                await self._serve(receive, send)
        except Refused as error:
            answer = errors.answer(error.status, error.what, error.why, error.fix)
            await answer(scope, receive, send)

    async def _serve(self, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        sending = asyncio.ensure_future(self._send(start, send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, leaving):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await task
            close = getattr(self._source, "aclose", None)
            if close is not None:
                await close()

    async def _send(self, start: dict[str, Any], send: Send) -> None:
        await send(start)
        await send({"type": "http.response.body", "body": b"retry: 2000\n\n", "more_body": True})
        async for piece in self._source:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
