"""Serves the page: built files with a strict policy, which hold no secret."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, RedirectResponse, Response

from shanty.dashboard import downloads, state
from shanty.dashboard.access import TOKEN_HEADER
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


# The page of a run, which is one level deeper than the others.
_RUN = re.compile(r"(?:|.*/)runs/[^/]+(/?)")
_PAGE = re.compile(r"(|.*/|(.*/)?(runs(/[^/]+)?|compare|machines|new|login))")
_FORWARDED = {"forwarded", "via", "x-real-ip"}
_PREFIX = re.compile(r"(?:/[\w.~%@!$()*+,;=:-]+)+", re.ASCII)


@router.get("/{path:path}")
def page(request: Request, path: str) -> Response:
    """Return a built file, and for all other addresses the page, which knows them."""
    if path.startswith("api/"):
        raise Refused(404, "address not found", "", "see /api/v1/openapi.json")
    file = _file(path) if path else None
    if file is None:
        if path.startswith("assets/"):
            raise Refused(404, "file not found")
        if not _PAGE.fullmatch(path) and _proxied(request):
            # What is not a page may be the path of a proxy, without the / at its end.
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(quote(path.rpartition("/")[2]) + "/" + query)
        headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
        answer = Response(_index(request, path), media_type=_TYPES[".html"], headers=headers)
        for name in filter(_OLD_COOKIE.fullmatch, request.cookies):
            answer.delete_cookie(name, httponly=True, samesite="strict")
        return answer
    hashed = path.startswith("assets/") and _HASHED.search(file.name)
    kept = _UNCHANGING if hashed else "no-cache"
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": kept}
    media = _TYPES.get(file.suffix, "application/octet-stream")
    return FileResponse(file, media_type=media, headers=headers)


def _proxied(request: Request) -> bool:
    """Return true for what no browser sends."""
    forwarded = any(
        name in _FORWARDED or name.startswith("x-forwarded-") for name in request.headers
    )
    return forwarded or request.scope["http_version"] == "1.0"


def _index(request: Request, path: str) -> str:
    """Return the page, with the addresses of its files as they are from where the browser is.

    A proxy may serve it below a path, which it takes away or leaves: the addresses are relative.
    One that takes away `/shanty` of an address that ends there tells it by X-Forwarded-Prefix.
    """
    text = (FOLDER / "index.html").read_text(encoding="utf-8")
    deep = _RUN.fullmatch(path)
    base = "./" if deep is None else "../../" if deep[1] else "../"
    prefix = request.headers.get("x-forwarded-prefix", "").rstrip("/")
    if _PREFIX.fullmatch(prefix):
        base = f"{prefix}/"
    if "authorization" in request.headers:  # the browser's, for the proxy: it has no other
        text = text.replace("<html ", f'<html data-token-header="{TOKEN_HEADER}" ', 1)
    return text.replace('="./', f'="{base}')


def _file(path: str) -> Path | None:
    """Return the built file of that name; None where there is none."""
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") or part.startswith(".") for part in parts):
        return None
    found = FOLDER.joinpath(*parts)
    inside = found.resolve().is_relative_to(FOLDER.resolve())
    return found if inside and found.is_file() else None
