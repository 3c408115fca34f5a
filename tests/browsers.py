"""Opens the dashboard in a real browser: Chromium by Playwright, and axe, which finds barriers.

All three are optional: without Playwright, Chromium or, for axe, the front end's node_modules the
tests that need them are skipped.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runs import Shanty, wait_for
from shanty.runtime.rundir import RunDir, read_json

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[1]
AXE = ROOT / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDE = {"width": 1280, "height": 800}
NARROW = {"width": 400, "height": 800}
MANY = 10_000  # runs of the home that has very many
_GRAVE = ("serious", "critical")


def chromium_program() -> str:
    """The path of Chromium; skips where something for tests of pages is not there."""
    pytest.importorskip("playwright.sync_api")
    if not (ROOT / "src/shanty/dashboard/static/index.html").exists():
        pytest.skip("the pages are not built: ./dev frontend")
    program = os.environ.get("SHANTY_TEST_CHROMIUM") or next(
        filter(None, map(shutil.which, _NAMES)), None
    )
    if program is None:
        pytest.skip("there is no Chromium on PATH")
    return program


@contextmanager
def chromium(program: str) -> Iterator[Browser]:
    """A Chromium. While it is there, this thread has a running event loop: Playwright's."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # What every name of .example means is for a test to say: this machine.
        names = "--host-resolver-rules=MAP *.example 127.0.0.1"
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", names])
        try:
            yield browser
        finally:
            browser.close()


class Ui:
    """A `shanty ui` or `shanty serve` as a process, for a home."""

    def __init__(self, shanty: Shanty, *words: str) -> None:
        self._shanty = shanty
        self._words = words or ("ui", "--no-browser", "--port", "0")
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""  # as it was printed
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = self._shanty.start(*self._words, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().decode().strip()
        assert self.address.startswith("http"), "it does not start"

    def stop(self) -> None:
        """End it."""
        assert self._process is not None
        self._process.terminate()
        self._process.communicate(timeout=30)

    @property
    def base(self) -> str:
        """The address without the token."""
        return self.address.partition("/#")[0]


class Tab:
    """A page of the dashboard in a browser; what went wrong in it is kept."""

    def __init__(
        self, browser: Browser, ui: Ui, *, dark: bool = False, size: Any = None, login: Any = None
    ) -> None:
        self.ui = ui
        self.context = browser.new_context(
            viewport=size or WIDE,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            http_credentials=login,
        )
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._console)
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))

    def _console(self, message: Any) -> None:
        # What the network says is for the page to show; all else is a mistake of ours.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.wrong.append(message.text)

    def sign_in(self) -> Tab:
        """Open the address that was printed."""
        self.page.goto(self.ui.address)
        self.page.wait_for_selector("h1")
        return self

    def open(self, path: str) -> Page:
        """Go to a page of it by its link, as one who was sent it would."""
        self.page.goto(self.ui.base + path)
        self.page.wait_for_selector("h1")
        return self.page

    def shows(self, text: str) -> None:
        """Wait until that is to be read somewhere."""
        self.page.get_by_text(text).first.wait_for()

    def until(self, function: str, argument: object = None) -> None:
        """Wait until a JavaScript function says yes."""
        self.page.wait_for_function(function, arg=argument)

    def barriers(self) -> list[str]:
        """What axe finds that is serious or critical."""
        if not AXE.exists():
            pytest.skip("axe is not there: cd frontend && npm ci")
        self.page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
        found = self.page.evaluate(
            "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"
            ".flatMap(v => v.nodes.map(n => [v.impact, v.id, n.target.join(' ')]))"
        )
        return [" ".join(each) for each in found if each[0] in _GRAVE]

    def beyond(self) -> int:
        """Pixels by which the page is wider than the window."""
        wider: int = self.page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
        return wider

    def close(self) -> None:
        """Close it; what went wrong in it is an error."""
        self.context.close()
        assert not self.wrong, self.wrong


@dataclass
class Lived:
    """A home with a run of each kind."""

    shanty: Shanty
    ui: Ui
    trained: str
    other: str
    failed: str
    stalled: str
    on: str


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def run_until(shanty: Shanty, state: str, *words: str | Path, seconds: float = 60) -> str:
    """Start a run, wait until it is in that state; its id."""
    done = shanty("run", "--detach", *words)
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.split()[-1]
    path = shanty.home / "runs" / run_id

    def there() -> bool:
        return (read_json(RunDir(path).status) or {}).get("state") == state

    wait_for(there, seconds, f"{run_id} is {state}")
    return run_id
