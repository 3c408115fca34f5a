"""What a pod lacks, in numbers."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.launch.kubernetes import shortfall


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 0.5), ("2", 2), ("1.5Gi", 1.5 * 2**30), ("12e6", 12e6), ("1k", 1000), ("0", 0)],
)
def test_quantities(text: str, value: float) -> None:
    assert shortfall.quantity(text) == value


@given(st.text(max_size=6))
def test_a_quantity_or_an_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(shortfall.quantity(text), float)


def node(name: str, cpu: str, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name}, "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": "4Gi"}},
    }  # fmt: skip


def pod(cpu: str, place: str = "", phase: str = "Running") -> dict[str, Any]:
    container = {"resources": {"requests": {"cpu": cpu}}}
    return {"spec": {"containers": [container], "nodeName": place}, "status": {"phase": phase}}


def test_in_numbers() -> None:
    nodes = [node("a", "2"), node("b", "1"), node("c", "64", unschedulable=True)]
    pods = [pod("800m", "a"), pod("500m", "b"), pod("9", "a", "Succeeded")]
    said = shortfall.described(pod("2"), nodes, pods)
    assert said == "needs 2 CPU: node a has 1.2 free, b 0.5"
    assert shortfall.described(pod("1"), nodes, pods) == ""  # it fits: something else is at fault
    assert "needs 1 nvidia.com/gpu: node a has 0 free" in shortfall.described(
        {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}, nodes, pods
    )
    assert shortfall.described(pod("2"), [], []) == ""
