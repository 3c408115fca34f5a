"""What is done beside an agent's loop."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from runs import wait_for
from shanty.runtime.controller import start
from shanty.runtime.node import node_agent
from shanty.runtime.node.background import Background


def fail() -> None:
    raise ValueError("as a look that meets what nobody has thought of")


def test_one_thing_after_the_other_and_none_is_lost_by_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    background, go = Background(), threading.Event()
    done: list[object] = []
    background.do(lambda: done.append(go.wait(10)))
    background.do(fail)
    background.do(lambda: done.append("last"))
    assert not background.is_idle
    assert done == []
    go.set()
    wait_for(lambda: (not background.is_idle and len(done) == 1) or background.is_idle)
    background.do(lambda: done.append("after"))
    wait_for(lambda: background.is_idle)
    assert done == [True, "last", "after"]


def test_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    background = Background()
    done: list[object] = []
    background.do(lambda: done.append(threading.current_thread()))
    assert done == [threading.main_thread()]
    assert background.is_idle


LOADS = """
import sys, time
from shanty.runtime.node import background
background._STARTED = 0
names = sys.argv[1].split()
background.load(names)
while not set(names) <= set(sys.modules):
    time.sleep(0.01)
"""


def test_what_is_needed_later_is_loaded_before() -> None:
    names = " ".join((*node_agent.LATER, *start.LATER))
    subprocess.run([sys.executable, "-c", LOADS, names], check=True, timeout=60)
