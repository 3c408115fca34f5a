"""Serves the page: built files with a strict policy, which hold no secret."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from shanty.dashboard import downloads, state
from shanty.dashboard.errors import Refused

router = APIRouter(include_in_schema=False)
FOLDER = Path(str(resources.files("shanty.dashboard"))) / "static"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; worker-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A name with a hash, as Vite makes them: what is in such a file never changes.
_HASHED = re.compile(r"[-.][A-Za-z0-9_-]{8,}\.[a-z0-9]+$")
_UNCHANGING = "public, max-age=31536000, immutable"
# In which older versions kept the token.
_OLD_COOKIE = re.compile(r"shanty(-[0-9]+)?")
_TYPES = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8",
}  # fmt: skip


@router.get(f"{downloads.PATH}{{name}}")
def download(request: Request, name: str) -> Response:
    """Serve a download that a page has asked for."""
    return state.of(request).downloads.take(name)


@router.get("/{path:path}")
def page(request: Request, path: str) -> Response:
    """Return a built file, and for all other addresses the page, which knows them."""
    if path.startswith("api/"):
        raise Refused(404, "address not found", "", "see /api/v1/openapi.json")
    file = _file(path) if path else None
    if file is None:
        if path.startswith("assets/"):
            raise Refused(404, "file not found")
        headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
        answer = FileResponse(FOLDER / "index.html", media_type=_TYPES[".html"], headers=headers)
        for name in filter(_OLD_COOKIE.fullmatch, request.cookies):
            answer.delete_cookie(name, httponly=True, samesite="strict")
        return answer
    hashed = path.startswith("assets/") and _HASHED.search(file.name)
    kept = _UNCHANGING if hashed else "no-cache"
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": kept}
    media = _TYPES.get(file.suffix, "application/octet-stream")
    return FileResponse(file, media_type=media, headers=headers)


def _file(path: str) -> Path | None:
    """Return the built file of that name; None where there is none."""
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") or part.startswith(".") for part in parts):
        return None
    found = FOLDER.joinpath(*parts)
    inside = found.resolve().is_relative_to(FOLDER.resolve())
    return found if inside and found.is_file() else None
