"""Ranges in hosts' names."""

from __future__ import annotations

from pathlib import Path

import pytest

from shanty.launch.cluster import inventory
from shanty.launch.cluster.ranges import spread
from shanty.runtime.errors import UsageError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu[1-3]", "gpu1,gpu2,gpu3"),
        ("n[08-10]", "n08,n09,n10"),
        ("n[1,3-4].site", "n1.site,n3.site,n4.site"),
        ("r[1-2]n[1-2]", "r1n1,r1n2,r2n1,r2n2"),
        ("ann@a,b:4", "ann@a,b:4"),
        ("[fe80::1]:2,gpu[1-2]", "[fe80::1]:2,gpu1,gpu2"),
    ],
)
def test_ranges(text: str, hosts: str) -> None:
    assert spread(text) == hosts.split(",")


@pytest.mark.parametrize("text", ["gpu[3-1]", "gpu[1-]", "gpu[1-999999999]", "gpu[-]", "gpu[,]"])
def test_ranges_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        spread(text)


def test_hosts_of_a_range(tmp_path: Path) -> None:
    found = inventory.resolve("ann@gpu[1,3]:4,b", tmp_path)
    assert [(each.user, each.name, each.slots) for each in found] == [
        ("ann", "gpu1", 4),
        ("ann", "gpu3", 4),
        (None, "b", None),
    ]
