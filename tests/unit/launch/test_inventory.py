"""Hosts as people write them, groups of them, and the verb that keeps these."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from shanty.launch import inventory
from shanty.launch.inventory import Group, parse_host, resolve
from shanty.program import app
from shanty.runtime.errors import NotFoundError, ShantyError, StorageError, UsageError
from shanty.runtime.site import Host


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("a", Host("a")),
        ("a:4", Host("a", slots=4)),
        ("a:0", Host("a", slots=0)),
        ("me@10.0.0.3", Host("10.0.0.3", "me")),
        ("me@a.example.org:16", Host("a.example.org", "me", slots=16)),
        ("me@corp.org@a", Host("a", "me@corp.org")),
        ("[fe80::1%eth0]:4", Host("fe80::1%eth0", slots=4)),
        ("[fe80::1]", Host("fe80::1")),
        ("fe80::1", Host("fe80::1")),
        ("::1", Host("::1")),
        ("ssh://a", Host("a")),
        ("ssh://me@a:2222", Host("a", "me", 2222)),
        ("ssh://me@[fd00::2]:2222/", Host("fd00::2", "me", 2222)),
        (" a_b-c:2 ", Host("a_b-c", slots=2)),
    ],
)
def test_a_host_as_it_is_written(text: str, host: Host) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize(
    "text",
    [
        *("", ":4", "a:", "a:x", "a:-1", "a:2:", "-oProxyCommand=x", "a b", "me@", "@a", "a;b"),
        *("-x@a", "$(id)", "`id`@a", "a/b", "[fe80::1", "[fe80::1]x", "ssh://a:0", "ssh://", "a:²"),
        *("ssh://a:70000", "a:99999999", "a\x00b", "~root", "a:1e3", "[]:4"),
    ],
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_host(text)


@given(st.text())
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        host = parse_host(text)
    except UsageError:
        return
    assert not host.login.startswith("-")
    assert not set(host.login) & set(" \n\t'\"`$\\;&<>|()\x00")


NAME = st.from_regex(r"[a-z][a-z0-9.]{0,8}", fullmatch=True)
HOSTS = st.builds(
    Host,
    st.one_of(NAME, st.sampled_from(["fe80::1", "10.0.0.1"])),
    st.none() | NAME,
    st.none(),
    st.none() | st.integers(0, 99),
    st.just(""),  # no configuration and no pod: `--on` has no form for them
    st.just(""),
)


@given(HOSTS)
def test_written_and_read_again(host: Host) -> None:
    assert parse_host(inventory.written(host)) == host


@given(st.lists(HOSTS))
def test_merging_loses_no_slot(hosts: list[Host]) -> None:
    once = inventory.merged(hosts)
    keys = [(host.name, host.user) for host in once]
    assert len(set(keys)) == len(keys)
    for host in once:
        same = [h.slots for h in hosts if (h.name, h.user) == (host.name, host.user)]
        if len(same) == 1:
            assert host.slots == same[0]
        else:
            assert host.slots == sum(1 if slots is None else slots for slots in same)
    assert inventory.merged(once) == once


def test_on_takes_groups_and_hosts(tmp_path: Path) -> None:
    inventory.save(Group("lab", (Host("lab1"), Host("lab2", config="/c"))), tmp_path)
    assert resolve("lab, x:2", tmp_path) == (
        Host("lab1"),
        Host("lab2", config="/c"),
        Host("x", slots=2),
    )
    assert resolve("a,b,a", tmp_path) == (Host("a", slots=2), Host("b"))
    assert resolve("a:0,b", tmp_path) == (Host("b"),)
    ranged = (Host("gpu1", "ann", slots=4), Host("gpu3", "ann", slots=4), Host("b"))
    assert resolve("ann@gpu[1,3]:4,b", tmp_path) == ranged
    with pytest.raises(UsageError, match="names no host that can be used"):
        resolve("a:0", tmp_path)
    with pytest.raises(UsageError, match="is a group"):
        resolve("lab:4", tmp_path)
    for nothing in ("", ",", " "):
        with pytest.raises(UsageError):
            resolve(nothing, tmp_path)
    for name, fix in (("lba", "did you mean lab?"), ("ann", "shanty hosts add ann HOST…")):
        with pytest.raises(NotFoundError) as missing:
            inventory.load(name, tmp_path)
        assert missing.value.fix == fix


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", "a b", "../x", "a\n", "x" * 65])
def test_names_that_no_group_may_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        inventory.check_name(name)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"hosts": 3}', '{"hosts": [{}]}', '{"hosts": [{"name": "-x"}]}', "{"),
        *('{"hosts": [{"name": "a", "slots": "2"}]}', '{"hosts": ["a"]}', '{"hosts": [[1]]}'),
    ],
)
def test_a_damaged_group_is_said_to_be_and_can_be_removed(text: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts" / "lab.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(StorageError, match="is damaged"):
        inventory.load("lab", tmp_path)
    inventory.remove("lab", tmp_path)
    with pytest.raises(NotFoundError):
        inventory.remove("lab", tmp_path)


class Shell:
    def __init__(self, home: Path) -> None:
        self._environ = {"SHANTY_HOME": str(home)}

    def __call__(self, *words: str) -> str:
        result = CliRunner(env=self._environ).invoke(app, ["hosts", *words])
        if isinstance(result.exception, ShantyError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output


def test_the_verb(tmp_path: Path) -> None:
    hosts = Shell(tmp_path)
    assert "no groups" in hosts("list")
    assert "lab has 2 hosts" in hosts("add", "lab", "a:4", "me@10.0.0.3")
    file = tmp_path / "machines"
    file.write_text("c slots=2\nd\n")
    assert "lab has 4 hosts" in hosts("add", "lab", "--hostfile", str(file), "a:8")
    shown = json.loads(hosts("show", "lab", "--json"))
    assert [(h["name"], h["slots"]) for h in shown["hosts"]] == [
        ("a", 8),
        ("10.0.0.3", None),
        ("c", 2),
        ("d", None),
    ]
    assert json.loads(hosts("list", "--json")) == [shown]
    assert "a:8,me@10.0.0.3,c:2,d" in hosts("list")
    assert "10.0.0.3" in hosts("show", "lab")
    with pytest.raises(NotFoundError, match="no group"):
        hosts("show", "lba")
    with pytest.raises(UsageError):
        hosts("add", "none")
    with pytest.raises(UsageError):
        hosts("add", "a/b", "h")
    hosts("rm", "lab")
    assert "no groups" in hosts("list")


def test_the_group_of_a_lab_is_left_alone(tmp_path: Path) -> None:
    inventory.save(Group("lab", (Host("lab1"),), lab=True), tmp_path)
    assert inventory.load("lab", tmp_path).lab
    with pytest.raises(UsageError, match="is a lab"):
        Shell(tmp_path)("add", "lab", "b")
    assert "lab" in Shell(tmp_path)("list")


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
    assert inventory.spread(text) == hosts.split(",")


@pytest.mark.parametrize("text", ["gpu[3-1]", "gpu[1-]", "gpu[1-999999999]", "gpu[-]", "gpu[,]"])
def test_invalid_ranges(text: str) -> None:
    with pytest.raises(UsageError):
        inventory.spread(text)


def test_a_host_of_a_group_may_be_named_by_itself(tmp_path: Path) -> None:
    """A group that was made of another one's hosts, by name, knows less of them."""
    lab = Host("lab1", config="/lab/ssh_config", slots=2)
    inventory.save(inventory.Group("lab", (lab,), lab=True), tmp_path)
    inventory.save(
        inventory.Group(
            "few",
            (Host("lab1", slots=1), Host("b")),
        ),
        tmp_path,
    )
    found = inventory.recognised(
        [Host("lab1"), Host("lab1", slots=7), Host("b"), Host("c")], tmp_path
    )
    assert found == (lab, lab._replace(slots=7), Host("b"), Host("c"))
    # What is written with the name counts; the rest is the group's.
    own = [Host("lab1", "me"), Host("lab1", "me", slots=1), Host("lab1", None, 2222)]
    assert inventory.recognised(own, tmp_path) == (
        lab._replace(user="me"),
        lab._replace(user="me", slots=1),
        lab._replace(port=2222),
    )
    other = Host("lab1", config="/other")
    assert inventory.recognised([other], tmp_path) == (other._replace(slots=2),)


def test_groups_that_disagree_on_a_host_do_not_count(tmp_path: Path) -> None:
    inventory.save(inventory.Group("one", (Host("a", user="x"),)), tmp_path)
    inventory.save(inventory.Group("two", (Host("a", user="y"),)), tmp_path)
    assert inventory.recognised([Host("a")], tmp_path) == (Host("a"),)
    inventory.save(inventory.Group("three", (Host("a", user="z", port=26, slots=3),)), tmp_path)
    given = [Host("a", "z"), Host("a", "x"), Host("a", "w")]
    assert inventory.recognised(given, tmp_path) == (Host("a", "z", 26, 3), *given[1:])
