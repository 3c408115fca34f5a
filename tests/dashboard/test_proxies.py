"""Proxies that give the dashboard a path: JupyterHub's, nginx, Traefik. All of the pages work."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from browsers import Tab, Ui, run_until
from runs import Shanty

KEPT = "/user/ann/proxy/absolute/1"  # which the server gets as it is
# Of any other, the server gets what is behind it. That of runs looks like a page of ours.
TAKEN = ("/user/ann%40lab/proxy/1", "/runs", "/told", "/basic")


@contextmanager
def proxy(server: str) -> Iterator[str]:
    """A proxy as they are; its address. Its /told says its name, its /basic asks for a password."""

    class Handler(BaseHTTPRequestHandler):
        def work(self) -> None:
            prefix = next((each for each in (KEPT, *TAKEN) if self.path.startswith(each)), None)
            if prefix is None:
                self.send_error(404, "this is not below a path of the proxy")
                return
            known = self.headers.get("Authorization", "").startswith("Basic ")
            if prefix == "/basic" and not known:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="proxy"')
                self.end_headers()
                return
            path = self.path if prefix == KEPT else self.path.removeprefix(prefix) or "/"
            headers = {name: self.headers[name] for name in self.headers if name != "Connection"}
            headers["X-Forwarded-For"] = "10.0.0.9"
            if prefix == "/told":
                headers["X-Forwarded-Prefix"] = prefix
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            asked = {"method": self.command, "url": server + path, "headers": headers}
            with client.stream(**asked, content=body) as answer:
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name not in ("transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.end_headers()
                # As Jupyter's does: what is no stream of events is sent once it is complete.
                streams = self.headers.get("Accept") == "text/event-stream"
                for piece in answer.iter_raw() if streams else [b"".join(answer.iter_raw())]:
                    self.wfile.write(piece)
                    self.wfile.flush()

        do_GET = do_POST = do_DELETE = work  # noqa: N815  as the class wants them

        def log_message(self, format: str, *args: object) -> None:
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except (OSError, httpx.HTTPError):  # one of the two has gone
                self.close_connection = True

    class Server(ThreadingHTTPServer):
        daemon_threads = False  # its end waits for them

    with (
        httpx.Client(trust_env=False, timeout=None) as client,
        Server(("127.0.0.1", 0), Handler) as made,
    ):
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://hub.localhost:{made.server_address[1]}"
        made.shutdown()


@pytest.fixture(scope="module")
def live(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ui, str, str]]:
    """A server with a run that goes on, the run's id, and the address of a proxy before it."""
    folder = tmp_path_factory.mktemp("live")
    shanty = Shanty(folder / "home", folder)
    (folder / "goes_on.py").write_text(
        "import itertools, time, shanty\n(shanty.artifacts() / 'a.txt').write_text('kept')\n"
        "for i in itertools.count():\n    print('line', i, flush=True)\n    time.sleep(0.1)\n"
    )
    run = run_until(shanty, "running", "-n", "1", "--name", "live", "goes_on.py")
    ui = Ui(shanty, "ui", "--no-browser", "--port", "0", "--allowed-host", "hub.localhost")
    try:
        with proxy(ui.base) as hub:
            yield ui, run, hub
            ui.stop()  # which ends all streams
    finally:
        shanty("stop", "--all")
        shanty.sweep()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("prefix", [KEPT, *TAKEN])
def test_the_pages_below_a_path_that_a_proxy_gives_them(
    live: tuple[Ui, str, str], tabs: Callable[..., Tab], prefix: str
) -> None:
    ui, run, hub = live
    base = hub + prefix
    login = {"username": "ann", "password": "x"} if prefix == "/basic" else None
    page = tabs(ui, sign_in=False, login=login).page
    failed: list[tuple[int, str]] = []
    page.on("response", lambda each: failed.append((each.status, each.url)))
    token = ui.address.partition("#")[2]
    slash = "" if prefix in (KEPT, "/told") else "/"
    page.goto(f"{base}{slash}#{token}")
    page.get_by_role("link", name="live").click()
    page.wait_for_url(f"{base}/runs/{run}")
    page.get_by_text(re.compile(r"^line \d+")).first.wait_for()
    last = (
        "() => Math.max(...[...document.body.innerText.matchAll(/line (\\d+)/g)].map(m => +m[1]))"
    )
    seen = page.evaluate(last)
    page.wait_for_function(f"seen => ({last})() > seen + 3", arg=seen)  # the stream of events
    page.reload()
    page.get_by_role("heading", name="live").wait_for()
    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_text("a.txt").first.wait_for()
    with page.expect_download() as saved:
        page.get_by_role("link", name=re.compile("Download|Save")).first.click()
    assert Path(saved.value.path()).read_text() == "kept"
    page.get_by_role("link", name="Machines").click()
    page.get_by_role("heading", name="Machines").first.wait_for()
    page.go_back()
    page.get_by_role("heading", name="live").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url(f"{base}/")
    page.goto(f"{base}/new")
    page.get_by_label("Equivalent command").get_by_text("mpirun").wait_for()  # a POST
    assert [each for each in failed if each[0] >= 400 and each[0] != 401] == []
