"""Logs by windows, searched in pieces, and followed by streams that keep nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import LONG_AGO, make_run
from dashboards import Client, Served, served
from runs import wait_for
from shanty.dashboard import log_search, logs
from shanty.dashboard.errors import Refused
from shanty.runtime.rundir import RunDir, append_line, write_json
from shanty.runtime.spec import State, Status

LINES = [f"line {number} {'é' * (number % 40)}" for number in range(3000)]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("logs") / "home") as server:
        yield server


@pytest.fixture(scope="module")
def me(up: Served) -> Client:
    return up.admin


def framed(*lines: str, at: float = LONG_AGO) -> str:
    return "".join(f"{at + number:.6f} {1 + number % 2} {line}\n" for number, line in
                   enumerate(lines))  # fmt: skip


@pytest.fixture(scope="module")
def run(up: Served) -> RunDir:
    run = make_run(up.here.home, 1)
    run.rank_log(0).write_text(framed(*LINES))
    up.knows(1)
    return run


def window(me: Client, run: RunDir, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = me.json(f"/runs/{run.id}/logs/0", **query)
    return found


def test_windows_forward_have_every_line_once(me: Client, run: RunDir) -> None:
    at, seen = 0, []
    while True:
        found = window(me, run, at=at, bytes=20_000)
        assert found["end"] - found["begin"] <= 20_000
        if not found["lines"]:
            break
        seen += found["lines"]
        at = found["end"]
    assert [line["text"] for line in seen] == LINES
    assert at == found["size"] == run.rank_log(0).stat().st_size
    assert [line["stream"] for line in seen[:2]] == ["stdout", "stderr"]
    assert seen[1]["time"] == LONG_AGO + 1


def test_windows_back_have_every_line_once(me: Client, run: RunDir) -> None:
    at, seen = "end", []
    while at != 0:
        found = window(me, run, at=at, direction="back", bytes=20_000)
        seen = found["lines"] + seen
        at = found["begin"]
    assert [line["text"] for line in seen] == LINES


def test_a_window_from_the_middle_of_a_line_begins_at_the_next(me: Client, run: RunDir) -> None:
    first = window(me, run, at=0, bytes=4096)["lines"]
    found = window(me, run, at=first[3]["offset"] + 2, direction="forward", bytes=4096)
    assert found["lines"][0] == first[4]
    exact = window(me, run, at=first[3]["offset"], direction="forward", bytes=4096)
    assert exact["lines"][0] == first[3]
    only = window(me, run, at=0, bytes=4096, stream="stderr")["lines"]
    assert {line["stream"] for line in only} == {"stderr"}


def test_a_line_that_is_longer_than_the_window(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(framed("a", "x" * 5000, "b"))
    first = logs.window(path, 0, back=False, length=1000)
    assert [line.text for line in first.lines] == ["a"]
    long = logs.window(path, first.end, back=False, length=1000)
    assert (long.lines[0].text[:5], long.lines[0].whole) == ("xxxxx", False)
    at, texts = long.end, []
    for _ in range(10):
        found = logs.window(path, at, back=False, length=1000)
        texts += [line.text for line in found.lines]
        assert found.end > at or at == found.size
        at = found.end
    assert texts == ["b"]
    at, texts = logs.size_of(path), []
    while at:
        found = logs.window(path, at, back=True, length=1000)
        texts = [line.text[:1] for line in found.lines] + texts
        assert found.begin < at
        at = found.begin
    assert texts == ["a", "x", "b"]


def test_a_line_that_is_being_written_comes_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("1.0 1 a\n1.0 1 hal")
    found = logs.window(path, 0, back=False, length=1000)
    assert ([line.text for line in found.lines], found.end) == (["a"], 8)
    with path.open("a") as file:
        file.write("f\n")
    (line,) = logs.window(path, found.end, back=False, length=1000).lines
    assert line.text == "half"
    assert logs.window(tmp_path / "none", None, back=True, length=100).lines == []


def test_a_window_reads_no_more_than_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_text(framed(*LINES))
    asked: list[int] = []
    pread = logs.os.pread
    monkeypatch.setattr(
        logs.os, "pread", lambda file, size, at: asked.append(size) or pread(file, size, at)
    )
    for at, back in ((0, False), (5000, False), (None, True), (9000, True)):
        logs.window(path, at, back=back, length=2000)
    assert max(asked) <= 2001
    assert len(asked) == 4


@pytest.mark.parametrize(
    ("query", "more", "numbers"),
    [
        ("line 2999", {}, [2999]),
        ("LINE 2999", {}, [2999]),
        ("LINE 2999", {"case": True}, []),
        ("line 29.9 ", {"regex": True, "limit": 3}, [2909, 2919, 2929]),
        ("É" * 39, {"limit": 1}, [39]),
        ("1700000", {}, []),  # what stands before the text is not searched
    ],
)
def test_search(me: Client, run: RunDir, query: str, more: dict, numbers: list[int]) -> None:
    found = me.json(f"/runs/{run.id}/logs/0/search", q=query, **more)
    assert [int(match["text"].split()[1]) for match in found["matches"]] == numbers
    for match in found["matches"]:
        (line, *_) = window(me, run, at=match["offset"], bytes=256)["lines"]
        assert line["text"] == match["text"]


def test_a_search_goes_on_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(framed(*LINES) + framed("y" * (3 << 20)) + framed("line last"))
    words = {"limit": 1000, "regex": False, "case": False, "piece": 10_000}
    at: int | None = 0
    found, calls = [], 0
    while at is not None:
        part = log_search.search(path, "line", start=at, **words)
        found += part["matches"]
        assert part["next"] is None or part["next"] > at
        at, calls = part["next"], calls + 1
    assert len(found) == len(LINES) + 1
    assert calls > 3


def test_an_expression_that_takes_for_ever_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_text(framed("a" * 60))
    monkeypatch.setattr(log_search, "_PATIENCE", 1.0)
    with pytest.raises(Refused, match="took too long"):
        log_search.search(path, "(a+)+$b", start=0, limit=1, regex=True, case=True)
    with pytest.raises(Refused, match="invalid regular expression"):
        log_search.search(path, "(", start=0, limit=1, regex=True, case=True)


def test_the_text_as_it_was_written(me: Client, run: RunDir) -> None:
    answer = me.get(f"/api/v1/runs/{run.id}/logs/0/download")
    assert answer.text == "".join(f"{line}\n" for line in LINES)
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("rank", ["9999999999", "-1", "status", "²", "0%00", "1.log"])
def test_no_other_file_is_read_as_a_log(me: Client, run: RunDir, rank: str) -> None:
    assert me.get(f"/api/v1/runs/{run.id}/logs/{rank}").status_code == 404


def test_attempts_and_the_agents_log(up: Served, me: Client) -> None:
    run = make_run(up.here.home, 2)
    second = RunDir(run.path, 2)
    second.create_attempt()
    run.rank_log(0).write_text(framed("first"))
    second.rank_log(0).write_text(framed("second"))
    run.agent_log.write_text("plain words\n")
    assert window(me, run)["lines"][0]["text"] == "second"
    assert window(me, run, attempt=1)["lines"][0]["text"] == "first"
    assert me.get(f"/api/v1/runs/{run.id}/logs/0", attempt=3).status_code == 404
    found = me.json(f"/runs/{run.id}/logs/agent")
    assert found["lines"][0] == {
        "offset": 0, "time": None, "stream": "stderr", "text": "plain words", "whole": True,
    }  # fmt: skip


# ------------------------------------------------------------------------------------- streams


def test_what_is_written_is_sent_in_its_order(up: Served, me: Client) -> None:
    run = make_run(up.here.home, 3, State.RUNNING)
    log = run.rank_log(0)
    log.write_text(framed("old", "kept"))
    start = len(framed("old"))
    with me.stream(f"/runs/{run.id}/stream?ranks=0,launcher&from=0:{start}") as events:
        name, data = next(events)
        assert (name, [line["text"] for line in data["lines"]]) == ("log", ["kept"])
        with log.open("a") as file:
            file.write(framed("<b>new</b> \033[31m"))
        name, data = next(each for each in events if each[0] == "log")
        assert [line["text"] for line in data["lines"]] == ["<b>new</b> \033[31m"]
        assert data["end"] == log.stat().st_size
        append_line(run.metrics, {"time": 1, "rank": 0, "loss": 0.5})
        name, data = next(each for each in events if each[0] == "metrics")
        assert data == {"values": {"loss": 0.5}}
        write_json(run.progress, {"done": 1, "total": 2, "label": "", "seconds": 1})
        name, data = next(each for each in events if each[0] == "progress")
        assert data["done"] == 1
        write_json(run.status, Status(State.FAILED, 2, created=LONG_AGO, ended=2.0).to_json())
        name, data = next(each for each in events if each[0] == "status")
        while data["state"] != "failed":
            name, data = next(each for each in events if each[0] == "status")


def test_who_is_far_behind_goes_on_at_the_end(up: Served, me: Client) -> None:
    run = make_run(up.here.home, 4, State.RUNNING)
    log = run.rank_log(0)
    log.write_text(framed("x" * 1000) * 3000)
    with me.stream(f"/runs/{run.id}/stream?ranks=0&from=0:0") as events:
        size = log.stat().st_size
        assert next(events) == ("behind", {"rank": 0, "size": size})
        name, data = next(events)
        assert (name, data["end"], len(data["lines"])) == ("log", size, 16)
        with log.open("a") as file:
            file.write(framed("now"))
        _, data = next(each for each in events if each[0] == "log")
        assert [line["text"] for line in data["lines"]] == ["now"]


def test_streams_are_counted_and_given_back(up: Served) -> None:
    run = make_run(up.here.home, 5)
    ben = up.user("ben", "user", "all")
    from shanty.dashboard.state import STREAMS_PER_USER

    before = up.here.streams["ben"]
    request = f"GET /api/v1/runs/{run.id}/stream"
    opened = [up.connected(request, ben.token) for _ in range(STREAMS_PER_USER)]
    try:
        wait_for(lambda: up.here.streams["ben"] == before + STREAMS_PER_USER)
        answer = ben.get("/api/v1/runs/stream")
        assert answer.status_code == 429
        assert answer.json()["error"]["fix"] == "close some pages"
    finally:
        for each in opened:
            each.close()
    wait_for(lambda: up.here.streams["ben"] == before)


def test_a_client_that_does_not_read_costs_nothing(up: Served, me: Client) -> None:
    """The server reads on in a log only when what it has sent was taken."""
    run = make_run(up.here.home, 6, State.RUNNING)
    log = run.rank_log(0)
    log.touch()
    with up.connected(f"GET /api/v1/runs/{run.id}/stream?ranks=0&from=0:0", me.token) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        text = framed(*["z" * 1000] * 50)
        with log.open("a") as file:
            for _ in range(40):
                for _ in range(5):
                    file.write(text)
                    file.flush()
                assert me.json("/me")["name"] == "root"  # another page is served meanwhile
                assert up.buffered() < 1 << 20
        assert log.stat().st_size > 9 << 20
