"""Serves the page: built files with a strict policy, and the login that makes a token a cookie."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from shanty.dashboard import state
from shanty.dashboard.errors import Refused
from shanty.dashboard.users import of_token

router = APIRouter(include_in_schema=False)
FOLDER = Path(str(resources.files("shanty.dashboard"))) / "static"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; worker-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
# A name with a hash, as Vite makes them: what is in such a file never changes.
_HASHED = re.compile(r"[-.][A-Za-z0-9_-]{8,}\.[a-z0-9]+$")
_FOR_EVER = "public, max-age=31536000, immutable"
_SESSION = 30 * 86400  # seconds that a browser keeps the cookie
_TYPES = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".png": "image/png",
    ".ico": "image/x-icon", ".woff2": "font/woff2", ".json": "application/json",
    ".webmanifest": "application/manifest+json", ".map": "application/json",
    ".txt": "text/plain; charset=utf-8",
}  # fmt: skip
_NOT_BUILT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>shanty</title>
<h1>The pages of the dashboard are not built</h1>
<p>This installation of shanty has no front end. From its source: <code>./dev frontend</code>.</p>
<p>The HTTP API works: <a href="/api/v1/me">/api/v1/me</a>,
<a href="/api/v1/openapi.json">/api/v1/openapi.json</a>.</p>
</html>
"""


@router.get("/login")
def login(request: Request, token: str = "", next: str = "/") -> Response:
    """Keep the token in a cookie that no script can read, and go on to the page without it."""
    here = state.of(request)
    user = of_token(here.users.all(), token.strip()) if 0 < len(token) <= 256 else None
    if user is None and "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("/", 303)  # a browser, with an old link: the page asks for one
    if user is None:
        raise Refused(
            401, "that token is not known", "it is of another server, or was removed",
            "open the address that `shanty ui` has printed last",
        )  # fmt: skip
    within = re.fullmatch(r"/(?![/\\])[\w./?=&%:~+-]*", next)
    answer = RedirectResponse(next if within else "/", 303)
    answer.set_cookie(
        here.cookie, token.strip(), max_age=_SESSION, httponly=True, samesite="strict",
        secure=here.secure,
    )  # fmt: skip
    return answer


@router.post("/logout")
def logout(request: Request) -> Response:
    """Forget the cookie."""
    if "x-shanty" not in request.headers:  # a page of another site
        raise Refused(403, "the request has no header X-Shanty")
    answer = Response(status_code=204)
    answer.delete_cookie(state.of(request).cookie, httponly=True, samesite="strict")
    return answer


@router.get("/{path:path}")
def page(path: str) -> Response:
    """Return a built file, and for all other addresses the page, which knows them."""
    if path.startswith("api/"):
        raise Refused(404, "there is no such address", "", "see /api/v1/openapi.json")
    file = _file(path) if path else None
    if file is None:
        if path.startswith("assets/"):
            raise Refused(404, "there is no such file")
        index = _file("index.html")
        if index is None:
            return HTMLResponse(_NOT_BUILT)
        headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
        return FileResponse(index, media_type=_TYPES[".html"], headers=headers)
    hashed = path.startswith("assets/") and _HASHED.search(file.name)
    kept = _FOR_EVER if hashed else "no-cache"
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
