"""The end of a failed rank: what it had open is written and closed, whatever was frozen."""

from __future__ import annotations

import gzip
import io
import shelve
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from shanty.runtime.rank import ending

SCRIPT = """
import atexit, gc, gzip, shelve, sys, zipfile
from shanty.runtime.rank import ending

frozen = 0
if sys.argv[1] == "forked":
    gc.collect()
    gc.freeze()
    frozen = gc.get_freeze_count()

class Odd(type):
    __hash__ = None
    def __eq__(self, other): raise RuntimeError
    def __subclasscheck__(self, other): raise RuntimeError
    def __instancecheck__(self, other): raise RuntimeError

odd = Odd("Base", (), {})()
text = open("text", "w")
text.write("text")
packed = gzip.open("packed.gz", "wt")
packed.write("packed")
archive = zipfile.ZipFile("archive.zip", "w")
archive.writestr("member", "archived")
table = shelve.open("table", writeback=True)
table["key"] = ["of a table"]
if sys.argv[2] == "freezes":
    junk = [[each] for each in range(100000)]
    gc.freeze()

def late():
    global more
    more = open("late", "w")
    more.write("late")

atexit.register(late)
ending.end(0, 3, frozen)
"""


@pytest.mark.parametrize("start", ["forked", "started"])
@pytest.mark.parametrize("freezes", ["freezes", "does not"])
def test_what_was_open_is_written(tmp_path: Path, start: str, freezes: str) -> None:
    line = [sys.executable, "-c", SCRIPT, start, freezes]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    assert (tmp_path / "text").read_text() == "text"
    assert (tmp_path / "late").read_text() == "late"
    assert gzip.decompress((tmp_path / "packed.gz").read_bytes()) == b"packed"
    assert zipfile.ZipFile(tmp_path / "archive.zip").read("member") == b"archived"
    with shelve.open(str(tmp_path / "table")) as table:
        assert table["key"] == ["of a table"]


def test_what_is_only_read_or_in_memory_is_nothing_to_write(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.touch()
    with path.open() as read, path.open("a") as written, io.BytesIO() as memory:
        assert not ending.has_files([read, memory, "x", path])
        assert ending.has_files([read, written])
    assert not ending.has_files([written])
    assert ending.has_files([zipfile.ZipFile(tmp_path / "a.zip", "w")])
