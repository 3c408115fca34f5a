"""Server-sent events: written one by one, never ahead of what the client has taken.

`uvicorn` lets a sender wait while the client does not read, and the kernel ends a connection on
which nothing gets through for long (`serving`). So nothing piles up here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from shanty.client.plain import plain
from shanty.dashboard import errors
from shanty.dashboard.errors import Refused

BEAT = 15.0  # seconds without an event after which a comment is sent


def event(name: str, data: Any) -> bytes:
    """Return one event; `data` is JSON, which has no line breaks of its own."""
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a number that JSON lacks
        text = json.dumps(plain(data), separators=(",", ":"))
    return f"event: {name}\ndata: {text}\n\n".encode()


COMMENT = b": still here\n\n"


class EventStream(StreamingResponse):
    """Answers with events until the source ends or the client leaves."""

    media_type = "text/event-stream"

    def __init__(
        self, source: AsyncGenerator[bytes], admission: AbstractContextManager[None]
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(_with_retry(source), headers=headers)
        self._source = source
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events while `admission` is held; the source is closed in any case."""
        try:
            with self._admission:
                await super().__call__(scope, receive, send)
        except Refused as error:
            answer = errors.answer(error.status, error.what, error.why, error.fix)
            await answer(scope, receive, send)
        finally:
            await self._source.aclose()


async def _with_retry(source: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield how soon a client that was cut off asks again, and the events."""
    yield b"retry: 2000\n\n"
    async for piece in source:
        yield piece
