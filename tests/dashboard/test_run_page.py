"""The page of a run: why it failed, logs, metrics, stacks, artifacts, and what can be done."""

from __future__ import annotations

from collections.abc import Callable

from browsers import Lived, Tab, run_until
from runs import wait_for
from shanty.runtime.rundir import RunDir, read_json

Tabs = Callable[..., Tab]
# The numbers that the lines in sight have, in their order.
NUMBERS = (
    "[...document.querySelectorAll('.line')]"
    ".map(line => +/(?:line|step) (\\d+)/.exec(line.textContent)?.[1])"
)
FOLLOWS = """() => {
    const log = document.querySelector('.log')
    return log.scrollHeight - log.scrollTop - log.clientHeight < 40
}"""
HALF = """rail => {
    rail.value = rail.max / 2
    rail.dispatchEvent(new Event('change', {bubbles: true}))
}"""


def state(lived: Lived, run: str) -> object:
    return (read_json(RunDir(lived.shanty.home / "runs" / run).status) or {}).get("state")


def test_a_failure_comes_first_and_its_rank_is_marked(tabs: Tabs, lived: Lived) -> None:
    tab = tabs(lived.ui)
    page = tab.open(f"/runs/{lived.failed}")
    cause = page.get_by_role("region", name="Why it ended")
    cause.get_by_text("KeyError: 'validation'").first.wait_for()
    marked = page.get_by_role("button", name="rank 1, failed, the first that failed")
    marked.click()
    tab.until("() => location.search.includes('tab=logs') && location.search.includes('ranks=1')")
    page.get_by_role("region", name="Log of rank 1", exact=True).get_by_text(
        "KeyError"
    ).first.wait_for()


def test_output_is_never_markup(tabs: Tabs, lived: Lived) -> None:
    page = tabs(lived.ui).open(f"/runs/{lived.failed}?tab=logs&ranks=0")
    line = page.locator(".line", has_text="<script>").first
    line.wait_for()
    assert "red <img src=x onerror=alert(1)> <script>alert(1)</script>" in line.inner_text()
    assert line.locator(".f1").inner_text() == "red"
    assert not page.locator(".log img, .log script").count()


def test_logs_are_live_and_side_by_side(tabs: Tabs, lived: Lived) -> None:
    tab = tabs(lived.ui)
    page = tab.open(f"/runs/{lived.on}?tab=logs&ranks=0,1")
    for rank in (0, 1):
        page.locator(f"[data-rank='{rank}'] .line", has_text=f"of rank {rank}").last.wait_for()
    newest = f"() => Math.max(...{NUMBERS}.filter(Number.isFinite))"
    seen = page.evaluate(newest)
    tab.until(f"seen => ({newest})() > seen + 5", seen)
    tab.until(FOLLOWS)
    # Who scrolls up stays where that is, whatever is printed.
    page.locator(".log").first.evaluate("log => { log.scrollTop = 0 }")
    page.locator("[data-rank='0'] [aria-pressed=false]").wait_for()
    page.get_by_role("button", name="Close the log of rank 1").click()
    tab.until("() => document.querySelectorAll('.pane').length === 1")


