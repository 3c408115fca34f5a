"""What is called when a request has ended."""

from __future__ import annotations

from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.request import Kind, Request


def test_it_is_called_once_it_is_done() -> None:
    seen: list[bool] = []
    request = Request(Kind.BARRIER, None)
    request.then = lambda: seen.append(request.done)
    request.finish()
    assert seen == [True]


def test_an_error_is_there_by_then() -> None:
    seen: list[object] = []
    request = Request(Kind.BARRIER, None)
    request.then = lambda: seen.append(request.error)
    error = HorovodInternalError("gone")
    request.finish(error)
    assert seen == [error]
