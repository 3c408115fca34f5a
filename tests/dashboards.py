"""A real server of the dashboard for tests, and clients of it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from runs import wait_for
from shanty.dashboard import serving
from shanty.dashboard.serving import Place
from shanty.dashboard.state import Dashboard
from shanty.dashboard.users import Users
from shanty.launch.settings import Settings

ACCOUNT = "acct"
_HTTP = httpx.Client(verify=False, trust_env=False)  # one: it takes long to make


@dataclass
class Client:
    """Asks a server, with a user's token; `changes` has the header that changes need."""

    url: str
    token: str = ""
    http: httpx.Client = field(default_factory=lambda: _HTTP)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def get(self, path: str, /, **query: Any) -> httpx.Response:
        url = self.url + path
        return self.http.get(url, params=query or None, headers=self.headers, timeout=30)

    def json(self, path: str, /, **query: Any) -> Any:
        answer = self.get(f"/api/v1{path}", **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return self.http.request(
            method,
            f"{self.url}/api/v1{path}",
            json=body,
            headers={**self.headers, "X-Shanty": "1", **headers},
            timeout=60,
        )

    @contextmanager
    def stream(self, path: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """The events of a stream: name and data."""
        with self.http.stream(
            "GET", f"{self.url}/api/v1{path}", headers=self.headers, timeout=30
        ) as answer:
            assert answer.status_code == 200, answer.read()
            yield _events(answer)


def _events(answer: httpx.Response) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


@dataclass
class Served:
    """A server that is up, and how to ask it as somebody."""

    url: str
    here: Dashboard
    users: Users
    server: serving.Server

    def user(self, name: str, role: Any = "user", may_see: Any = "own") -> Client:
        return Client(self.url, self.users.add(name, role, may_see))

    @property
    def admin(self) -> Client:
        return self.user("root", "admin", "all")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def connected(self, request: str = "", token: str = "") -> socket.socket:
        """A plain connection, on which a request like "GET /api/v1/me" was sent, if any."""
        line = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        if request:
            own = f"Authorization: Bearer {token}\r\n" if token else ""
            line.sendall(f"{request} HTTP/1.1\r\nHost: localhost\r\n{own}\r\n".encode())
        return line

    def buffered(self) -> int:
        """Bytes that the server keeps for clients that have not taken them."""
        connections = list(self.server.server_state.connections)
        return sum(each.transport.get_write_buffer_size() for each in connections)

    def knows(self, count: int) -> None:
        """Have that many runs in the index, as their directories are now."""
        runs = self.here.runs
        runs.refresh()
        runs.reread([runs.directory(run_id) for run_id in runs.ids()])
        assert len(runs.known(runs.ids())) == count


@contextmanager
def served(home: Path, environ: dict[str, str] | None = None, **place: Any) -> Iterator[Served]:
    """Serve a home from a thread of this process."""
    home.mkdir(parents=True, exist_ok=True)
    users = Users(home)
    here = Dashboard(home, environ or {}, Settings(), users, account=ACCOUNT)
    where = Place(**place)
    listener = serving.listen(where)
    server = serving.make_server(here, where)
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    wait_for(lambda: server.started or not thread.is_alive(), 20)
    try:
        yield Served(serving.address(where, listener), here, users, server)
    finally:
        loops[0].call_soon_threadsafe(server.end)
        thread.join(20)
        assert not thread.is_alive(), "the server does not end"
