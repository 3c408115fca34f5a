"""Pages of other servers, in the browser of a user who is signed in: they get and do nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from browsers import Tab, Ui
from command_line import make_run
from runs import Shanty, wait_for
from shanty.dashboard.serving import open_browser
from shanty.runtime.spec import State

# Each way of asking the dashboard at `base`, and what came of it. `run` is there to be deleted.
ATTACKS = """async ([base, run]) => {
  const api = base + "/api/v1";
  const form = {ranks: 1, command: "touch pwned", source: {kind: "folder", path: "/tmp"}};
  const plain = {method: "POST", credentials: "include", body: JSON.stringify(form)};
  const asked = async (address, options) => {
    try {
      const answer = await fetch(address, options);
      return answer.type === "opaque" ? "opaque" : "read " + answer.status;
    } catch { return "blocked"; }
  };
  const loaded = (name, address) => new Promise(resolve => {
    const one = document.createElement(name);
    one.onload = () => resolve("loaded");
    one.onerror = () => resolve("blocked");
    one.src = address;
    document.body.append(one);
  });
  const opened = source => new Promise(resolve => {
    source.onopen = () => resolve("open");
    source.onerror = () => resolve("blocked");
  });
  const posted = type => new Promise(resolve => {
    const frame = document.createElement("iframe");
    frame.name = "f" + type.length;
    document.body.append(frame);
    const sent = document.createElement("form");
    Object.assign(sent, {method: "POST", action: api + "/runs", target: frame.name, enctype: type});
    const field = document.createElement("input");
    Object.assign(field, {name: JSON.stringify(form).slice(0, -1) + ', "x": "', value: '"}'});
    sent.append(field);
    document.body.append(sent);
    frame.onload = () => resolve("sent");
    sent.submit();
  });
  const json = {"Content-Type": "application/json", "X-Shanty": "1"};
  return {
    "get": await asked(api + "/runs", {credentials: "include"}),
    "get without a reply": await asked(api + "/runs", {mode: "no-cors", credentials: "include"}),
    "post": await asked(api + "/runs", {...plain, headers: {"Content-Type": "text/plain"}}),
    "post without a reply": await asked(api + "/runs", {...plain, mode: "no-cors"}),
    "post with preflight": await asked(api + "/runs", {...plain, headers: json}),
    "delete": await asked(`${api}/runs/${run}`, {method: "DELETE", credentials: "include"}),
    "beacon": navigator.sendBeacon(`${api}/runs/${run}/stop`, "{}"),
    "form": await posted("text/plain"),
    "other form": await posted("application/x-www-form-urlencoded"),
    "image": await loaded("img", api + "/runs"),
    "script": await loaded("script", api + "/runs"),
    "events": await opened(new EventSource(api + "/runs/stream", {withCredentials: true})),
    "socket": await opened(new WebSocket(base.replace("http", "ws") + "/api/v1/runs/stream")),
    "cookies": document.cookie,
    "storage": JSON.stringify(localStorage),
  };
}"""
BLOCKED = ("get", "post", "post with preflight", "delete", "image", "script", "events", "socket")


@dataclass
class Other:
    """A server on another port of this machine, which keeps what it receives."""

    port: int
    received: list[str] = field(default_factory=list)


@contextmanager
def other_server() -> Iterator[Other]:
    found: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.append(f"{self.requestline}\n{self.headers}")
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Set-Cookie", "theirs=1; Path=/")
            self.end_headers()
            self.wfile.write(b"<title>other</title><body><h1>other</h1>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Other(server.server_address[1], found)
        server.shutdown()


@pytest.fixture
def ui(program: str, tmp_path: Path) -> Iterator[Ui]:
    made = Ui(Shanty(tmp_path / "home", tmp_path))
    yield made
    made.stop()


def test_pages_of_other_servers_get_nothing_and_do_nothing(
    tabs: Callable[..., Tab], ui: Ui, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "home", 1, State.SUCCEEDED, name="mine")
    token = ui.address.partition("#token=")[2]
    assert token
    tab = tabs(ui, sign_in=False)
    requests: list[tuple[str, dict[str, str]]] = []
    tab.page.on("request", lambda each: requests.append((each.url, each.all_headers())))
    old = {"name": "shanty-8470", "value": token, "domain": "127.0.0.1", "path": "/"}
    tab.context.add_cookies([{**old, "httpOnly": True, "sameSite": "Strict"}])
    tab.sign_in()
    tab.page.get_by_role("link", name="mine").wait_for()
    assert tab.context.cookies() == []  # the one that an older version had left is taken away
    assert token not in tab.page.url
    streams = [headers for url, headers in requests if url.endswith("/runs/stream")]
    assert [each["authorization"] for each in streams] == [f"Bearer {token}"]
    assert not [url for url, _ in requests if "token" in url.partition("#")[0]]
    with other_server() as other:
        for name in ("127.0.0.1", "localhost", "evil.example"):
            page = tab.context.new_page()
            page.goto(f"http://{name}:{other.port}/")
            got = page.evaluate(ATTACKS, [ui.base, run.id])
            assert {each: got[each] for each in BLOCKED} == dict.fromkeys(BLOCKED, "blocked"), name
            assert (got["cookies"], got["storage"]) == ("theirs=1", "{}")
            # In a frame there is nothing of ours, and a window that it opens is out of its reach.
            page.evaluate(
                "base => { const f = document.createElement('iframe'); f.name = 'framed';"
                " f.src = base; document.body.append(f); window.w = window.open(base); }",
                ui.base,
            )
            page.wait_for_function("() => window.w.closed")
            framed = page.locator("iframe[name=framed]").element_handle().content_frame()
            assert framed is not None
            framed.wait_for_url(lambda url: url.startswith("chrome-error:"))
            page.close()
        # A name of another site that is made to mean this machine.
        page = tab.context.new_page()
        port = ui.base.rpartition(":")[2]
        answer = page.goto(f"http://evil.example:{port}/#token={token}")
        assert answer is not None
        assert answer.status == 421
        assert "script" not in page.content()
        page.close()
        assert len(other.received) >= 3
        assert not [each for each in other.received if token in each or "shanty" in each.lower()]
    assert [each.name for each in run.path.parent.iterdir()] == [run.id]
    assert json.loads(run.status.read_text())["state"] == "succeeded"
    tab.open(f"/runs/{run.id}")  # and whose page it is, is signed in as before
    tab.page.get_by_role("heading", name="mine").wait_for()


def test_all_tabs_of_a_server_are_signed_in_and_out_together(
    tabs: Callable[..., Tab], ui: Ui
) -> None:
    tab = tabs(ui)
    second = tab.context.new_page()
    second.goto(f"{ui.base}/machines")
    second.get_by_role("heading", name="Machines").first.wait_for()
    second.reload()
    second.get_by_role("button", name="Sign out").click()
    second.get_by_label("Token or link").wait_for()
    tab.page.get_by_label("Token or link").wait_for()
    second.goto(ui.base)
    second.get_by_label("Token or link").wait_for()
    second.goto(ui.address)  # the page is there already: only what is behind the # changes
    second.get_by_role("button", name="Sign out").wait_for()
    tab.page.get_by_role("button", name="Sign out").wait_for()


def test_the_browser_is_opened_without_the_token_in_its_command_line(
    browser: object, ui: Ui, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All users of a machine see command lines."""
    kept = tmp_path / "words"
    program = tmp_path / "a-browser"
    program.write_text(f'#!/bin/sh\necho "$@" > {kept}.draft && mv {kept}.draft {kept}\n')
    program.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(program))
    open_browser(ui.address, tmp_path)
    wait_for(kept.exists)
    (given,) = kept.read_text().split()
    file = Path(given.removeprefix("file://"))
    assert file.stat().st_mode & 0o777 == 0o600
    page = browser.new_context().new_page()  # type: ignore[attr-defined]
    page.goto(given)
    page.get_by_role("button", name="Sign out").wait_for()
    assert page.url == f"{ui.base}/"
    page.context.close()
