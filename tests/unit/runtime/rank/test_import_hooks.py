"""What a rank's imports are given: `xgboost.rabit` where it is missing, and only when asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

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


class TestJax:
    """With a stand-in for JAX's registry of clusters, which asks the first that is there."""

    @pytest.fixture
    def base(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        class ClusterEnv:
            _cluster_types: ClassVar[list[type]] = []

            def __init_subclass__(cls) -> None:
                cls._cluster_types.append(cls)

        class Other(ClusterEnv):
            pass

        variables = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
        for name, value in {**variables, import_hooks.ADDRESSES: "10.0.0.1:7,b:8"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        import_hooks.jax(SimpleNamespace(ClusterEnv=ClusterEnv))
        assert [each.__name__ for each in ClusterEnv._cluster_types] == ["ShantyCluster", "Other"]
        return ClusterEnv

    @pytest.fixture
    def cluster(self, base: Any) -> Any:
        return base._cluster_types[0]

    def test_what_it_says(self, cluster: Any) -> None:
        assert cluster.is_env_present()
        assert cluster.get_coordinator_address(300, None) == "10.0.0.1:7"
        assert cluster.get_coordinator_address(300, "5") == "10.0.0.1:5"
        assert (cluster.get_process_count(), cluster.get_process_id()) == (4, 3)

    def test_a_process_that_is_no_rank(self, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(import_hooks.ADDRESSES)
        assert not cluster.is_env_present()

    @pytest.mark.parametrize(
        ("ranks", "visible", "device"),
        [("2", None, 1), ("1", None, None), ("2", "0,1", 1), ("2", "3", None)],
    )
    def test_its_gpu(
        self,
        cluster: Any,
        monkeypatch: pytest.MonkeyPatch,
        ranks: str,
        visible: str | None,
        device: int | None,
    ) -> None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert cluster.get_local_process_id() == device

    def test_another_jax(self) -> None:
        import_hooks.jax(SimpleNamespace())
        import_hooks.jax_gloo(SimpleNamespace())

    @pytest.mark.parametrize(
        ("interface", "given", "wanted"),
        [
            ("eth1", {}, {"interface": "eth1"}),
            ("", {}, {}),
            ("eth1", {"hostname": "x"}, {"hostname": "x"}),
        ],
    )
    def test_gloo(
        self,
        monkeypatch: pytest.MonkeyPatch,
        interface: str,
        given: dict[str, str],
        wanted: dict[str, str],
    ) -> None:
        library = SimpleNamespace(make_gloo_tcp_collectives=lambda **words: words)
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
        import_hooks.jax_gloo(SimpleNamespace(_jax=library))
        assert library.make_gloo_tcp_collectives(**given) == wanted


class TestAccelerate:
    """With a stand-in for its state, which says whether it was told of the CPUs."""

    @pytest.fixture
    def state(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        class PartialState:
            _shared_state: ClassVar[dict[str, bool]] = {}

            def __init__(self, cpu: bool = False) -> None:
                self.cpu = cpu

        for name in ("ACCELERATE_USE_CPU", "ACCELERATE_TORCH_DEVICE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("WORLD_SIZE", "2")
        torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
        found = SimpleNamespace(PartialState=PartialState, torch=torch)
        found.is_npu_available = lambda: False
        import_hooks.accelerate(found, None, lambda: True)
        return found

    def test_without_a_gpu(self, state: Any) -> None:
        assert state.PartialState().cpu

    def test_one_rank(self, state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "1")
        assert not state.PartialState().cpu

    def test_with_a_gpu(self, state: Any) -> None:
        state.torch.cuda.is_available = lambda: True
        assert not state.PartialState().cpu

    def test_with_another_accelerator(self, state: Any) -> None:
        state.is_npu_available = lambda: True
        assert not state.PartialState().cpu

    @pytest.mark.parametrize(("said", "cpu"), [("false", False), ("true", True), ("1", True)])
    def test_what_the_user_says(
        self, state: Any, monkeypatch: pytest.MonkeyPatch, said: str, cpu: bool
    ) -> None:
        monkeypatch.setenv("ACCELERATE_USE_CPU", said)
        assert state.PartialState().cpu == cpu

    def test_a_device_that_the_user_names(
        self, state: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
        assert not state.PartialState().cpu

    def test_a_helper_of_the_rank(self, state: Any) -> None:
        fresh = SimpleNamespace(PartialState=type("PartialState", (), {"_shared_state": {}}))
        fresh.PartialState.__init__ = lambda self, cpu=False: setattr(self, "cpu", cpu)
        fresh.torch = state.torch
        import_hooks.accelerate(fresh, None, lambda: False)
        assert not fresh.PartialState().cpu


def test_mpi_is_offered_only_where_it_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate takes it unasked."""
    core = SimpleNamespace(_MPI_AVAILABLE=False, _new_process_group_helper=lambda: None)
    import_hooks.torch(core)
    assert core._MPI_AVAILABLE
    core = SimpleNamespace(_MPI_AVAILABLE=False, _new_process_group_helper=lambda: None)
    monkeypatch.setattr(import_hooks, "_NEEDS", (99, 0))
    import_hooks.torch(core)
    assert not core._MPI_AVAILABLE
