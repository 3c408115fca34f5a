"""Trees of the store: whatever happens to a file of theirs is found."""

from __future__ import annotations

import errno
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.runtime import stored_tree

NAMES = st.text("ab.é\n", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
FILES = st.dictionaries(NAMES, st.binary(min_size=1, max_size=20), min_size=1, max_size=5)


@given(FILES, st.data())
def test_what_changed_is_named_and_nothing_else(files: dict[str, bytes], data: st.DataObject):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "inner")
        folder.mkdir()
        for path, content in files.items():
            (folder / path).write_bytes(content)
        (folder / "link").symlink_to(next(iter(files)))
        stored_tree.note(str(folder))
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "a.pyc").write_bytes(b"made by Python")
        assert stored_tree.damage(str(folder), content=True) == []
        victim = data.draw(st.sampled_from(sorted(files)))
        how = data.draw(st.sampled_from(["gone", "emptied", "changed"]))
        if how == "gone":
            (folder / victim).unlink()
        else:
            old = files[victim]
            new = bytes([old[0] ^ 1]) + old[1:]
            (folder / victim).write_bytes(b"" if how == "emptied" else new)
        seen = [] if how == "changed" else [victim]
        assert stored_tree.damage(str(folder)) == seen
        assert stored_tree.damage(str(folder), content=True) == [victim]
        late = time.monotonic() - 1
        assert stored_tree.damage(str(folder), content=True, until=late) == []


def test_a_link_that_leads_elsewhere(tmp_path: Path):
    (tmp_path / "link").symlink_to("there")
    stored_tree.note(str(tmp_path))
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("tHere")
    assert stored_tree.damage(str(tmp_path), content=True) == ["link"]


def test_a_note_that_cannot_be_read_is_damage(tmp_path: Path):
    assert stored_tree.damage(str(tmp_path)) == []  # none: not of the store
    (tmp_path / stored_tree.NAME).write_text('{"a": ')
    assert stored_tree.damage(str(tmp_path)) == [stored_tree.NAME]


@pytest.mark.parametrize("text", ['{"a": 1}', '{"a": ["x", "y"]}', "name: mine", "3"])
def test_a_note_of_somebody_else_s_is_no_reason_to_fail(tmp_path: Path, text: str):
    (tmp_path / stored_tree.NAME).write_text(text)
    assert stored_tree.damage(str(tmp_path), content=True) == [stored_tree.NAME]


def test_what_cannot_be_read_just_now_is_not_damage(tmp_path: Path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    stored_tree.note(str(tmp_path))
    real = open

    def failing(path, *words, **more):
        if str(path).endswith("/a"):
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, *words, **more)

    (tmp_path / "b").write_text("c")
    monkeypatch.setattr("builtins.open", failing)
    assert stored_tree.damage(str(tmp_path), content=True) == ["b"]
    monkeypatch.setattr("builtins.open", lambda *_, **__: failing("/a"))
    assert stored_tree.damage(str(tmp_path)) == []


def test_what_is_condemned_stays_so(tmp_path: Path):
    (tmp_path / "a").write_text("a")
    stored_tree.note(str(tmp_path))
    assert not stored_tree.is_condemned(str(tmp_path))
    stored_tree.condemn(str(tmp_path), ["a"])
    assert stored_tree.is_condemned(str(tmp_path))
    assert stored_tree.damage(str(tmp_path)) == ["a"]


def test_names():
    assert stored_tree.named(["a"]) == "1 file (a)"
    assert stored_tree.named(list("abcde")) == "5 files (a, b, c, …)"
