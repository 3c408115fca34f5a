"""Tests that failed, and passed when they were run again: listed at the end, and in .ci/flaky.txt.

pytest-rerunfailures runs them again. `./dev test` asks for one retry a test, and eight in all.
"""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest


def flaky(terminal: pytest.TerminalReporter) -> dict[str, str]:
    """The tests that passed on a retry, each with why it had failed."""
    failed = {
        report.nodeid for kind in ("failed", "error") for report in terminal.stats.get(kind, [])
    }
    found: dict[str, str] = {}
    for report in terminal.stats.get("rerun", []):
        if report.nodeid not in failed:
            found.setdefault(report.nodeid, _reason(report))
    return found


def show(terminal: pytest.TerminalReporter, root: Path) -> None:
    """Write the section, and a line for each test into the file."""
    found = flaky(terminal)
    if not found:
        return
    terminal.section("flaky: failed, then passed", yellow=True)
    commit, date = _commit(root), datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    path = root / ".ci/flaky.txt"
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for nodeid, reason in found.items():
            terminal.write_line(f"{nodeid}: {reason}")
            file.write(f"{date} {commit} {nodeid}: {reason}\n")


def _reason(report: pytest.TestReport) -> str:
    """The first line of the message, without what follows of it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else report.longreprtext
    return f"{report.when}: {text.strip().partition(chr(10))[0]}"


def _commit(root: Path) -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True
    )
    return done.stdout.strip() or "unknown"
