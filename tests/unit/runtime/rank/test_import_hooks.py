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


@pytest.mark.parametrize(
    ("ranks", "tracker", "args", "joins"),
    [
        ("3", "", None, False),
        ("3", "", [b"DMLC_TRACKER_URI=host"], True),
        ("3", "host", None, True),
        ("1", "", None, True),
    ],
)
def test_xgboosts_own_rabit_never_leaves_ranks_alone(
    xgboost: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    ranks: str,
    tracker: str,
    args: list[bytes] | None,
    joins: bool,
) -> None:
    rabit = ModuleType(RABIT)
    vars(rabit)["init"] = lambda args=None: ("joined", args)
    vars(xgboost)["rabit"] = rabit
    monkeypatch.setenv("WORLD_SIZE", ranks)
    monkeypatch.delenv("DMLC_TRACKER_URI", raising=False)
    if tracker:
        monkeypatch.setenv("DMLC_TRACKER_URI", tracker)
    offer(xgboost)
    assert xgboost.rabit is rabit
    if joins:
        assert rabit.init(args) == ("joined", args)
    else:
        with pytest.raises(RuntimeError, match="XGBoost 0 knows no MPI: each of the 3 ranks"):
            rabit.init(args)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Our cluster, first in a stand-in for JAX's registry, which asks the first that is there."""

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
    return ClusterEnv._cluster_types[0]


def test_the_cluster_of_jax(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster.is_env_present()
    assert cluster.get_coordinator_address(300, None) == "10.0.0.1:7"
    assert cluster.get_coordinator_address(300, "5") == "10.0.0.1:5"
    assert (cluster.get_process_count(), cluster.get_process_id()) == (4, 3)
    for ranks, visible, device in (
        ("2", "", 1),
        ("1", "", None),
        ("2", "0,1", 1),
        ("2", "3", None),
    ):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        if visible:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert cluster.get_local_process_id() == device
    monkeypatch.delenv(import_hooks.ADDRESSES)
    assert not cluster.is_env_present()


def test_another_jax() -> None:
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
def test_gloo_of_jax(
    monkeypatch: pytest.MonkeyPatch, interface: str, given: dict[str, str], wanted: dict[str, str]
) -> None:
    library = SimpleNamespace(make_gloo_tcp_collectives=lambda **words: words)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    import_hooks.jax_gloo(SimpleNamespace(_jax=library))
    assert library.make_gloo_tcp_collectives(**given) == wanted


@pytest.mark.parametrize(
    ("variables", "device", "is_rank", "cpu"),
    [
        ({}, "", True, True),
        ({}, "", False, False),
        ({"WORLD_SIZE": "1"}, "", True, False),
        ({}, "cuda", True, False),
        ({}, "npu", True, False),
        ({"ACCELERATE_USE_CPU": "false"}, "", True, False),
        ({"ACCELERATE_USE_CPU": "true"}, "cuda", True, True),
        ({"ACCELERATE_USE_CPU": "1"}, "", True, True),
        ({"ACCELERATE_TORCH_DEVICE": "cpu"}, "", True, False),
    ],
)
def test_accelerate_takes_cpus(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    device: str,
    is_rank: bool,
    cpu: bool,
) -> None:
    class PartialState:
        _shared_state: ClassVar[dict[str, bool]] = {}

        def __init__(self, cpu: bool = False) -> None:
            self.cpu = cpu

    for name in ("ACCELERATE_USE_CPU", "ACCELERATE_TORCH_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"WORLD_SIZE": "2", **variables}.items():
        monkeypatch.setenv(name, value)
    cuda = SimpleNamespace(is_available=lambda: device == "cuda")
    state = SimpleNamespace(PartialState=PartialState, torch=SimpleNamespace(cuda=cuda))
    state.is_npu_available = lambda: device == "npu"
    import_hooks.accelerate(state, None, lambda: is_rank)
    assert PartialState().cpu is cpu


def test_mpi_is_offered_only_where_it_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate takes it unasked."""
    core = SimpleNamespace(_MPI_AVAILABLE=False, _new_process_group_helper=lambda: None)
    import_hooks.torch(core)
    assert core._MPI_AVAILABLE
    core = SimpleNamespace(_MPI_AVAILABLE=False, _new_process_group_helper=lambda: None)
    monkeypatch.setattr(import_hooks, "_NEEDS", (99, 0))
    import_hooks.torch(core)
    assert not core._MPI_AVAILABLE
