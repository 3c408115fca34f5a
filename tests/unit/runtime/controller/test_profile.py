"""A run's profile, put together of what its parts have written."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from chrome_trace import read, rows, spans
from shanty.runtime import platform
from shanty.runtime.controller import profile
from shanty.runtime.controller.worker_link import ClockOffset
from shanty.runtime.rundir import RunDir, append_line


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run of two hosts that began 100 s ago: its ranks started after 1 s, and took 90."""
    found = RunDir(tmp_path)
    found.profile_parts.mkdir(parents=True)
    now = time.time()

    def event(age: float, kind: str, **more: Any) -> None:
        append_line(found.events, {"time": now - age, "event": kind, **more})

    status = {"boot": platform.boot_id(), "created": now - 101}
    event(100, "state", status={**status, "state": "starting"})
    event(99.9, "launching", hosts=2)
    for rank, host in enumerate("ab"):
        for age, kind in ((99, "started"), (98, "joined"), (9, "exited")):
            report = {"rank": rank, "host": host, "code": 0}
            event(age, f"rank-{kind}", report=report)
    event(98, "state", status={**status, "state": "running"})
    append_line(found.stalls, {"time": now - 50, "quiet": 10.0, "what": "nothing moves"})
    return found


def part(run: RunDir, rank: int, host: str, age: float, clock: float, number: int = 1) -> Path:
    """A timeline that began so long ago, with one allreduce in its second second.

    clock: how far that host's monotonic clock is ahead of this one's.
    """
    began = int((time.monotonic() - age + clock) * 1e9)
    about = {"name": "cycles", "clock_in_nanos": began, "rank": rank, "host": host}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": about},
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": "allreduce.w"}},
        {"ph": "M", "name": "process_sort_index", "pid": 1, "tid": 1, "args": {"sort_index": 1}},
        {"ph": "B", "name": "ALLREDUCE", "pid": 1, "tid": 1, "ts": 1_000_000},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 2_000_000},
    ]
    path = run.profile_parts / f"rank-{rank}-{number}.json"
    path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")
    return path


def clock(ahead: float) -> ClockOffset:
    """The clock of a host that is so far ahead."""
    found = ClockOffset()
    found.hear(time.monotonic() + ahead, time.monotonic())
    return found


def near(found: float, wanted: float) -> bool:
    """Microseconds of the trace against seconds, within what a busy machine takes."""
    return abs(found / 1e6 - wanted) < 0.5


def test_all_ranks_on_one_clock(run: RunDir) -> None:
    """The second host's clock is an hour ahead, and its trace is beside the first one's."""
    part(run, 0, "a", 60.0, 0.0)
    part(run, 1, "b", 60.0, 3600.0)
    profile.write(run, "a", {"b": clock(3600.0)})
    found = rows(read(run.profile))
    assert list(found) == ["launch", "rank 0 on a", "rank 1 on b"]
    for name in ("rank 0 on a", "rank 1 on b"):
        ((since, until),) = spans(found[name]["allreduce.w"], "ALLREDUCE")
        assert near(since, 101 - 60 + 1)
        assert until - since == 1_000_000
        ((since, until),) = spans(found[name]["process"], "program")
        assert near(since, 2) and near(until, 92)
        joined = [e for e in found[name]["process"] if e["name"] == "joined"]
        assert near(joined[0]["ts"], 3)
    assert not run.profile_parts.exists()


def test_the_launch(run: RunDir) -> None:
    profile.write(run, "a", {})
    launch = rows(read(run.profile))["launch"]
    phases = {
        name: spans(launch["phases"], name)[0] for name in ("submitted", "starting", "running")
    }
    assert phases["submitted"][0] == 0
    assert near(phases["submitted"][1], 1) and near(phases["starting"][1], 3)
    assert near(phases["running"][1], 101)
    ((since, until),) = spans(launch["stalls"], "stall")
    assert near(since, 41) and near(until, 51)
    assert [event["name"] for event in launch["events"]] == ["launching"]


def test_a_run_that_was_submitted_elsewhere_begins_with_its_start(run: RunDir) -> None:
    text = run.events.read_text().replace(platform.boot_id(), "another")
    run.events.write_text(text)
    profile.write(run, "a", {})
    phases = rows(read(run.profile))["launch"]["phases"]
    assert [event["name"] for event in phases] == ["starting", "running"]
    assert phases[0]["ts"] == 0


def test_several_timelines_of_a_rank_are_one_row(run: RunDir) -> None:
    part(run, 0, "a", 60.0, 0.0)
    part(run, 0, "a", 50.0, 0.0, number=2)
    profile.write(run, "a", {})
    assert len(spans(rows(read(run.profile))["rank 0 on a"]["allreduce.w"], "ALLREDUCE")) == 2


def test_a_host_of_an_attempt_before(run: RunDir) -> None:
    """Its clock is not known, so its tensors would be anywhere."""
    part(run, 1, "b", 60.0, 3600.0)
    profile.write(run, "a", {})
    assert list(rows(read(run.profile))["rank 1 on b"]) == ["process"]


def test_damage_is_passed_over(run: RunDir) -> None:
    """A part that was cut in a line, one that is none, and one without a beginning."""
    cut = part(run, 0, "a", 60.0, 0.0)
    cut.write_bytes(cut.read_bytes()[:-20])
    (run.profile_parts / "rank-1-1.json").write_text("[\n{]\n")
    (run.profile_parts / "rank-1-2.json").write_text("")
    with run.events.open("a") as file:
        file.write('{"time": 1, "ev')
    profile.write(run, "a", {})
    found = rows(read(run.profile))
    assert [event["ph"] for event in found["rank 0 on a"]["allreduce.w"]] == ["B"]


def test_what_takes_too_long_is_cut_off(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace can be read, and the parts stay."""
    path = part(run, 0, "a", 60.0, 0.0)
    monkeypatch.setattr(profile, "PATIENCE", -1.0)
    profile.write(run, "a", {})
    process = rows(read(run.profile))["rank 0 on a"]["process"]
    assert [e["name"] for e in process] == ["program", "joined", "cut off here"]
    assert path.exists()


def test_it_never_fails(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    run.profile.mkdir()
    profile.write(run, "a", {})
    assert "no profile: " in capsys.readouterr().out
    run.events.write_text('{"time": "soon", "event": "state", "status": 5}\n')
    run.profile.rmdir()
    profile.write(run, "a", {})
    assert not run.profile.exists()
    assert [path.name for path in run.artifacts.iterdir()] == ["profile"]
