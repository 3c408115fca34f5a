"""What is framed comes back byte for byte, in order, stream by stream."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shanty.runtime import frames, logfile

Feeds = st.lists(
    st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=40)), max_size=30
)


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
