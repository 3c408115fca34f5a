"""The store of a host: what is damaged is made anew."""

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
