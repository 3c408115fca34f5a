"""What ranks are busy with, seen from outside; and how it is told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shanty.runtime import platform
from shanty.runtime.diagnosis import activity
from shanty.runtime.diagnosis.run_view import RunView
from shanty.runtime.messages import LookAtActivity, Order, RankActivity
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import State

READS = "import os\nwhile True:\n    open('/proc/self/exe', 'rb').read(1 << 26)\n"
SPINS = "while True:\n    pass\n"
WAITS = "import subprocess, time; subprocess.run(['sleep', '300'])"
IDLES = "import time; time.sleep(300)"
COMPILES = "import subprocess; subprocess.run(['sh', '-c', './ninja 300; true'])"


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Starts Pythons that are ended afterwards, with all that they have started."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(code: str) -> int:
        process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
        processes.append(process)
        return process.pid

    yield start
    for process in processes:
        for child in platform.descendants(process.pid):
            os.kill(child.pid, 9)
        process.kill()
        process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
@pytest.mark.parametrize(
    ("code", "does"),
    [
        (READS, "reading files"),
        (SPINS, "busy"),
        (WAITS, "waiting for sleep"),
        (IDLES, "idle"),
        (COMPILES, "compiling (ninja)"),
    ],
)
def test_what_a_rank_does(started: Any, tmp_path: Path, code: str, does: str) -> None:
    (tmp_path / "ninja").symlink_to("/bin/sleep")
    programs = {("0", 3): {started(code)}}
    seen = activity.ActivitySampler()
    deadline = time.monotonic() + 30
    while (found := [each.does for each in seen.look(programs)]) != [does]:
        assert time.monotonic() < deadline, found
        time.sleep(0.5)  # two looks tell a rate


class Controller(SimpleNamespace):
    def tell(self, order: Order) -> None:
        self.told.append(order)

    def active(self, text: str) -> None:
        self.text = text


def busy(*ranks: tuple[int, str], world: str = "0") -> list[RankActivity]:
    return [RankActivity(world, rank, does) for rank, does in ranks]


def test_a_silent_run_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path / "20260101-000000-bbbb")
    run.create()
    log = run.rank_log(0)
    log.touch()
    view = RunView(State.STARTING, time.time() - 1000, ending=False, worlds={})
    controller = Controller(told=[], text="")
    watch = activity.ActivityWatch(run, controller)
    watch.tick(view, 100.0)
    assert controller.told == []
    os.utime(log, (time.time() - 16,) * 2)
    watch.tick(view, 101.0)  # not yet due
    assert controller.told == []
    watch.tick(view, 105.0)
    watch.tick(view, 110.0)
    assert controller.told == [LookAtActivity(afresh=True), LookAtActivity(afresh=False)]
    watch.hear("a", busy((0, ""), (1, "idle")))
    assert controller.text == ""
    watch.hear("a", busy((0, "idle"), (1, "idle")))
    assert controller.text == "idle"
    watch.hear("b", busy((2, "compiling (nvcc)")))
    assert controller.text == "rank 2 compiling (nvcc), ranks 0, 1 idle"
    # Two worlds of one host, which number their ranks alike.
    watch.hear("b", [*busy((0, "compiling (nvcc)")), *busy((0, "idle"), world="9")])
    assert controller.text == "rank 0 compiling (nvcc), ranks 0, 1 idle"
    log.write_text("1.0 1 ready\n")
    watch.tick(view, 115.0)
    assert (controller.text, len(controller.told)) == ("", 2)
    watch.hear("b", busy((2, "idle")))  # it was on its way
    assert controller.text == ""