def test_a_large_log_is_seen_by_windows(tabs: Tabs, lived: Lived) -> None:
    count = 300_000
    log = RunDir(lived.shanty.home / "runs" / lived.other).rank_log(0)
    kept = log.read_bytes()
    line = "1700000000.{0:06d} 1 line {0} of a log that nobody would read from begin to end\n"
    log.write_text("".join(line.format(number) for number in range(count)))
    try:
        tab = tabs(lived.ui)
        page = tab.open(f"/runs/{lived.other}?tab=logs&ranks=0")
        page.locator(".line", has_text=f"line {count - 1} ").wait_for()
        first = f"() => {NUMBERS}[0]"
        whole = f"() => {NUMBERS}.every((x, i, all) => !i || x === all[i - 1] + 1)"
        for _ in range(12):  # back by scrolling, beyond what was loaded at first
            before = page.evaluate(first)
            page.locator(".log").evaluate("log => log.scrollBy(0, -4000)")
            tab.until(f"before => ({first})() < before", before)
            assert page.evaluate(whole)
        assert page.locator(".line").count() < 200
        page.get_by_label("Find in the log of rank 0").fill("line 7777 ")
        page.keyboard.press("Enter")
        page.locator(".line.hit", has_text="line 7777 ").wait_for()
        page.locator("mark", has_text="line 7777 ").wait_for()
        page.get_by_text("1 of 1", exact=True).wait_for()
        page.locator(".rail").evaluate(HALF)
        tab.until(f"half => Math.abs(({first})() - half) < 9000", count // 2)
        page.get_by_role("button", name="To the end").click()
        page.locator(".line", has_text=f"line {count - 1} ").wait_for()
    finally:
        log.write_bytes(kept)


def test_metrics_are_charts_and_go_on(tabs: Tabs, lived: Lived) -> None:
    tab = tabs(lived.ui)
    page = tab.open(f"/runs/{lived.on}?tab=metrics")
    chart = page.get_by_role("img", name="Chart of loss")
    chart.wait_for()
    assert chart.locator("canvas").count() == 1
    before = chart.get_attribute("aria-label")
    tab.until("before => document.querySelector('.plot').ariaLabel !== before", before)
    page.get_by_label("Beside it").select_option(lived.trained)
    tab.until("() => document.querySelector('.plot').ariaLabel.includes('live: last')")
    assert lived.trained in page.url


def test_a_stall_is_said_and_stacks_are_a_click_away(tabs: Tabs, lived: Lived) -> None:
    page = tabs(lived.ui).open(f"/runs/{lived.stalled}")
    page.get_by_role("region", name="Stall").get_by_role("button", name="Show the stacks").click()
    page.get_by_role("button", name="Take the stacks of all ranks").click()
    page.get_by_text("stalls.py").first.wait_for(timeout=40_000)
    assert page.locator(".stack-text").count() == 2  # they stand at different lines


def test_artifacts_are_looked_at_and_downloaded(tabs: Tabs, lived: Lived) -> None:
    tab = tabs(lived.ui)
    page = tab.open(f"/runs/{lived.trained}?tab=artifacts")
    page.get_by_role("button", name="notes.txt").click()
    page.get_by_label("Text of notes.txt").get_by_text(
        "a note <script>alert(1)</script>"
    ).wait_for()
    page.get_by_role("button", name="table.csv").click()
    page.get_by_role("columnheader", name="epoch").wait_for()
    page.get_by_role("button", name="plots/").click()
    page.get_by_role("button", name="loss.png").click()
    page.get_by_role("img", name="plots/loss.png").wait_for()
    tab.until("() => document.querySelector('.look img').naturalWidth === 120")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download loss.png").click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG")


def test_the_command_is_exact_and_a_run_is_repeated_with_a_change(tabs: Tabs, lived: Lived) -> None:
    tab = tabs(lived.ui)
    page = tab.open(f"/runs/{lived.trained}")
    command = page.get_by_label("Command of this run").inner_text()
    assert command.startswith("shanty run ")
    assert command.endswith("train.py --lr 0.1")
    page.get_by_role("link", name="Change and run").click()
    field = page.get_by_label("Command", exact=True)
    field.wait_for()
    assert field.input_value() == "train.py --lr 0.1"
    field.fill("train.py --lr 0.2")
    page.get_by_label("Equivalent command").get_by_text("--lr 0.2").wait_for()
    page.get_by_role("button", name="Start the run").click()
    tab.until("() => location.pathname.startsWith('/runs/')")
    page.locator(".run-under").get_by_text("succeeded").wait_for()
    run = page.url.rpartition("/")[2]
    job = read_json(RunDir(lived.shanty.home / "runs" / run).job)
    assert job is not None
    assert job["command"]["args"] == ["--lr", "0.2"]
    assert job["tags"] == ["sweep"]


def test_a_run_is_tagged_stopped_and_deleted(tabs: Tabs, lived: Lived) -> None:
    run = run_until(
        lived.shanty, "running", "-n", "1", "--oversubscribe", "--name", "brief", "goes_on.py"
    )
    page = tabs(lived.ui).open(f"/runs/{run}")
    page.get_by_role("button", name="+ tag").click()
    page.get_by_label("New tag").fill("seen")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Remove tag seen").wait_for()
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert state(lived, run) == "running"
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    page.locator(".run-under").get_by_text("stopped").wait_for()
    wait_for(lambda: state(lived, run) == "stopped")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_role("heading", name="Runs", exact=True).wait_for()
    assert not (lived.shanty.home / "runs" / run).exists()
