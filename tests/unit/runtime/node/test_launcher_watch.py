"""Ranks whose launcher is gone are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runs import wait_for
from shanty.runtime.node.launcher_watch import LauncherWatch

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")


@pytest.mark.parametrize("name", ["prted", "bash"])
def test_a_rank_that_outlives_what_has_started_it(tmp_path: Path, name: str) -> None:
    """It counts only where that was a launcher."""
    (tmp_path / name).symlink_to("/bin/sh")
    daemon = subprocess.Popen(
        [tmp_path / name, "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    )
    with daemon:
        assert daemon.stdout is not None
        rank = int(daemon.stdout.readline())
        try:
            watch = LauncherWatch()
            watch.note(rank)
            assert watch.lost() == []
            daemon.kill()
            daemon.wait()
            expected = [(rank, f"prted (pid {daemon.pid})")] if name == "prted" else []
            found: list[tuple[int, str]] = []
            if expected:
                wait_for(lambda: found.extend(watch.lost()) or found)
            assert found == expected
            assert watch.lost() == []  # once
        finally:
            os.kill(rank, 9)


def test_a_rank_that_ends_before_its_launcher() -> None:
    watch = LauncherWatch()
    watch.note(os.getpid())  # whose parent is no launcher
    assert watch.ended(os.getpid(), orphaned=True) == ""
