"""An empty home, signing in, comparison, machines, and the form of a new run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from browsers import Lived, Tab, Ui, free_port
from command_line import make_run
from runs import Shanty
from shanty.runtime.spec import State

Tabs = Callable[..., Tab]


def test_a_newcomer_is_told_what_to_type(tabs: Tabs, empty: Ui) -> None:
    tab = tabs(empty)
    tab.shows("No runs yet")
    tab.shows("shanty run -n 2 train.py")
    tab.open("/compare")
    tab.shows("No runs to compare")
    tab.open("/machines")
    tab.shows("No machine types yet")
    tab.shows("Nothing waits")
    tab.open("/new")
    tab.page.get_by_label("Equivalent command").get_by_text("mpirun").wait_for()
    tab.open("/?search=nothing")
    tab.shows("No run is like that")
    tab.open("/nowhere")
    tab.shows("Page not found")


def test_a_run_that_is_not_there_says_so(tabs: Tabs, empty: Ui) -> None:
    tab = tabs(empty)
    tab.page.goto(f"{empty.base}/runs/20240101-000000-bcdf")
    tab.page.get_by_role("alert").wait_for()
    assert "20240101-000000-bcdf" in tab.page.get_by_role("alert").inner_text()


@pytest.mark.parametrize("whole_link", [False, True])
def test_one_signs_in_with_a_token_and_is_where_the_link_led(
    tabs: Tabs, lived: Lived, whole_link: bool
) -> None:
    tab = tabs(lived.ui, sign_in=False)
    page = tab.open(f"/runs/{lived.failed}?tab=logs")
    field = page.get_by_label("Token or link")
    field.fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    address = lived.ui.address
    field.fill(address if whole_link else address.partition("token=")[2])
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="broken").wait_for()
    assert page.url.endswith(f"/runs/{lived.failed}?tab=logs")


def test_who_may_only_look_is_offered_nothing_else(
    browser: object, tabs: Tabs, tmp_path: Path
) -> None:
    shanty = Shanty(tmp_path / "home", tmp_path)
    run = make_run(shanty.home, 1, State.FAILED, name="old")
    token = shanty("serve", "users", "add", "vic", "--role", "viewer").stdout.strip()
    ui = Ui(shanty, "serve", "--host", "127.0.0.1", "--port", str(free_port()))
    tab = tabs(ui, sign_in=False)
    try:
        tab.page.goto(f"{ui.base}/#token={token}")
        tab.shows("vic (viewer)")
        page = tab.open(f"/runs/{run.id}")
        page.get_by_role("button", name="Copy link").wait_for()
        for name in ("Run again", "Delete", "+ tag"):
            assert not page.get_by_role("button", name=name).count()
        page = tab.open("/new")
        tab.shows("You may look, and start nothing")
        assert not page.get_by_role("button", name="Start the run").count()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Token or link").wait_for()
        tab.open("/")
        page.get_by_label("Token or link").wait_for()
    finally:
        ui.stop()


def test_runs_are_compared(tabs: Tabs, lived: Lived) -> None:
    tab = tabs(lived.ui)
    page = tab.open(f"/compare?run={lived.trained}&run={lived.other}")
    parameters = page.get_by_role("region", name="Table of parameters")
    row = parameters.get_by_role("row", name="--lr 0.1 0.5")
    row.wait_for()
    assert not parameters.get_by_text("workdir").count()  # it is the same
    page.get_by_label("Those that are the same too").check()
    parameters.get_by_text("workdir").wait_for()
    page.get_by_role("img", name="Chart of loss").wait_for()
    label = page.get_by_role("img", name="Chart of loss").get_attribute("aria-label") or ""
    assert "slow-rate: last" in label
    assert "fast-rate: last" in label
    page.get_by_role("button", name="Take fast-rate away").first.click()
    tab.until("other => !location.search.includes(other)", lived.other)


def test_machines_say_who_uses_them(tabs: Tabs, lived: Lived) -> None:
    tab = tabs(lived.ui)
    page = tab.open("/machines")
    page.get_by_role("link", name=lived.on).first.wait_for()
    page.get_by_role("button", name="Run the doctor").click()
    page.get_by_text("Checked this machine").wait_for(timeout=90_000)


def test_the_form_shows_its_command_and_what_is_wrong(tabs: Tabs, lived: Lived) -> None:
    tab = tabs(lived.ui)
    page = tab.open("/new")
    command = page.get_by_label("Equivalent command")
    page.get_by_label("Command", exact=True).fill("train.py --lr 0.3")
    page.get_by_label("Name", exact=True).fill("by-the-form")
    page.get_by_label("Ranks").fill("1")
    page.get_by_label("Time limit").fill("5m")
    command.get_by_text("--name by-the-form").wait_for()
    page.get_by_label("Or on hosts").fill("slurm")
    own = page.get_by_role("region", name="Slurm")
    own.get_by_label("partition").fill("gpu")
    own.get_by_label("exclusive").check()
    command.get_by_text("--partition gpu --exclusive").wait_for()
    page.get_by_label("Or on hosts").fill("")
    own.wait_for(state="detached")
    command.get_by_text("--partition").wait_for(state="detached")
    page.get_by_label("Folder", exact=True).fill("/not/there")
    page.get_by_text("folder not found: /not/there").wait_for()
    assert page.get_by_label("Folder", exact=True).get_attribute("aria-invalid") == "true"
    page.get_by_label("Folder", exact=True).fill(str(lived.shanty.folder))
    page.get_by_text("folder not found").wait_for(state="detached")
    variables = page.get_by_role("group", name="Variables")
    variables.get_by_role("button", name="Add").click()
    page.get_by_label("Name of variable 1").fill("COLOUR")
    page.get_by_label("Value of variable 1").fill("blue")
    command.get_by_text("COLOUR=blue").wait_for()
    page.get_by_role("button", name="Start the run").click()
    tab.until("() => location.pathname.startsWith('/runs/')")
    page.get_by_role("heading", name="by-the-form").wait_for()
    page.locator(".run-under").get_by_text("succeeded").wait_for()
