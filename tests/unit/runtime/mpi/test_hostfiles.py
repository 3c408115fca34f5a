"""Host files in the forms of others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.launch.inventory import parse_hostfile, read_hostfile
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.mpi.hostfiles import hosts_listed
from shanty.runtime.site import Host


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a slots=4\nb slots=2 max_slots=4\n", (Host("a", slots=4), Host("b", slots=2))),
        ("# head\n\nme@a slots=2 # mine\r\nb\n", (Host("a", "me", slots=2), Host("b"))),
        (
            "worker-1 slots=4\nworker-2 slots=4\n",
            (Host("worker-1", slots=4), Host("worker-2", slots=4)),
        ),
        ("a slots = 4\nb\tslots= 2\tmax_slots =4\r\n", (Host("a", slots=4), Host("b", slots=2))),
        ("a count=4 // mine\nb cpu=2\n", (Host("a", slots=4), Host("b", slots=2))),
        ("a max-slots=4\nb SLOTS=2\n", (Host("a", slots=4), Host("b", slots=2))),
        ("a.b_c-1. slots=1\n", (Host("a.b_c-1.", slots=1),)),
        ("me@10.0.0.3:2", (Host("10.0.0.3", "me", slots=2),)),
        ("[fe80::1]:4\n", (Host("fe80::1", slots=4),)),
        ("fd00::2 slots=3\n", (Host("fd00::2", slots=3),)),
        ("fe80::1%eth0 slots=1\n", (Host("fe80::1%eth0", slots=1),)),
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
        ("a lots=1\n", "line 1: unknown setting 'lots=1'\n.*\n.*did you mean slots"),
        ("a slotts=1\n", "did you mean slots"),
        ("a np=1\n", "line 1: unknown setting 'np=1'"),
        ("a 2\n", "line 1: unknown setting '2'\n.*\n.*did you mean slots=2"),
        ("a slot:2\n", "line 1: unknown setting 'slot:2'\n.*\n.*did you mean slots"),
        ("a slots=4 max_slots=1\n", "line 1: a has 4 slots, more than its largest number, 1"),
        ("a slots=2 slots=3\n", "line 1: the slots of a are given twice"),
        ("a:2 slots=2\n", "line 1: the slots of a are given twice"),
        ("a slots=-1\n", "line 1: slots takes a number"),
        ("a slots=\n", "line 1: slots takes a number"),
        ("a slots=99999\n", "line 1: slots takes a number"),
        ("a username=nobody\n", "line 1: username= is not supported\n.*nobody@a"),
        ("a:2 ifname=ib0\n", "line 1: ifname= is not supported"),
        ("a port=22\n", "line 1: port= is not supported"),
        ("a;b\n", "line 1: 'a;b'"),
        ("a,b\n", "line 1: 'a,b'"),
        ("^a\n", "line 1: '.a'"),
        ("a = 2\n", "line 1: 'a=2'"),
        ('[{"ssh": "a", "slots": 2}]', "line 1: unknown key 'slots'"),
        (
            '{"hosts": [{"ssh": "a"}],\n "env": []}',
            "line 2: unknown key 'env'\n.*did you mean envs",
        ),
        ('{"hosts": [{"ssh": "a"}],\n "envs": ["A=1"]}', "line 2: envs are for mlx.launch"),
        ('[{"ssh": "a"},\n {"ips": []}]', "entry 2"),
        ('[{"ssh": "a"}, 3]', "entry 2"),
        ('[{"ssh": "-x"}]', "entry 1"),
        ('[{"ssh": "a",\n}]', "line 2"),
        ('{"backend": "ring"}', "no list"),
    ],
)
def test_the_place_of_a_mistake_is_named(text: str, place: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_hostfile(text, "hosts")
    assert re.search(place, str(error.value))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        *((content, "it has no line with a host") for content in (b"", b"# none\n", b"[]")),
        (b"a slots=0\n", "a host with 0 slots is left out"),
    ],
)
def test_a_file_without_hosts(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="names no host") as error:
        read_hostfile(path)
    assert error.value.why == why


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


SPACE = st.sampled_from(["", " ", "\t", "  "])
LETTERS = st.text("abcdefghijklmnopqrstuvwxyz_-", min_size=1, max_size=9)


@given(NAME, LETTERS, SPACE, SPACE, st.integers(0, 64))
def test_a_setting_is_read_or_refused(
    name: str, key: str, before: str, after: str, number: int
) -> None:
    """A key that is nearly one is never passed over; blanks around the sign do not matter."""
    text = f"{name}\nb {key}{before}={after}{number}\n"
    try:
        (_, host) = parse_hostfile(text)
    except UsageError as error:
        assert key not in ("slots", "slot", "count", "cpu", "max_slots")
        assert "line 2" in error.what
    else:
        assert host == Host("b", slots=number)


PART = st.text(alphabet="ab:12.@[]^+- \n=,;", max_size=8)


@given(st.lists(PART, max_size=3), st.one_of(st.just(""), st.text(max_size=3)))
def test_a_list_is_read_letter_by_letter_or_refused(parts: list[str], more: str) -> None:
    text = ",".join([*parts, more])
    try:
        hosts = hosts_listed(text)
    except UsageError as error:
        assert error.what
    else:
        named = [part.strip() for part in text.split(",") if part.strip()]
        assert {host.name for host in hosts} == {
            part.rpartition(":")[0].strip("[]") if part.count(":") == 1 or "]:" in part
            else part.strip("[]") for part in named
        }  # fmt: skip
