"""Host files in the forms of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.launch.cluster.inventory import parse_hostfile, read_hostfile
from shanty.launch.host import Host
from shanty.runtime.errors import NotFoundError, UsageError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a slots=4\nb slots=2 max_slots=4\n", (Host("a", slots=4), Host("b", slots=2))),
        ("# head\n\nme@a slots=2 # mine\r\nb\n", (Host("a", "me", slots=2), Host("b"))),
        (
            "worker-1 slots=4\nworker-2 slots=4\n",
            (Host("worker-1", slots=4), Host("worker-2", slots=4)),
        ),
        ("a:2\nb:1 ifname=ib0\n", (Host("a", slots=2), Host("b", slots=1))),
        ("me@10.0.0.3:2", (Host("10.0.0.3", "me", slots=2),)),
        ("[fe80::1]:4\n", (Host("fe80::1", slots=4),)),
        ("fd00::2 slots=3\n", (Host("fd00::2", slots=3),)),
        ("a user=me slots=1\n", (Host("a", "me", slots=1),)),
        ("ssh://me@a:2222 slots=3", (Host("a", "me", 2222, 3),)),
        ("ssh://a:2222", (Host("a", None, 2222),)),
        ("a\na\nb\n", (Host("a", slots=2), Host("b"))),
        ("a slots=2\nb slots=0\n", (Host("a", slots=2),)),
        ("\ufeffa slots=2\n", (Host("a", slots=2),)),
    ],
)
def test_lines(text: str, hosts: tuple[Host, ...], tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(text, encoding="utf-8")
    assert read_hostfile(path) == hosts


def test_mlx() -> None:
    entries = [{"ssh": "me@m1.local", "ips": ["10.0.0.1"], "rdma": [None]}, {"ssh": "m2.local"}]
    hosts = (Host("m1.local", "me", slots=1), Host("m2.local", slots=1))
    assert parse_hostfile(json.dumps(entries)) == hosts
    assert parse_hostfile(json.dumps({"backend": "ring", "envs": [], "hosts": entries})) == hosts


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a slots=2\nb slots=two\n", "line 2"),
        ("a\n\nb slots 2\n", "line 3"),
        ("-oProxyCommand=x slots=1\n", "line 1"),
        ("a:x\n", "line 1"),
        ("a slots=²\n", "line 1"),
        ("a user=$(id)\n", "line 1"),
        ("a slots=1\nb user=-x\n", "line 2"),
        ('[{"ssh": "a"},\n {"ips": []}]', "entry 2"),
        ('[{"ssh": "a"}, 3]', "entry 2"),
        ('[{"ssh": "-x"}]', "entry 1"),
        ('[{"ssh": "a",\n}]', "line 2"),
        ('{"backend": "ring"}', "no list"),
    ],
)
def test_the_place_of_a_mistake_is_named(text: str, place: str) -> None:
    with pytest.raises(UsageError, match=place):
        parse_hostfile(text, "hosts")


@pytest.mark.parametrize("content", [b"", b"# none\n", b"a slots=0\n", b"[]"])
def test_a_file_without_hosts(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="names no host that can be used"):
        read_hostfile(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none", tmp_path, binary):
        with pytest.raises(NotFoundError):
            read_hostfile(path)


@given(st.one_of(st.text(), st.text(alphabet='ab:=slots12[]@{}"#, \n-')))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        hosts = parse_hostfile(text)
    except UsageError:
        return
    assert all(host.name and not host.login.startswith("-") for host in hosts)


NAME = st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True)
ENTRIES = st.lists(st.tuples(NAME, st.integers(0, 64)), min_size=1)


@given(ENTRIES)
def test_the_dialects_mean_the_same(entries: list[tuple[str, int]]) -> None:
    open_mpi = "".join(f"{name} slots={slots}\n" for name, slots in entries)
    hydra = "".join(f"{name}:{slots}\n" for name, slots in entries)
    expected = tuple(Host(name, slots=slots) for name, slots in entries)
    assert parse_hostfile(open_mpi) == parse_hostfile(hydra) == expected
