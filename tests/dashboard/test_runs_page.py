"""The table of runs: very many of them, found, sorted, chosen, and live."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from browsers import MANY, Lived, Tab, Ui, run_until
from runs import wait_for

Tabs = Callable[..., Tab]
TOTAL = "text => document.querySelector('.total')?.textContent === text"
SETTLED = "() => !document.querySelector('.table-box.stale, .ghost')"


@pytest.fixture
def tab(tabs: Tabs, many: Ui) -> Tab:
    """The table of very many runs."""
    found = tabs(many)
    found.page.set_default_timeout(60_000)  # until all of them are in the index
    found.until(TOTAL, f"{MANY:,} runs")
    found.page.set_default_timeout(20_000)
    return found


def names(tab: Tab) -> list[str]:
    """The names of the rows that are there, in their order."""
    tab.until(SETTLED)
    found: list[str] = tab.page.locator(".table-rows .row").evaluate_all(
        "rows => rows.sort((a, b) => a.ariaRowIndex - b.ariaRowIndex)"
        ".map(row => row.querySelector('.run-name')?.textContent)"
    )
    return found


def test_only_rows_in_sight_are_in_the_page(tab: Tab) -> None:
    box = tab.page.locator(".table-box")
    assert tab.page.get_by_role("table", name="Runs").get_attribute("aria-rowcount") == str(
        MANY + 1
    )
    for share in (0, 0.5, 1):
        box.evaluate("(box, share) => { box.scrollTop = share * box.scrollHeight }", share)
        tab.until(SETTLED)
        assert 10 < tab.page.locator(".table-rows .row").count() < 100
    tab.page.get_by_text("-0", exact=False).last.wait_for()
    assert names(tab)[-1].endswith("-0")  # the oldest


def test_search_narrows_while_one_types_and_is_in_the_link(tab: Tab, tabs: Tabs) -> None:
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("gpt2-small-77", delay=20)
    tab.until("() => location.search === '?search=gpt2-small-77'")
    tab.until("() => !document.querySelector('.total').textContent.startsWith('10,000')")
    found = names(tab)
    assert found
    assert all(name.startswith("gpt2-small-77") for name in found)
    other = tabs(tab.ui)
    other.open("/?search=gpt2-small-77")
    other.page.get_by_role("link", name=found[0], exact=True).wait_for()
    assert names(other) == found


def test_filters_and_order_are_in_the_link(tab: Tab) -> None:
    tab.page.get_by_role("button", name="failed").click()
    tab.page.locator("summary", has_text="Tags").click()
    tab.page.get_by_role("checkbox", name="nightly").check()
    tab.page.keyboard.press("Escape")
    tab.page.get_by_role("button", name="Ranks").click()
    tab.until("() => location.search.includes('sort=ranks')")
    assert "state=failed" in tab.page.url
    assert "tag=nightly" in tab.page.url
    tab.until(SETTLED)
    states = set(tab.page.locator(".table-rows .badge").all_inner_texts())
    assert {state.strip() for state in states} == {"failed"}
    assert set(tab.page.locator(".table-rows .c-ranks").all_inner_texts()) == {"16"}
    tab.page.get_by_role("button", name="Clear filters").click()
    tab.until(TOTAL, f"{MANY:,} runs")


def test_columns_are_chosen_and_kept(tab: Tab) -> None:
    tab.page.locator("summary", has_text="Columns").click()
    tab.page.get_by_role("checkbox", name="Owner").check()
    tab.page.get_by_role("checkbox", name="Command").uncheck()
    tab.open("/")
    heads = tab.page.get_by_role("columnheader")
    heads.get_by_text("Owner").wait_for()
    assert not heads.get_by_text("Command").count()


def test_the_keyboard_alone_is_enough(tab: Tab) -> None:
    press = tab.page.keyboard.press
    tab.page.locator(".run-name").first.wait_for()
    first = names(tab)[:3]
    for key in ("j", "x", "j", "j", "k", "x"):
        press(key)
    chosen = tab.page.locator(".row.chosen .run-name")
    assert chosen.all_inner_texts() == first[:2]
    press("c")
    tab.until("() => location.pathname === '/compare'")
    tab.page.go_back()
    tab.page.locator(".run-name").first.wait_for()
    press("j")
    press("Enter")
    tab.until("() => location.pathname.startsWith('/runs/')")
    for keys, path in (("gm", "/machines"), ("n", "/new"), ("gr", "/")):
        for key in keys:
            press(key)
        tab.until("path => location.pathname === path", path)
    press("?")
    tab.page.get_by_role("dialog", name="Keys").wait_for()
    press("Escape")
    tab.page.get_by_role("dialog").wait_for(state="detached")


def test_a_new_run_appears_and_a_stopped_one_changes_by_itself(tabs: Tabs, lived: Lived) -> None:
    tab = tabs(lived.ui)
    run = run_until(
        lived.shanty, "running", "-n", "1", "--oversubscribe", "--name", "comes", "goes_on.py"
    )
    row = tab.page.locator(f"[data-run='{run}']")
    row.get_by_text("running").wait_for()
    row.get_by_role("checkbox").check()
    tab.page.get_by_role("button", name="Stop 1").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    row.get_by_text("stopped").wait_for()
    row.get_by_role("checkbox").check()
    tab.page.get_by_role("button", name="Delete 1").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    row.wait_for(state="detached")
    wait_for(lambda: not (lived.shanty.home / "runs" / run).exists())
