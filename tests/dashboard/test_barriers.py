"""Nobody is kept out: axe finds nothing grave on any page, in any theme, at any width."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from browsers import NARROW, WIDE, Lived, Tab, Ui

LOOKS = {
    "light": {},
    "dark": {"dark": True},
    "narrow": {"size": NARROW},
}
TABS = ("overview", "logs", "metrics", "resources", "stacks", "artifacts", "environment", "events")


@pytest.mark.parametrize("look", LOOKS)
def test_pages_with_runs(tabs: Callable[..., Tab], lived: Lived, look: str) -> None:
    tab = tabs(lived.ui, **LOOKS[look])
    paths = [
        "/",
        *(f"/runs/{lived.on}?tab={each}" for each in TABS),
        f"/runs/{lived.on}?tab=logs&ranks=0,1",
        f"/runs/{lived.failed}",
        f"/runs/{lived.stalled}",
        f"/runs/{lived.trained}?tab=artifacts&file=table.csv",
        f"/runs/{lived.trained}?tab=metrics&with={lived.other}",
        f"/compare?run={lived.trained}&run={lived.other}",
        "/machines",
        "/new",
        f"/new?from={lived.trained}",
    ]
    for path in paths:
        tab.open(path)
        tab.page.wait_for_load_state("load")
        tab.page.locator(".waiting").wait_for(state="detached")
        assert tab.barriers() == [], path
        assert tab.beyond() <= 0, path


@pytest.mark.parametrize("look", LOOKS)
def test_pages_of_an_empty_home(tabs: Callable[..., Tab], empty: Ui, look: str) -> None:
    tab = tabs(empty, **LOOKS[look])
    for path in ("/", "/compare", "/machines", "/new", "/nowhere"):
        tab.open(path)
        tab.page.locator(".waiting").wait_for(state="detached")
        assert tab.barriers() == [], path
        assert tab.beyond() <= 0, path


@pytest.mark.parametrize("look", LOOKS)
def test_signing_in_menus_and_questions(tabs: Callable[..., Tab], lived: Lived, look: str) -> None:
    tab = tabs(lived.ui, sign_in=False, **LOOKS[look])
    tab.open("/")
    assert tab.barriers() == []
    tab.sign_in()
    tab.page.locator("summary", has_text="Tags").click()
    tab.page.keyboard.press("j")
    assert tab.barriers() == []
    tab.open(f"/runs/{lived.on}")
    tab.page.get_by_role("button", name="Kill").click()
    tab.page.get_by_role("dialog").wait_for()
    assert tab.barriers() == []


def test_the_theme_that_is_chosen_stays(tabs: Callable[..., Tab], empty: Ui) -> None:
    tab = tabs(empty, size=WIDE)
    ground = "() => getComputedStyle(document.documentElement).backgroundColor"
    light = tab.page.evaluate(ground)
    tab.page.get_by_role("button", name="Switch to dark colours").click()
    dark = tab.page.evaluate(ground)
    assert dark != light
    tab.open("/machines")
    assert tab.page.evaluate(ground) == dark
