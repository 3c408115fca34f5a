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
    400: ("the body is not JSON", "send what the description of the API says"),
    404: ("page not found", "check the address"),
    405: ("this cannot be done at that address", "see /api/v1/openapi.json"),
}
# What every address may answer beside its own.
ANSWERS: dict[int | str, dict[str, Any]] = {
    400: {"model": Failed, "description": "Invalid JSON or invalid HTTP"},
    401: {"model": Failed, "description": "No token, or an unknown token"},
    403: {"model": Failed, "description": "Not allowed"},
    404: {"model": Failed, "description": "Not found, or not yours to see"},
    409: {"model": Failed, "description": "Not possible in the present state"},
    413: {"model": Failed, "description": "Too large a body"},
    414: {"model": Failed, "description": "Too long an address"},
    421: {"model": Failed, "description": "The name is not that of this server"},
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


class Refused(ShantyError):  # noqa: N818  an answer, not a fault
    """A refusal, with its status of HTTP."""

    def __init__(self, status: int, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(what, why, fix)
        self.status = status


def answer(
    status: int, what: str, why: str = "", fix: str = "", headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return the answer that says so."""
    content = {"error": {"what": what, "why": why, "fix": fix}}
    return JSONResponse(content, status, headers)


def install(app: FastAPI) -> None:
    """Let the application answer all errors that way."""

    @app.exception_handler(ShantyError)
    async def known(_request: Request, error: ShantyError) -> JSONResponse:
        status = next((number for kind, number in _STATUS if isinstance(error, kind)), 424)
        status = error.status if isinstance(error, Refused) else status
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        return answer(status, error.what, error.why, error.fix, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        found = []
        for each in error.errors()[:5]:
            first, *rest = map(str, each["loc"])
            found.append(f"{'.'.join(rest) or first}: {each['msg']}")
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
