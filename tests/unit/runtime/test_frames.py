"""What is framed comes back byte for byte, in order, stream by stream."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shanty.runtime import frames, logfile

Bytes = st.binary(min_size=1, max_size=40).map(lambda data: data.replace(b"\r", b"."))
Feeds = st.lists(st.tuples(st.sampled_from([1, 2]), Bytes), max_size=30)
Bars = st.lists(st.text("\r\rab\n", min_size=1, max_size=9).map(str.encode), max_size=30)


def written(path: Path, feeds: list[tuple[int, bytes]], limit: int = 1 << 30) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    writer = frames.FrameWriter(fd, limit)
    for stream, data in feeds:
        writer.feed(stream, data)
    writer.close()
    os.close(fd)


def joined(records: list[logfile.Record], stream: int) -> bytes:
    return b"".join(
        record.text + (b"\n" if record.whole else b"")
        for record in records
        if record.stream == stream
    )


@given(feeds=Feeds)
def test_every_byte_comes_back(feeds, tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "rank-0.log"
    written(path, feeds)
    records = list(logfile.read_records(str(path), chunk=7))
    for stream in (1, 2):
        assert joined(records, stream) == b"".join(data for s, data in feeds if s == stream)


@given(feeds=Feeds, cut=st.integers(0, 4000))
def test_a_reader_may_stop_anywhere(feeds, cut, tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "rank-0.log"
    written(path, feeds)
    data = path.read_bytes()
    first, used = logfile.parse(data[:cut])
    second, _ = logfile.parse(data[used:])
    assert first + second == logfile.parse(data)[0]


def test_a_line_longer_than_the_limit_is_passed_on_in_pieces(tmp_path):
    path = tmp_path / "log"
    long = b"x" * (3 * frames.LONGEST)
    written(path, [(1, long[i : i + 65536]) for i in range(0, len(long), 65536)])
    records = list(logfile.read_records(str(path)))
    assert len(records) > 1
    assert joined(records, 1) == long


def test_over_the_limit_the_head_and_the_tail_stay(tmp_path):
    path = tmp_path / "log"
    lines = [b"line %06d\n" % i for i in range(60_000)]
    written(path, [(1, line) for line in lines], limit=100_000)
    kept = joined(list(logfile.read_records(str(path))), 1).splitlines(keepends=True)
    assert path.stat().st_size < 100_000 + frames.TAIL + 200
    assert kept[0] == lines[0]
    assert kept[-1] == lines[-1]
    assert b"bytes left out" in path.read_bytes()


def test_last_lines_prefer_stderr(tmp_path):
    path = tmp_path / "log"
    written(path, [(1, b"out 1\nout 2\n"), (2, b"bad 1\nbad 2\nbad"), (1, b"out 3\n")])
    assert logfile.last_lines(str(path), 2) == ["bad 2", "bad"]
    written(path, [(1, b"out 1\nout 2\n")])
    assert logfile.last_lines(str(path), 1) == ["out 2"]
    assert logfile.last_lines(str(tmp_path / "none"), 1) == []


def test_damaged_lines_are_passed_on_as_text():
    records, used = logfile.parse(b"no header at all\n")
    assert records == [logfile.Record(0.0, 2, b"no header at all", True)]
    assert used == 17


@given(feeds=Bars)
def test_a_line_that_is_written_over_keeps_its_last_state(feeds, tmp_path_factory):
    """And what came at once, as a whole line, stays as it is."""
    path = tmp_path_factory.mktemp("log") / "rank-0.log"
    written(path, [(2, data) for data in feeds])
    found = joined(list(logfile.read_records(str(path))), 2).split(b"\n")
    wanted = b"".join(feeds).split(b"\n")
    assert list(map(frames.last_state, found)) == list(map(frames.last_state, wanted))
    for data in feeds:
        for line in data.split(b"\n")[1:-1]:
            assert line in found


def test_a_bar_writes_a_state_a_second_and_its_last(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    writer = frames.FrameWriter(fd, 1 << 30)
    for step in range(1000):  # for 10 seconds
        now += 0.01
        writer.feed(2, b"\r%4d/1000" % step)
        writer.feed(1, b"line %d\n" % step)
    assert writer.has_partial
    writer.flush()  # 999 is not due yet
    now += frames.STATE_EVERY
    writer.flush()
    assert not writer.has_partial
    writer.feed(2, b"\r1000/1000")
    writer.feed(2, b"\nnext\n")
    os.close(fd)
    records = list(logfile.read_records(str(path)))
    states = [record for record in records if record.stream == 2]
    assert 10 <= len(states) <= 14
    assert states[0].text == b"\r   0/1000"
    assert [record.text for record in states[-3:]] == [b"\r 999/1000", b"\r1000/1000", b"next"]
    assert [record.whole for record in states[-3:]] == [False, True, True]
    assert joined(records, 1) == b"".join(b"line %d\n" % step for step in range(1000))
    assert logfile.last_lines(str(path), 5) == ["1000/1000", "next"]


def removed(path: Path) -> None:
    path.unlink(missing_ok=True)


def folder_removed(path: Path) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)


def replaced(path: Path) -> None:
    folder_removed(path)
    path.parent.mkdir()
    path.write_bytes(b"")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(
        st.tuples(st.sampled_from([None, removed, folder_removed, replaced]), Bytes), max_size=8
    )
)
def test_a_log_that_is_removed_is_put_back(pieces, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(frames, "_LOOK_EVERY", 0.0)
    path = tmp_path_factory.mktemp("run") / "logs" / "rank-0.log"
    path.parent.mkdir()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    writer = frames.FrameWriter(fd, 1 << 30, str(path))
    for remove, data in pieces:
        writer.feed(1, data)
        if remove is not None:
            remove(path)
    writer.close()
    os.close(fd)
    assert not writer.error
    assert [each.name for each in path.parent.iterdir()] == ["rank-0.log"]
    assert joined(list(logfile.read_records(str(path))), 1) == b"".join(d for _, d in pieces)


def test_a_log_that_cannot_be_put_back(tmp_path):
    path = tmp_path / "run" / "logs" / "rank-0.log"
    path.parent.mkdir(parents=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    writer = frames.FrameWriter(fd, 1 << 30, str(path))
    writer.feed(1, b"a\n")
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").write_bytes(b"")  # a file is in the way
    writer.close()
    os.close(fd)
    assert writer.error == "Not a directory"


def test_a_log_that_is_cut_short_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(frames, "_LOOK_EVERY", 0.0)
    path = tmp_path / "rank-0.log"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    writer = frames.FrameWriter(fd, 1 << 30, str(path))
    writer.feed(1, b"a\n")
    size = path.stat().st_size
    os.truncate(path, 0)
    for line in (b"b\n", b"c\n"):
        writer.feed(1, line)
    writer.close()
    os.close(fd)
    note = b"[shanty] %d bytes of this log were removed by another program" % size
    assert [r.text for r in logfile.read_records(str(path))] == [note, b"b", b"c"]
