"""Folders by their content."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shanty.tasks import pickling
from shanty.tasks.data import Folder, content_hash, packed


def moved(folder: Folder, place: Path, there: Path) -> Folder:
    """The folder after its way to another machine, which gets files only."""
    file = io.BytesIO()
    with packed(place):
        pickling.dump(folder, file, "it")
    there.mkdir()
    for path in place.rglob("*"):
        if path.is_file():
            goal = there / path.relative_to(place)
            goal.parent.mkdir(parents=True, exist_ok=True)
            goal.write_bytes(path.read_bytes())
    file.seek(0)
    with packed(there):
        found = pickling.load(file)
    assert isinstance(found, Folder)
    return found


def test_a_folder_travels_by_its_content(tmp_path: Path) -> None:
    source = tmp_path / "data"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "file").write_text("text")
    (source / "link").symlink_to("deep/file")
    found = moved(Folder(source), tmp_path / "place", tmp_path / "there")
    assert found.path.name == "data"
    assert found.path.is_relative_to(tmp_path / "there")
    assert (found / "deep" / "file").read_text() == (found / "link").read_text() == "text"


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("text")
    found = moved(Folder(tmp_path / "one.txt"), tmp_path / "place", tmp_path / "there")
    assert Path(found).read_text() == "text"
    assert os.fspath(found).endswith("/one.txt")


@pytest.mark.parametrize("inner", ["", "sub"])
def test_an_empty_folder(tmp_path: Path, inner: str) -> None:
    (tmp_path / "data" / inner).mkdir(parents=True)
    found = moved(Folder(tmp_path / "data"), tmp_path / "place", tmp_path / "there")
    assert found.path.is_dir()
    assert [path for path in found.path.rglob("*") if path.is_file()] == []


def test_the_same_content_is_there_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data" / "file").write_text("text")
    with packed(tmp_path / "place"):
        both = [Folder(tmp_path / name / "data") for name in ("a", "b")]
        pickling.dump(both, io.BytesIO(), "them")
    assert len([*(tmp_path / "place").iterdir()]) == 1


def test_two_put_the_same_there_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "data"
    source.mkdir()
    (source / "file").write_text("text")
    place = tmp_path / "place"
    plain, both = shutil.copytree, threading.Barrier(2, timeout=20)

    def copytree(*args: Any, **more: Any) -> Any:
        both.wait()  # neither has found the other's copy
        return plain(*args, **more)

    monkeypatch.setattr(shutil, "copytree", copytree)

    def put(_number: int) -> str:
        with packed(place):
            return str(Folder(source).__reduce__()[1])

    with ThreadPoolExecutor(2) as threads:
        assert len(set(threads.map(put, range(2)))) == 1
    (found,) = place.iterdir()
    assert content_hash(found / "data") == found.name


def test_the_hash_is_of_what_was_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody writes into the folder while it is put there."""
    source = tmp_path / "data"
    source.mkdir()
    (source / "file").write_text("before")
    plain = shutil.copytree

    def copytree(*args: Any, **more: Any) -> Any:
        (source / "file").write_text("meanwhile")
        return plain(*args, **more)

    monkeypatch.setattr(shutil, "copytree", copytree)
    with packed(tmp_path / "place"):
        pickling.dump(Folder(source), io.BytesIO(), "it")
    (found,) = (tmp_path / "place").iterdir()
    assert content_hash(found / "data") == found.name


def test_the_hash_is_of_names_and_contents(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    seen = {content_hash(folder)}
    (folder / "a").write_text("text")
    seen.add(content_hash(folder))
    (folder / "a").write_text("texu")
    seen.add(content_hash(folder))
    (folder / "a").rename(folder / "b")
    seen.add(content_hash(folder))
    (folder / "a").touch()
    seen.add(content_hash(folder))
    assert len(seen) == 5
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "a").touch()
    (copy / "b").write_text("texu")
    assert content_hash(copy) in seen


def test_there_has_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such file or folder: .*/none"):
        Folder(tmp_path / "none")


def test_a_dangling_link_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to("nowhere")
    with pytest.raises(OSError, match=r"nowhere|link"):
        moved(Folder(tmp_path / "data"), tmp_path / "place", tmp_path / "there")


def test_the_first_file_that_cannot_be_sent_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("one", "two"):
        os.mkfifo(tmp_path / "data" / name)
    with packed(tmp_path / "place"), pytest.raises(OSError, match="named pipe") as raised:
        Folder(tmp_path / "data").__reduce__()
    assert str(raised.value).startswith(f"{tmp_path / 'data'} cannot be sent: ")
    assert str(raised.value).count("named pipe") == 1


def test_odd_names(tmp_path: Path) -> None:
    """Such as are no text, and the way up from a folder."""
    (tmp_path / "data" / "sub").mkdir(parents=True)
    name = os.fsdecode(b"\xff")
    (tmp_path / "data" / name).write_text("text")
    up = Folder(tmp_path / "data" / "sub" / "..")
    found = moved(up, tmp_path / "place", tmp_path / "there")
    assert (found.path.name, (found / name).read_text()) == ("data", "text")


def test_a_copy_can_be_removed(tmp_path: Path) -> None:
    """Whatever the rights of what it was made of: data is often read-only."""
    inner = tmp_path / "data" / "inner"
    inner.mkdir(parents=True)
    inner.chmod(0o500)
    with packed(tmp_path / "place"):
        Folder(tmp_path / "data").__reduce__()
    (copy,) = (tmp_path / "place").glob("*/data/inner")
    assert (copy.stat().st_mode & 0o777, inner.stat().st_mode & 0o777) == (0o700, 0o500)
    inner.chmod(0o700)


def test_a_url_that_is_not_there_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with pytest.raises(FileNotFoundError):
        _ = Folder(f"file://{tmp_path}/none").path
    assert [*(tmp_path / "tmp").iterdir()] == []


def test_a_url_is_fetched_where_it_is_used(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/of-test/data/file", b"text")
    try:
        found = moved(Folder("memory://of-test/data"), tmp_path / "place", tmp_path / "there")
        assert repr(found) == "Folder('memory://of-test/data')"
        path = found.path
        assert (path / "file").read_bytes() == b"text"
        assert found.path == path
        del found
        assert not path.exists()  # it went with the object
    finally:
        memory.rm("/of-test", recursive=True)
