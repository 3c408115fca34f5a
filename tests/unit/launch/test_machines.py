"""Machine types, and who gets which machines."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.launch import inventory
from shanty.launch.inventory import Group
from shanty.launch.machines import types
from shanty.launch.machines.allotment import allot, fitting
from shanty.launch.machines.types import MachineType
from shanty.runtime.errors import NotFoundError, StorageError, UsageError
from shanty.runtime.site import Host
from shanty.runtime.spec import JobSpec, Program

# ---------------------------------------------------------------------------------- types


def test_a_type_is_kept(tmp_path: Path) -> None:
    kind = MachineType("p2.xlarge", "gpu[1-2]:4,ann@b", None, 1)
    types.save(kind, tmp_path)
    assert types.names(tmp_path) == ["p2.xlarge"]
    assert types.load("p2.xlarge", tmp_path) == kind
    assert kind.machines(tmp_path) == {"gpu1": "gpu1:4", "gpu2": "gpu2:4", "ann@b": "ann@b"}
    types.remove("p2.xlarge", tmp_path)
    assert types.names(tmp_path) == []


def test_a_group_may_change(tmp_path: Path) -> None:
    inventory.save(Group("desk", (Host("a", slots=2),)), tmp_path)
    kind = MachineType("t", "desk", slots=3)
    assert kind.machines(tmp_path) == {"a": "a:3"}
    inventory.save(Group("desk", (Host("a"), Host("b"))), tmp_path)
    assert list(kind.machines(tmp_path)) == ["a", "b"]


def test_unknown_types(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="'big'") as caught:
        types.load("big", tmp_path)
    assert "machines add big --on local" in caught.value.fix
    types.save(MachineType("bag", "local"), tmp_path)
    with pytest.raises(NotFoundError) as caught:
        types.load("big", tmp_path)
    assert "bag" in caught.value.why and "did you mean bag" in caught.value.fix
    with pytest.raises(NotFoundError):
        types.load("../x", tmp_path)


def test_damaged_and_odd(tmp_path: Path) -> None:
    (tmp_path / "machines").mkdir()
    (tmp_path / "machines" / "x.json").write_text("{")
    with pytest.raises(StorageError, match="damaged"):
        types.load("x", tmp_path)
    with pytest.raises(UsageError, match="invalid name"):
        types.save(MachineType("a/b", "local"), tmp_path)


def test_machines_of_a_queue() -> None:
    kind = MachineType("a100", "slurm", slots=4, gpus=4, options={"partition": "gpu"})
    job = kind.applied(JobSpec(Program(("x",)), machines=(("a100", 2),)), 2)
    assert (job.on, job.nodes, job.options) == ("slurm", 2, {"partition": "gpu"})
    assert (job.ranks_per_host, job.gpus_per_rank) == (4, 1)
    job = kind.applied(JobSpec(Program(("x",)), ranks=3, options={"partition": "mine"}), 2)
    assert (job.options, job.ranks, job.ranks_per_host) == ({"partition": "mine"}, 3, None)


# -------------------------------------------------------------------------- who gets what

TYPES = {"big": ["a", "b"], "small": ["b", "c"]}


def want(*machines: tuple[str, int], share: bool = False) -> JobSpec:
    return JobSpec(Program(("x",)), machines=machines, share=share)


def test_first_come_first_served() -> None:
    runs = {"1": want(("big", 2)), "2": want(("big", 1)), "3": want(("small", 1))}
    assert allot(runs, TYPES, {}) == {"1": ("a", "b"), "3": ("c",)}
    # The first waits for both, so no later one may have the one that is free.
    assert allot(runs, TYPES, {"a": False}) == {"3": ("c",)}


def test_master_and_workers_are_of_their_own_types() -> None:
    runs = {"1": want(("small", 1), ("big", 2))}
    assert allot(runs, TYPES, {}) == {"1": ("c", "a", "b")}
    assert allot(runs, TYPES, {"c": False}) == {}


def test_sharing() -> None:
    one = {"1": want(("big", 2), share=True)}
    assert allot(one, TYPES, {"a": True}) == {"1": ("a", "b")}
    assert allot(one, TYPES, {"a": False}) == {}
    two = {"1": want(("small", 2), share=True), "2": want(("small", 2), share=True)}
    assert allot(two, TYPES, {}) == {"1": ("b", "c"), "2": ("b", "c")}
    assert allot({"2": want(("small", 1))}, {"small": ["b"]}, {"b": True}) == {}


MACHINES = st.lists(st.sampled_from("abcde"), unique=True)


@given(
    st.dictionaries(st.sampled_from(["x", "y", "z"]), MACHINES, min_size=1),
    st.lists(
        st.tuples(st.sampled_from(["x", "y", "z"]), st.integers(1, 2)), min_size=1, max_size=3
    ),
)
def test_a_way_is_found_where_there_is_one(
    free: dict[str, list[str]], wanted: list[tuple[str, int]]
) -> None:
    free = {name: free.get(name, []) for name in "xyz"}
    places = [name for name, count in wanted for _ in range(count)]
    possible = any(
        all(machine in free[name] for machine, name in zip(each, places, strict=True))
        for each in permutations("abcde", len(places))
    )
    found = fitting(wanted, free)
    assert (found is not None) == possible
    if found is not None:
        assert len(set(found)) == len(places)
        assert all(machine in free[name] for machine, name in zip(found, places, strict=True))


@given(
    st.lists(
        st.tuples(st.sampled_from(["big", "small"]), st.integers(1, 2), st.booleans()), max_size=6
    ),
    st.dictionaries(st.sampled_from("abc"), st.booleans()),
)
def test_nobody_is_put_beside_one_who_does_not_share(
    asked: list[tuple[str, int, bool]], taken: dict[str, bool]
) -> None:
    runs = {
        str(n): want((name, count), share=share) for n, (name, count, share) in enumerate(asked)
    }
    given_out = allot(runs, TYPES, taken)
    for machine in "abc":
        there = [job for run, job in runs.items() if machine in given_out.get(run, ())]
        alone = [job for job in there if not job.share]
        others = len(there) + (machine in taken)
        assert not alone or others == 1
        assert taken.get(machine, True) or not there
