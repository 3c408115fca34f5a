"""Which names of hosts mean this machine."""

from __future__ import annotations

import os

import pytest

from shanty.runtime.localhost import all_here, is_here

OWN = os.uname().nodename


def test_names() -> None:
    names = ("localhost", "127.0.0.1", "::1", "[::1]", OWN, OWN.partition(".")[0])
    assert all(is_here(name) for name in names)
    assert not any(is_here(name) for name in ("", "other", "localhost:2", "::2", f"{OWN}x"))


@pytest.mark.parametrize(
    "hosts", ["", "localhost:4 127.0.0.1:2", f"me@{OWN}:1", "[::1]:2 ::1", "me@localhost"]
)
def test_this_machine_only(hosts: str) -> None:
    assert all_here(hosts.split())


@pytest.mark.parametrize(
    "hosts", ["localhost:4 other:2", "ssh://localhost:2222", "ssh://me@localhost:2222", "fe80::1"]
)
def test_others(hosts: str) -> None:
    assert not all_here(hosts.split())
