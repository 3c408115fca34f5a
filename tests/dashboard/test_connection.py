"""The server goes away and comes back: the page says so, and goes on by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from browsers import Tab, Ui, free_port
from command_line import make_run
from runs import Shanty
from shanty.runtime.spec import State


def test_a_page_recovers_without_a_hand(
    browser: object, tabs: Callable[..., Tab], tmp_path: Path
) -> None:
    shanty = Shanty(tmp_path / "home", tmp_path)
    make_run(shanty.home, 1, State.SUCCEEDED, name="before")
    token = shanty("serve", "users", "add", "ann", "--role", "admin").stdout.strip()
    assert token
    ui = Ui(shanty, "serve", "--host", "127.0.0.1", "--port", str(free_port()))
    tab = tabs(ui, sign_in=False)
    page = tab.page
    try:
        page.goto(f"{ui.base}/#token={token}")
        page.get_by_role("link", name="before").wait_for()
        ui.stop()
        page.get_by_text("The connection is lost").wait_for()
        make_run(shanty.home, 2, State.SUCCEEDED, name="meanwhile")
        ui.start()
        page.get_by_role("link", name="meanwhile").wait_for()
        page.get_by_text("The connection is lost").wait_for(state="detached")
    finally:
        ui.stop()


def test_a_session_that_ends_leads_to_signing_in(
    browser: object, tabs: Callable[..., Tab], tmp_path: Path
) -> None:
    shanty = Shanty(tmp_path / "home", tmp_path)
    make_run(shanty.home, 1, State.SUCCEEDED, name="before")
    port = str(free_port())
    ui = Ui(shanty, "ui", "--no-browser", "--port", port)
    tab = tabs(ui)
    try:
        tab.page.get_by_role("link", name="before").wait_for()
        ui.stop()
        ui.start()  # with another token
        tab.page.get_by_label("Token or link").wait_for()
    finally:
        ui.stop()
