"""Turns errors into answers: `{"error": {"what", "why", "fix"}}` with a status of HTTP."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from shanty.dashboard.models import Failed
from shanty.runtime.errors import (
    LostError,
    NotFoundError,
    ShantyError,
    StorageError,
    UsageError,
)

_STATUS: tuple[tuple[type[ShantyError], int], ...] = (
    (NotFoundError, 404),
    (UsageError, 422),
    (LostError, 409),
    (StorageError, 507),
)
_WORDS = {
    400: ("the body is no JSON", "send what the description of the API says"),
    404: ("there is no such page", "check the address"),
    405: ("this cannot be done at that address", "see /api/v1/openapi.json"),
}
# What every address may answer beside its own.
ANSWERS: dict[int | str, dict[str, Any]] = {
    400: {"model": Failed, "description": "No JSON, or no HTTP"},
    401: {"model": Failed, "description": "No token, or one that is not known"},
    403: {"model": Failed, "description": "Not allowed"},
    404: {"model": Failed, "description": "Not there, or not yours to see"},
    409: {"model": Failed, "description": "Not as things stand now"},
    413: {"model": Failed, "description": "Too large a body"},
    414: {"model": Failed, "description": "Too long an address"},
    421: {"model": Failed, "description": "For another name than this server's"},
    422: {"model": Failed, "description": "What was asked for makes no sense"},
    431: {"model": Failed, "description": "Too large headers"},
}
# What an address answers beside that where a run is started or asked.
STARTING: dict[int | str, dict[str, Any]] = {
    **ANSWERS,
    424: {"model": Failed, "description": "The run could not be started, or does not answer"},
    507: {"model": Failed, "description": "Something cannot be written"},
}
BUSY: dict[int | str, dict[str, Any]] = {
    **ANSWERS,
    429: {"model": Failed, "description": "Too many at a time"},
}


class Refused(Exception):  # noqa: N818  an answer, no fault
    """An answer that says no, with its status of HTTP."""

    def __init__(self, status: int, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.status = status
        self.what = what
        self.why = why
        self.fix = fix


def answer(
    status: int, what: str, why: str = "", fix: str = "", headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return the answer that says so."""
    content = {"error": {"what": what, "why": why, "fix": fix}}
    return JSONResponse(content, status, headers)


def install(app: FastAPI) -> None:
    """Let the application answer all errors that way."""

    @app.exception_handler(Refused)
    async def refused(_request: Request, error: Refused) -> JSONResponse:
        headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
        return answer(error.status, error.what, error.why, error.fix, headers)

    @app.exception_handler(ShantyError)
    async def known(_request: Request, error: ShantyError) -> JSONResponse:
        status = next((number for kind, number in _STATUS if isinstance(error, kind)), 424)
        return answer(status, error.what, error.why, error.fix)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        found = [f"{_place(each['loc'])}: {each['msg']}" for each in error.errors()[:5]]
        return answer(422, "the request is not as it should be", "; ".join(found))

    @app.exception_handler(HTTPException)
    async def other(_request: Request, error: HTTPException) -> JSONResponse:
        what, fix = _WORDS.get(error.status_code, (str(error.detail), ""))
        return answer(error.status_code, what, fix=fix, headers=error.headers)

    @app.exception_handler(Exception)
    async def unknown(_request: Request, error: Exception) -> JSONResponse:
        traceback.print_exception(error)
        why = f"{type(error).__name__}, a bug of shanty"
        return answer(500, "the server failed at this", why, "its terminal has more")


def _place(location: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in location[1:]) or str(location[0])
