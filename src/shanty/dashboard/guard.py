"""Stands before the application: names, sizes, and the headers that keep a browser careful."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
from collections.abc import Collection
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shanty.dashboard.errors import answer

LARGEST_BODY = 1 << 20  # bytes
LARGEST_HEADERS = 32 << 10
_LONGEST_TARGET = 16 << 10  # bytes of path and query
_LINGER, _LINGERING = 1.0, 16 << 20  # seconds, and bytes of a body that is refused
_TOKENS = {"token", "access_token"}
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


_NAME = re.compile(r"[a-z0-9_:-]+(\.[a-z0-9_-]+)*")
# What the API and the files of the page are called, below whatever path a proxy has left there.
_OURS = re.compile(r".*(/api/v1/.*|/assets/[^/]+|/theme\.js|/favicon\.svg)", re.DOTALL)


class Hosts:
    """The names that requests may come for: a page of another site cannot make up one of them.

    Bound to this machine alone, these are its loopback names. Bound to others, too, they are all
    addresses in numbers, which no other site can have for a name, and the machine's own names.
    """

    def __init__(self, bound: str, allowed: Collection[str] = ()) -> None:
        # An empty name would also be that of the origin "null".
        self._names = {_plain(name) for name in (*_LOOPBACK, bound, *allowed)} - {""}
        self._numbers = not is_loopback(bound)
        if self._numbers:
            name = os.uname().nodename.lower()
            self._names |= {name, name.partition(".")[0]}

    def has(self, header: str) -> bool:
        """Return true for a header `Host` that may be served."""
        name = _plain(_without_port(header))
        return name in self._names or (self._numbers and _address(name) is not None)


def is_loopback(host: str) -> bool:
    """Return true for a name or address that only this machine gets to."""
    found = _address(host)
    return host in _LOOPBACK or (found is not None and found.is_loopback)


def _without_port(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.count(":") == 1 else header


def _option(header: str) -> str:
    """Return what `--allowed-host` needs to let that name in."""
    name = _plain(_without_port(header))
    return name if _NAME.fullmatch(name) else "NAME"


def _plain(name: str) -> str:
    return name.strip().lower().rstrip(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


class Guard:
    """Refuses what comes for another name or is too large; adds headers to every answer."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, if it may be."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        found = _OURS.fullmatch(scope["path"])
        below = scope if found is None else {**scope, "path": found[1]}

        async def careful(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    found.setdefault(name, value)
            await send(message)

        refused = self._refusal(scope, headers)
        if refused is not None:
            await _drain(receive)
            await answer(*refused, headers={"Connection": "close"})(scope, receive, careful)
            return
        await self._app(below, _Bounded(receive), careful)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str, str, str] | None:
        given = headers.getlist("host")
        if len(given) != 1 or not self._hosts.has(given[0]):
            return (
                421,
                "this server does not answer to that name",
                "a page of another site may have made its own name mean this machine",
                f"use the address that was printed; behind a proxy, start the server with "
                f"--allowed-host {_option(given[0] if given else '')}",
            )
        origin = headers.get("origin")
        if origin is not None and not self._hosts.has(origin.partition("://")[2]):
            return (
                403,
                "requests from pages of other servers are refused",
                "the page that sent this request comes from another name than this server's",
                "behind a proxy, start the server with "
                f"--allowed-host {_option(origin.partition('://')[2])}",
            )
        if _TOKENS & {name for name, _ in parse_qsl(scope["query_string"].decode("latin-1"))}:
            return (
                400,
                "a token must not be in the query of an address",
                "servers, proxies and browsers keep addresses in their logs and histories",
                "open the address as it is printed now, which ends in #token=TOKEN, or sign in on "
                "the page; programs send the header Authorization: Bearer TOKEN",
            )
        if len(scope["raw_path"]) + len(scope["query_string"]) > _LONGEST_TARGET:
            return 414, "the address is too long", "", ""
        if sum(len(name) + len(value) for name, value in scope["headers"]) > LARGEST_HEADERS:
            return 431, "the headers are too large", f"at most {LARGEST_HEADERS} bytes", ""
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > LARGEST_BODY:
            return 413, "the request is too large", f"at most {LARGEST_BODY} bytes", ""
        return None


async def _drain(receive: Receive) -> None:
    """Take in what is sent, for a moment: of a connection closed before, the answer is lost."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            taken = 0
            while taken < _LINGERING:
                message = await receive()
                taken += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return


class _Bounded:
    """Receives a body up to its limit; of a longer one the rest is never read."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._size = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        return message if self._size <= LARGEST_BODY else {"type": "http.disconnect"}
