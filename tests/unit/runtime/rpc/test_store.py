"""The store of a host: what is damaged goes, unless a run uses it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from shanty.runtime import stored_tree
from shanty.runtime.agent import store_check
from shanty.runtime.rpc import store

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


def test_a_damaged_item_is_not_there(home: Path) -> None:
    folder = item(home, "mpi", "")
    answer = ask_for("mpi")
    assert (answer["have"], answer["damaged"]) == (False, "1 file (file)")
    assert not folder.exists()


def test_one_that_a_run_uses_stays(home: Path) -> None:
    folder = item(home, "mpi", "")
    plan = home / "work" / "x.1" / "plan.json"
    plan.parent.mkdir(parents=True)
    plan.write_text(f'{{"prefix": "{folder}"}}')
    assert (ask_for("mpi")["have"], folder.exists()) == (True, True)
    plan.unlink()
    assert ask_for("mpi")["have"] is False


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
