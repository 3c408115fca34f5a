"""The fallback hook: who is the rank, where several processes of it bring up MPI."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from shanty.runtime.rank import instrumentation

HOOK = Path(instrumentation.__file__).parent / "hook" / "sitecustomize.py"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The hook, without what it does to the process that it is loaded in."""
    monkeypatch.delenv("SHANTY_REPORTS", raising=False)
    monkeypatch.delenv("SHANTY_STACKS_SIGNAL", raising=False)
    spec = importlib.util.spec_from_file_location("the_hook", HOOK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_forked_helper_is_not_the_rank(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "claims").mkdir()
    seen = instrumentation.RankProcess(str(tmp_path), 0, "0")
    done: list[str] = []
    monkeypatch.setattr(hook, "_guard", lambda _: done.append("guard"))
    assert hook._claim(seen, lambda: done.append("saw"))
    assert hook._claim(seen)  # MLX after mpi4py
    assert done == ["saw", "guard"]  # whose handlers at exit come in the other order

    seen.pid += 1  # as a child finds it that was forked
    assert not hook._claim(seen)
    assert not hook._claim(seen, lambda: done.append("saw"))
    other = instrumentation.RankProcess(str(tmp_path), 0, "0")  # one that was started anew
    assert not hook._claim(other)
    assert done == ["saw", "guard"]
