"""Runs the server: its socket, its limits, and an end that does not wait for open pages."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import os
import socket
import ssl
import sys
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from shanty.dashboard.app import application
from shanty.dashboard.guard import LARGEST_HEADERS, Guard, Hosts, is_loopback
from shanty.dashboard.state import Dashboard
from shanty.runtime.errors import LaunchError, UsageError

_CONNECTIONS = 600
_SLOW = 15.0  # seconds in which a request has to be there in whole
_STUCK = 30.0  # seconds in which a client has to take something of what it is sent
_KEEP_ALIVE = 30  # seconds


@dataclass(frozen=True, slots=True)
class Place:
    """Where to serve: a free port for 0; with a certificate and its key, by TLS.

    Without one only to this machine, unless it is `insecure`.
    """

    host: str = "127.0.0.1"
    port: int = 0
    allowed: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False


class _Protocol(H11Protocol):
    """HTTP/1.1 that ends a connection whose request does not come to an end."""

    _slow: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waits_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._slow is None:
            self._wait()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):  # all of the request is there
            self._waits_no_more()

    def _wait(self) -> None:
        self._slow = self.loop.call_later(_SLOW, self.transport.abort)

    def _waits_no_more(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None


class Server(uvicorn.Server):
    """Lets open streams end first when it is to end."""

    def __init__(self, config: uvicorn.Config, here: Dashboard) -> None:
        super().__init__(config)
        self._here = here
        self.ready: Callable[[], None] = lambda: None  # called once requests are answered

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets)
        self.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End because of a signal."""
        self.end()
        super().handle_exit(sig, frame)

    def end(self) -> None:
        """End: open streams first, then all else. To be called in the event loop's thread."""
        self._here.closing.set()
        self._here.hub.wake()
        self.should_exit = True


def listen(place: Place) -> socket.socket:
    """Return a socket that listens; LaunchError where the port is taken, or not to be had.

    UsageError where others could read what is sent: its address is not of this machine alone.
    """
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named. With it, each answer
    # waits 40 ms for the client's acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # A client that takes nothing would else be waited for as long as its machine is up.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            option = socket.TCP_USER_TIMEOUT
            listener.setsockopt(socket.IPPROTO_TCP, option, int(_STUCK * 1000))
        listener.bind((place.host or "localhost", place.port))  # "" would be all addresses
        if not (place.certificate or place.insecure or is_loopback(listener.getsockname()[0])):
            raise UsageError(
                f"{place.host} is not served without TLS",
                "others on the network could read tokens, and run programs as you with them",
                "give --tls-cert and --tls-key; or serve this machine alone (--host 127.0.0.1), "
                "behind ssh or a proxy with TLS; or, on a network that you trust, --insecure",
            )
        listener.listen(128)
    except UsageError:
        listener.close()
        raise
    except socket.gaierror as error:
        listener.close()
        raise UsageError(
            f"--host {place.host} has no address",
            error.strerror or "",
            "give an address of this machine",
        ) from error
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        raise LaunchError(
            f"nothing can be served at {place.host}:{place.port}",
            "another program listens there" if taken else error.strerror or str(error),
            "give another --port, or leave it out for a free one",
        ) from error
    return listener


def address(place: Place, listener: socket.socket) -> str:
    """Return the address of the server, for a person."""
    host, bound = place.host, listener.getsockname()[0]
    if not place.certificate and is_loopback(bound):
        host = bound  # another user may listen at the other address that "localhost" has
    if host in ("0.0.0.0", "::"):
        host = os.uname().nodename
    scheme = "https" if place.certificate else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def make_server(here: Dashboard, place: Place) -> Server:
    """Return a server that has not begun; UsageError where its certificate cannot be used."""
    app = Guard(application(here), Hosts(place.host, place.allowed))
    given: dict[str, Any] = {}
    if place.certificate is not None:
        given = {"ssl_certfile": place.certificate, "ssl_keyfile": place.key}
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        log_level="critical",
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=LARGEST_HEADERS,
        **given,
    )
    try:
        config.load()
    except (ssl.SSLError, OSError) as error:
        raise UsageError("the certificate or its key cannot be used", str(error)) from error
    return Server(config, here)


def serve(server: Server, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until Ctrl-C or SIGTERM; `ready` is called once requests are answered."""
    server.ready = ready
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(server.serve(sockets=[listener]))


def open_browser(url: str, home: Path) -> None:
    """Open a page in the user's browser, without waiting for it; nothing where there is none.

    The browser gets a file of `home` that leads to it: others see the words of its command line.
    """

    def work() -> None:
        with contextlib.suppress(webbrowser.Error, OSError):
            file = home / f"ui-{os.getpid()}.html"
            file.unlink(missing_ok=True)
            atexit.register(file.unlink, missing_ok=True)
            file.touch(0o600, exist_ok=False)
            file.write_text(f'<meta http-equiv="refresh" content="0; url={url}">\n')
            webbrowser.open(file.as_uri())

    known = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    if sys.platform == "darwin" or any(os.environ.get(name) for name in known):
        threading.Thread(target=work, daemon=True).start()
