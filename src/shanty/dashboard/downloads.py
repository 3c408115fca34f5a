"""Addresses that each serve one download, once and soon.

A browser that saves a file sends no header `Authorization`. So a page asks for an address with its
token, and opens it. The address is worth nothing once it is used, or after a minute, and it is not
the token: a history or a proxy's log may keep it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.responses import Response

from shanty.dashboard.errors import Refused

_LIFE = 60.0  # seconds
_MOST = 1000  # at a time
PATH = "/api/v1/downloads/"
# Of what a run wrote: a browser that shows it runs nothing of it.
SANDBOX = {"Content-Security-Policy": "sandbox; default-src 'none'"}


@dataclass
class Downloads:
    """The downloads that were asked for and have not begun: by when, and what makes the answer."""

    _waiting: dict[str, tuple[float, Callable[[], Response]]] = field(default_factory=dict)

    def offer(self, make: Callable[[], Response]) -> str:
        """Return an address for what `make` answers; 429 where too many have not been used."""
        now = time.monotonic()
        for name in [name for name, (until, _) in self._waiting.copy().items() if until < now]:
            self._waiting.pop(name, None)
        if len(self._waiting) >= _MOST:
            raise Refused(429, "too many downloads have not begun", "", "try again in a minute")
        name = secrets.token_urlsafe(32)
        self._waiting[name] = (now + _LIFE, make)
        return PATH + name

    def take(self, name: str) -> Response:
        """Return the answer at an address, once; 404 for an address that is used or too old."""
        until, make = self._waiting.pop(name, (0.0, None))
        if make is None or until < time.monotonic():
            why = "its address serves one download, within a minute"
            raise Refused(404, "this download has ended", why, "start it from its page again")
        return make()
