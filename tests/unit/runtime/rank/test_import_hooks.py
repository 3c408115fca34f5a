"""What a rank's imports are given: `xgboost.rabit` where it is missing, and only when asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from shanty.runtime.rank import import_hooks
from shanty.runtime.rank.import_hooks import RABIT, RabitFinder
from shanty.runtime.rank.import_hooks import xgboost as offer

Init = Callable[..., Any]


@pytest.fixture
def xgboost(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package of that name that has nothing in it."""
    module = ModuleType("xgboost")
    module.__path__ = []
    vars(module)["__version__"] = "0"
    monkeypatch.setitem(sys.modules, "xgboost", module)
    monkeypatch.delitem(sys.modules, RABIT, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delenv(import_hooks.XGBOOST, raising=False)
    yield module
    sys.modules.pop(RABIT, None)


def test_nothing_is_loaded_before_it_is_asked_for(xgboost: ModuleType) -> None:
    offer(xgboost)
    assert RABIT not in sys.modules
    assert "rabit" not in vars(xgboost)


def test_another_name_that_is_missing(xgboost: ModuleType) -> None:
    with pytest.raises(AttributeError) as before:
        xgboost.other  # noqa: B018
    offer(xgboost)
    with pytest.raises(AttributeError) as after:
        xgboost.other  # noqa: B018
    assert str(after.value) == str(before.value)


def test_one_s_own_names_of_later_are_asked_too(xgboost: ModuleType) -> None:
    def find(name: str) -> int:
        if name != "later":
            raise AttributeError(name)
        return 5

    vars(xgboost)["__getattr__"] = find
    offer(xgboost)
    assert xgboost.later == 5


def test_it_can_be_turned_off(xgboost: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(import_hooks.XGBOOST, "0")
    before = list(sys.meta_path)
    offer(xgboost)
    assert sys.meta_path == before
    assert not hasattr(xgboost, "rabit")


def test_other_modules_are_not_its_business() -> None:
    assert RabitFinder().find_spec("xgboost.core", []) is None
    assert RabitFinder().find_spec("rabit", None) is None


def test_it_is_ours(xgboost: ModuleType) -> None:
    spec = RabitFinder().find_spec(RABIT, [])
    assert spec.name == RABIT
    assert spec.origin.endswith("shanty/compat/xgboost_rabit/rabit.py")


def test_an_older_python_is_told(xgboost: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_hooks, "_NEEDS", (99, 0))
    offer(xgboost)
    with pytest.raises(AttributeError, match=r"'rabit'.* needs Python 99\.0"):
        xgboost.rabit  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'rabit'"):
        from xgboost import rabit  # noqa: F401


class TestOneOfXgboostsOwn:
    @pytest.fixture
    def init(self, xgboost: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Init:
        rabit = ModuleType(RABIT)
        vars(rabit)["init"] = lambda args=None: ("joined", args)
        vars(xgboost)["rabit"] = rabit
        monkeypatch.setenv("WORLD_SIZE", "3")
        monkeypatch.delenv("DMLC_TRACKER_URI", raising=False)
        offer(xgboost)
        assert xgboost.rabit is rabit
        found: Init = rabit.init
        return found

    def test_ranks_that_would_be_alone(self, init: Init) -> None:
        with pytest.raises(RuntimeError, match="XGBoost 0 knows no MPI: each of the 3 ranks"):
            init()

    def test_a_tracker_that_is_named(self, init: Init) -> None:
        assert init([b"DMLC_TRACKER_URI=host"]) == ("joined", [b"DMLC_TRACKER_URI=host"])

    def test_a_tracker_of_the_environment(
        self, init: Init, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DMLC_TRACKER_URI", "host")
        assert init() == ("joined", None)

    def test_one_rank(self, xgboost: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "1")
        vars(xgboost)["rabit"] = rabit = ModuleType(RABIT)
        vars(rabit)["init"] = lambda args=None: "joined"
        offer(xgboost)
        assert rabit.init() == "joined"
