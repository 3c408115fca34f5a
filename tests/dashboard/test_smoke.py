"""The one test of the pages that is always run: a run of the home is shown, without an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from browsers import Tab, Ui
from command_line import make_run
from runs import Shanty
from shanty.runtime.spec import Failure, State


def test_a_failed_run_is_shown_with_its_cause(
    browser: object, tabs: Callable[..., Tab], tmp_path: Path
) -> None:
    failure = Failure(
        "rank 3 on gpu1 ended with exit code 1", "CUDA out of memory", "a smaller batch"
    )
    make_run(tmp_path / "home", 1, State.FAILED, name="digits", failure=failure)
    ui = Ui(Shanty(tmp_path / "home", tmp_path))
    try:
        page = tabs(ui).page
        assert "token" not in page.url
        page.get_by_role("link", name="digits").click()
        cause = page.get_by_role("region", name="Why it ended")
        cause.get_by_text("CUDA out of memory").wait_for()
        assert "a smaller batch" in cause.inner_text()
    finally:
        ui.stop()
