"""The store of a host: what is damaged is made anew."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest

from shanty.runtime import rpc, stored_tree
from shanty.runtime.diagnosis import store_check
from shanty.runtime.errors import PrepareError
from shanty.runtime.rpc import layers, run_long, store

HASH = "0123456789abcdef"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    return tmp_path


def item(home: Path, kind: str, content: str = "good") -> Path:
    """An item of the store with one file, which is noted as "good"."""
    folder = home / "store" / kind / HASH
    folder.mkdir(parents=True)
    (folder / "file").write_text("good")
    stored_tree.note(str(folder))
    (folder / "file").write_text(content)
    return folder


def ask_for(kind: str) -> dict[str, object]:
    return store.store_has({"kind": kind, "hash": HASH}, io.BytesIO(), lambda _: None)


def test_a_damaged_item_is_not_there_and_a_new_one_takes_its_place(home: Path) -> None:
    """Also while a run uses it: its paths stay good."""
    folder = item(home, "mpi", "")
    in_use_by(home, folder)
    answer = ask_for("mpi")
    assert (answer["have"], answer["damaged"]) == (False, "1 file (file)")
    with store.placing(str(folder)) as new:
        Path(new, "file").write_text("good")
        stored_tree.note(new)
        assert folder.exists()
    answer = ask_for("mpi")
    assert (answer["have"], answer["damaged"]) == (True, "")
    assert list(folder.parent.iterdir()) == [folder]


def test_a_whole_item_stays_where_somebody_else_makes_it_too(home: Path) -> None:
    folder = item(home, "mpi")
    before = folder.stat().st_ino
    with store.placing(str(folder)) as new:
        Path(new, "file").write_text("good")
    assert folder.stat().st_ino == before
    assert list(folder.parent.iterdir()) == [folder]


def test_one_that_a_run_uses_is_not_taken_away(home: Path) -> None:
    folder = item(home, "mpi", "")
    plan = in_use_by(home, folder)
    assert not store.discard(str(folder))
    plan.unlink()
    assert store.discard(str(folder))


def in_use_by(home: Path, folder: Path) -> Path:
    plan = home / "work" / "x.1" / "plan.json"
    plan.parent.mkdir(parents=True)
    plan.write_text(f'{{"prefix": "{folder}"}}')
    return plan


def test_an_environment_goes_with_what_it_shares_files_with(home: Path) -> None:
    cache = home / "store" / "uv-cache"
    cache.mkdir(parents=True)
    assert store.discard(str(item(home, "mpi")))
    assert cache.exists()
    assert store.discard(str(item(home, "env")))
    assert not cache.exists()
    assert not store.discard(str(home / "store" / "env" / HASH))  # somebody else has done it


def test_the_cache_stays_while_another_environment_is_being_made(home: Path) -> None:
    cache = home / "store" / "uv-cache"
    cache.mkdir(parents=True)
    folder = item(home, "env")
    (home / "store" / "env" / ".0123-x").mkdir()
    assert store.discard(str(folder))
    assert cache.exists()


def test_a_failed_run_condemns_what_is_damaged_and_only_that(home: Path) -> None:
    bad, good = item(home, "mpi", "flip"), item(home, "env")
    assert store_check.damaged([str(bad), str(good)]) == [f"1 file (file) of {bad}"]
    assert bad.exists()  # another attempt of the run may do with it
    assert ask_for("mpi")["have"] is False
    assert ask_for("env")["have"] is True


def test_a_failed_run_leaves_alone_what_is_the_user_s(home: Path, tmp_path: Path) -> None:
    own = tmp_path / "venv"
    own.mkdir()
    for text in ("name: mine", '{"a": 1}', '{"file": [4, "x"]}'):
        (own / stored_tree.NAME).write_text(text)
        assert store_check.damaged([str(own)]) == []
        assert (own / stored_tree.NAME).read_text() == text


def test_a_single_file_is_kept_as_a_whole_or_not_at_all(home: Path) -> None:
    content = b"a wheel"
    digest = hashlib.sha256(content).hexdigest()
    ask = {"kind": "wheels", "hash": digest, "name": "a-1-py3-none-any.whl"}
    assert store.kept_file("wheels", digest, "a-1-py3-none-any.whl") is None
    with pytest.raises(PrepareError, match="did not arrive as a whole"):
        store.file_put(ask, io.BytesIO(content[:-1]), lambda _: None)
    assert store.kept_file("wheels", digest, "a-1-py3-none-any.whl") is None
    path = store.file_put(ask, io.BytesIO(content), lambda _: None)["path"]
    assert store.kept_file("wheels", digest, "a-1-py3-none-any.whl") == path
    Path(path).write_bytes(b"")  # damaged
    assert store.kept_file("wheels", digest, "a-1-py3-none-any.whl") is None


def test_an_image_file_is_found_in_the_store_or_at_its_own_path(home: Path, tmp_path: Path) -> None:
    content = b"an image"
    digest = hashlib.sha256(content).hexdigest()
    own = tmp_path / "own.sif"
    ask = {"hash": digest, "length": len(content), "path": str(own)}

    def found() -> dict[str, object]:
        return layers.image_file_have(ask, io.BytesIO(), lambda _: None)

    assert found()["have"] is False
    named = {"kind": "images", "hash": digest, "name": layers.IMAGE_FILE}
    path = store.file_put(named, io.BytesIO(content), lambda _: None)["path"]
    assert found() == {"path": path, "have": True}
    Path(path).unlink()
    own.write_bytes(content)
    assert found() == {"path": str(own), "have": True}


def test_a_program_that_takes_long_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "_REPORT", 0.05)
    reports: list[bool] = []
    ends = ["sh", "-c", "echo one; echo two >&2; exit 3"]
    assert run_long(ends, {}, 10.0, lambda: reports.append(True)) == (3, "one\ntwo\n")
    assert reports
    assert run_long(["sleep", "60"], {"PATH": os.environ["PATH"]}, 0.1, lambda: None)[0] is None

    def gone() -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run_long(["sleep", "60"], {"PATH": os.environ["PATH"]}, 10.0, gone)
