"""What the doctor makes of a host's facts, and of several laid side by side; all of it pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.launch.doctor import hosts, pairs
from shanty.launch.doctor.facts import Need, Seen, amount, command_on
from shanty.launch.finding import CODES, EXPLAINS, Finding, Level, without_consequences
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.parameters import BREAKS, MEANINGS
from shanty.runtime.site import Host

MIB, GIB = 1 << 20, 1 << 30


def folder(path: str, device: int, **more: Any) -> dict[str, Any]:
    return {
        "path": path,
        "device": device,
        "size": 100 * GIB,
        "free": 50 * GIB,
        "inodes": 6_000_000,
        "inodes_free": 5_000_000,
        "readonly": False,
        "noexec": False,
        "error": "",
        **more,
    }


HEALTHY: dict[str, Any] = {
    "hostname": "a",
    "instance": "1",
    "system": "Linux",
    "arch": "x86_64",
    "libc": ["glibc", "2.36"],
    "cores": 8,
    "machine_cores": 8,
    "memory": 16 * GIB,
    "gpus": [],
    "fabrics": [],
    "addresses": [
        {"interface": "lo", "address": "127.0.0.1", "prefix": 8, "loopback": True},
        {"interface": "eth0", "address": "10.0.0.1", "prefix": 24, "loopback": False},
    ],
    "ssh": None,
    "ssh_program": "/usr/bin/ssh",
    "uid": 1000,
    "user": "u",
    "home": "/home/u",
    "path": "/usr/bin:/bin",
    "room": {
        "folders": {
            "home": folder("/home/u", 1),
            "shanty": folder("/home/u/.shanty", 1),
            "tmp": folder("/tmp", 1),
            "shm": folder("/dev/shm", 2, size=8 * GIB, free=8 * GIB, noexec=True),
        },
        "limits": {
            "NOFILE": [1024, 1048576],
            "NPROC": [63000, 63000],
            "AS": [None, None],
            "DATA": [None, None],
            "MEMLOCK": [8 * MIB, 8 * MIB],
        },
        "processes": 300,
        "privileged": False,
        "available": 12 * GIB,
    },
}
WELL: dict[str, Any] = {
    "hostname": "a",
    "rights": [["/home/u", 0o755, 1000], ["/home/u/.ssh", 0o700, 1000]],
    "settings": [
        # as Debian has them
        ["btl_base_warn_component_unused", "0", "/etc/openmpi/openmpi-mca-params.conf"],
        ["mtl", "^ofi", "/etc/openmpi/openmpi-mca-params.conf"],
        ["btl", "^uct,openib,ofi", "/etc/openmpi/openmpi-mca-params.conf"],
        ["pml", "^ucx", "/etc/openmpi/openmpi-mca-params.conf"],
    ],
    "leftovers": {},
    "orphans": [],
    "resolves": {"a": ["10.0.0.1"], "b": ["10.0.0.2"]},
    "took": 0.02,
    "time": 0.0,
}
SEVERAL = Need({"a": 4, "b": 4}, hosts=("a", "b"), flavour="openmpi5")


def seen(
    name: str = "a",
    changes: dict[str, Any] | None = None,
    health: dict[str, Any] | None = None,
    **more: Any,
) -> Seen:
    """A host; `changes` are by the path to a value in the survey, as "room.limits.AS"."""
    survey = copy.deepcopy(HEALTHY)
    for path, value in (changes or {}).items():
        *way, last = path.split(".")
        place = survey
        for word in way:
            place = place[word]
        if isinstance(value, dict):
            place[last].update(value)
        else:
            place[last] = value
    return Seen(Host(name), survey, {**WELL, **(health or {})}, **more)


def judged(
    changes: dict[str, Any] | None = None,
    health: dict[str, Any] | None = None,
    need: Need = SEVERAL,
) -> list[tuple[str, str]]:
    return codes(hosts.of_host(seen("a", changes, health), need))


def codes(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    found = list(findings)
    assert all(each.code in CODES for each in found)
    for each in found:
        assert each.what and not each.what.endswith("."), each
        assert each.fix, each
    return [(each.code, each.level.value) for each in found]


def test_a_healthy_host_has_no_findings() -> None:
    for flavour in ("", *FLAVOURS):
        for need in (Need(), Need({"": 8}, flavour=flavour), SEVERAL):
            assert judged(need=need) == []
    assert codes(hosts.of_host(Seen(Host("a"), HEALTHY, {}), SEVERAL)) == []


def test_a_mac_has_none_either() -> None:
    """There is no /dev/shm, and 256 files are what a process may open."""
    one = seen(changes={"room.limits.NOFILE": [256, None], "room.limits.NPROC": [2666, 4000]})
    del one.survey["room"]["folders"]["shm"]
    assert codes(hosts.of_host(one, Need({"a": 8}))) == []


# -------------------------------------------------------------------------------- disks


def disk(**more: Any) -> dict[str, Any]:
    """The one disk of home and /tmp."""
    return {f"room.folders.{name}": more for name in ("home", "shanty", "tmp")}


def one_of(name: str, **more: Any) -> dict[str, Any]:
    return {f"room.folders.{name}": {"device": 9, **more}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (disk(free=50 * MIB), [("disk-full", "error")]),
        (disk(free=0, error="ENOSPC"), [("disk-full", "error")]),
        (disk(error="EDQUOT"), [("disk-full", "error")]),
        (disk(free=500 * MIB), [("disk-full", "warning")]),
        (disk(inodes_free=3, error="ENOSPC"), [("inodes-full", "error")]),
        (disk(inodes=None, inodes_free=None), []),  # btrfs counts none
        ({"room.folders.home": {"readonly": True, "error": "EROFS"},
          "room.folders.shanty": {"readonly": True, "error": "EROFS"}},
         [("home-readonly", "error")]),
        ({"room.folders.shanty": {"error": "EACCES"}}, [("home-readonly", "error")]),
        ({"room.folders.shanty": {"error": "EIO"}}, [("home-readonly", "error")]),
        (one_of("shanty", free=0, error="ENOSPC"), [("disk-full", "error")]),
        (one_of("home", free=0, error="ENOSPC"), [("disk-full", "error")]),
        (one_of("home", free=MIB), []),  # all but authorized_keys is elsewhere
        (one_of("tmp", free=MIB), [("tmp-full", "error")]),
        (one_of("tmp", inodes_free=2), [("tmp-full", "error")]),
        (one_of("tmp", error="EACCES"), [("tmp-full", "error")]),
        (one_of("tmp", noexec=True), [("tmp-noexec", "warning")]),
    ],
)  # fmt: skip
def test_disks(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    """One disk that is full is one finding, however many folders are on it."""
    assert judged(changes) == expected


@pytest.mark.parametrize(
    ("error", "fix"),
    [("EROFS", "remount,rw"), ("EACCES", "chmod 1777"), ("ENOSPC", "remove files")],
)
def test_a_tmp_that_cannot_be_written(error: str, fix: str) -> None:
    one = seen()
    one.survey["room"]["folders"]["tmp"].update(error=error, free=MIB, device="other")
    (found,) = (each for each in hosts.of_host(one, Need({"a": 4})) if each.code == "tmp-full")
    assert fix in found.fix


def test_a_home_that_is_not_needed() -> None:
    """Where SHANTY_HOME is on another disk, and no other host has to be let in."""
    changes = one_of("home", readonly=True, error="EROFS")
    assert judged(changes, need=Need({"a": 4}, hosts=("a",))) == []
    assert judged(changes) == [("home-readonly", "error")]


def test_a_question_that_failed_is_no_finding() -> None:
    bare = {"path": "/home/u", "error": ""}
    one = seen()
    one.survey["room"]["folders"] = {name: dict(bare) for name in ("home", "shanty", "tmp", "shm")}
    one.survey["room"]["available"] = None
    one.survey["room"]["limits"] = dict.fromkeys(one.survey["room"]["limits"])
    assert codes(hosts.of_host(one, SEVERAL)) == []


@pytest.mark.parametrize(
    ("flavour", "size", "free", "expected"),
    [
        ("openmpi5", 8 * GIB, 8 * GIB, []),
        ("openmpi5", 10 * MIB, 10 * MIB, [("shm-small", "warning")]),
        ("mpich", 10 * MIB, 10 * MIB, [("shm-small", "error")]),
        ("intel", 10 * MIB, 10 * MIB, [("shm-small", "error")]),
        ("openmpi4", 10 * MIB, 10 * MIB, [("shm-small", "note")]),
        ("openmpi5", 64 * MIB, 64 * MIB, [("shm-small", "note")]),
        ("openmpi5", 65 * MIB, 65 * MIB, []),
        ("openmpi5", GIB, 2 * MIB, [("shm-full", "warning")]),
        ("openmpi5", GIB, 0, [("shm-full", "error")]),
        ("mpich", GIB, 2 * MIB, [("shm-full", "error")]),
    ],
)
def test_shared_memory(flavour: str, size: int, free: int, expected: list[tuple[str, str]]) -> None:
    """What is too little differs from MPI to MPI."""
    shm = {"room.folders.shm": {"size": size, "free": free}}
    assert judged(shm, need=Need({"a": 4}, flavour=flavour)) == expected


def test_a_full_shared_memory_tells_of_leftovers() -> None:
    left = {"/dev/shm": {"count": 3, "bytes": 40 * MIB}}
    full = {"room.folders.shm": {"free": 0, "error": "ENOSPC"}}
    (found,) = hosts.of_host(seen(changes=full, health={"leftovers": left}), SEVERAL)
    assert found.fixable
    assert "3 files of ended MPI jobs take 40 MiB" in found.fix
    (found,) = hosts.of_host(seen(changes=full), SEVERAL)
    assert not found.fixable


# ------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"room.limits.NOFILE": [64, 64]}, [("files-limit", "error")]),  # 4 ranks
        ({"room.limits.NOFILE": [128, 1024]}, [("files-limit", "warning")]),
        ({"room.limits.NPROC": [320, 320]}, [("processes-limit", "error")]),
        ({"room.limits.NPROC": [400, 400]}, [("processes-limit", "warning")]),
        ({"room.limits.NPROC": [320, 320], "room.privileged": True, "room.processes": None}, []),
        ({"room.limits.NPROC": [30, 30], "room.privileged": True, "room.processes": None},
         [("processes-limit", "warning")]),
        ({"room.limits.AS": [256 * MIB, None]}, [("memory-limit", "error")]),
        ({"room.limits.DATA": [GIB, None]}, [("memory-limit", "warning")]),
        ({"room.limits.AS": [32 * GIB, None]}, []),
        ({"room.limits.MEMLOCK": [64 << 10, 64 << 10]}, []),
        ({"room.limits.MEMLOCK": [64 << 10, 64 << 10], "fabrics": ["infiniband"]},
         [("memory-limit", "warning")]),
    ],
)  # fmt: skip
def test_limits(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert judged(changes) == expected


def test_intel_maps_more_than_the_others() -> None:
    two = {"room.limits.AS": [2 * GIB, None]}
    assert judged(two, need=Need({"a": 1}, flavour="intel")) == [("memory-limit", "error")]
    assert judged(two, need=Need({"a": 1}, flavour="mpich")) == [("memory-limit", "warning")]


# ------------------------------------------------------------------- what was asked of it


@pytest.mark.parametrize(
    ("need", "changes", "expected"),
    [
        (Need({"a": 4}, memory=5 * GIB), {}, [("memory-short", "error")]),
        (Need({"a": 4}, memory=int(3.5 * GIB)), {}, [("memory-short", "warning")]),
        (Need({"a": 4}, memory=2 * GIB), {}, []),
        (Need({"b": 4}, memory=5 * GIB), {}, []),
        (Need({"a": 4}, gpus=1), {}, [("gpus-short", "error")]),
        (Need({"a": 4}, gpus=1), {"gpus": [{"name": "T4"}] * 4}, []),
        (Need({"a": 2}, gpus=4), {"gpus": [{"name": "T4"}] * 4}, [("gpus-short", "error")]),
        (Need({"a": 9}), {}, [("slots-over-cores", "warning")]),
        (Need({"a": 9}, oversubscribe=True), {}, []),
        (SEVERAL, {"ssh_program": ""}, [("ssh-missing", "error")]),
        (Need({"a": 4}, hosts=("a",)), {"ssh_program": ""}, []),
        (Need({"a": 4}, hosts=("b", "a")), {"ssh_program": ""}, []),
        (Need(tags=("manylinux_2_28_x86_64",)), {}, []),
        (Need(tags=("manylinux_2_28_x86_64",)), {"arch": "aarch64"}, [("arch-differs", "error")]),
        (Need(tags=("manylinux_2_28_x86_64",)), {"libc": ["glibc", "2.17"]},
         [("libc-old", "error")]),
        (Need(tags=("manylinux_2_28_x86_64",)), {"libc": ["", ""]}, [("libc-old", "error")]),
        (Need(tags=("manylinux_2_28_x86_64",)), {"system": "Darwin", "libc": ["", ""]},
         [("libc-old", "error")]),
        (Need(tags=("any",)), {"arch": "riscv64"}, []),
    ],
)  # fmt: skip
def test_what_was_asked(
    need: Need, changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert judged(changes, need=need) == expected


# ------------------------------------------------------------------------------ its health


@pytest.mark.parametrize(
    ("rights", "expected"),
    [
        ([["/home/u", 0o777, 1000]], [("home-open", "warning")]),
        ([["/home/u", 0o775, 1000]], [("home-open", "note")]),
        ([["/home/u", 0o755, 1001]], [("home-open", "warning")]),
        ([["/home/u", 0o755, 0]], []),
        ([["/home/u", 0o755, 1000], ["/home/u/.ssh", 0o702, 1000]], [("home-open", "warning")]),
    ],
)
def test_rights(rights: list[list[Any]], expected: list[tuple[str, str]]) -> None:
    assert judged(health={"rights": rights}) == expected


def test_the_fix_of_an_open_home_can_be_pasted() -> None:
    one = seen(health={"rights": [["/home/my u", 0o777, 1000]]})
    (found,) = hosts.of_host(one, SEVERAL)
    assert found.command == "ssh a 'chmod go-w '\"'\"'/home/my u'\"'\"''"
    assert found.fixable


def test_strays() -> None:
    left = {"pid": 7, "name": "prted", "run": ""}
    assert judged(health={"orphans": [left]}) == [("strays", "warning")]
    own = {**left, "run": "20260101-000000-abcd"}
    for orphans, fixable in (([left], False), ([own], True), ([left, own], True)):
        (one,) = hosts.of_host(seen(health={"orphans": [{**x} for x in orphans]}), SEVERAL)
        assert one.fixable is fixable


@pytest.mark.parametrize("loopback", ["127.0.1.1", "127.0.0.1", "::1"])
def test_an_own_name_that_is_a_loopback_address(loopback: str) -> None:
    """It matters to other hosts only, and not to shanty."""
    resolves = {"resolves": {"a": [loopback]}}
    assert judged(health=resolves) == [("name-loopback", "note")]
    assert judged(health=resolves, need=Need({"a": 4}, hosts=("a",))) == []
    assert judged(health={"resolves": {"a": None}}) == []
    assert judged(health={"resolves": {"a": []}}) == []


# ------------------------------------------------------------------------------- settings

TWO = Need(hosts=("a", "b"))
FILE = "/home/u/.openmpi/mca-params.conf"


def harmful(
    name: str, value: str, file: str, need: Need, **facts: Any
) -> list[hosts.HarmfulSetting]:
    """What is found of that one setting on host a."""
    health = {"settings": [[name, value, file]]}
    return list(hosts.harmful(seen(changes=facts, health=health), need))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("btl_tcp_if_include", "ib0"),
        ("btl_tcp_if_include", "192.168.5.0/24"),
        ("btl_tcp_if_include", "nonsense/x"),
        ("OMPI_MCA_oob_tcp_if_include", "ib0,ib1"),
        ("PRTE_MCA_prte_if_include", "ib0"),
        ("I_MPI_HYDRA_IFACE", "ib0"),
        ("FI_TCP_IFACE", "ib0"),
        ("NCCL_SOCKET_IFNAME", "ib"),
        ("NCCL_SOCKET_IFNAME", "=eth"),
        ("GLOO_SOCKET_IFNAME", "ib0"),
        ("UCX_NET_DEVICES", "ib0"),
        ("btl_tcp_if_exclude", "lo,docker0"),
        ("btl", "self,sm"),
        ("btl", "^tcp"),
        ("btl", "self,openib"),
        ("I_MPI_FABRICS", "shm"),
        ("FI_PROVIDER", "psm2"),
        ("I_MPI_OFI_PROVIDER", "mlx"),
        ("UCX_TLS", "rc,sm,self"),
        ("UCX_TLS", "^tcp"),
        ("plm_rsh_agent", "/opt/site/launch"),
        ("PRTE_MCA_plm_ssh_agent", "/usr/bin/qrsh -inherit"),
        ("plm", "slurm"),
        ("I_MPI_HYDRA_BOOTSTRAP", "slurm"),
        ("HYDRA_LAUNCHER_EXEC", "/opt/site/launch"),
    ],
)
def test_settings_that_break_runs(name: str, value: str) -> None:
    (found,) = harmful(name, value, "", TWO)
    assert found.why


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("btl_tcp_if_include", "eth0"),
        ("btl_tcp_if_include", "ib0,eth0"),  # Open MPI goes on with those that there are
        ("btl_tcp_if_include", "10.0.0.0/8"),
        ("NCCL_SOCKET_IFNAME", "eth"),
        ("NCCL_SOCKET_IFNAME", "^docker"),
        ("NCCL_SOCKET_IFNAME", "=eth0"),
        ("UCX_NET_DEVICES", "all"),
        ("UCX_NET_DEVICES", "mlx5_0:1"),
        ("btl", "self,sm,tcp"),
        ("btl", "^openib"),
        ("I_MPI_FABRICS", "shm:ofi"),
        ("FI_PROVIDER", "tcp"),
        ("FI_PROVIDER", "tcp;ofi_rxm"),
        ("UCX_TLS", "tcp,sm,self"),
        ("UCX_TLS", "all"),
        ("plm_rsh_agent", "ssh : rsh"),
        ("plm_ssh_agent", "ssh -x"),
        ("plm", "^slurm"),
        ("plm", "rsh"),
        ("I_MPI_HYDRA_BOOTSTRAP", "ssh"),
        ("btl_tcp_if_include", ""),
        ("mpi_yield_when_idle", "1"),
        ("OMPI_MCA_something_new", "ib0"),
    ],
)
def test_settings_that_do_not(name: str, value: str) -> None:
    assert harmful(name, value, "", TWO) == []


def test_on_one_host_the_network_does_not_matter() -> None:
    here = Need(hosts=("a",))
    for name, value in (("btl", "self,sm"), ("I_MPI_FABRICS", "shm"), ("FI_PROVIDER", "psm2"),
                        ("btl_tcp_if_include", "ib0"), ("plm_rsh_agent", "/x")):  # fmt: skip
        assert harmful(name, value, "", here) == []
    (found,) = harmful("oob_tcp_if_include", "ib0", "", here)
    assert found.name == "oob_tcp_if_include"


def test_only_the_lead_starts_others() -> None:
    of_worker = Need(hosts=("b", "a"))
    assert harmful("plm_rsh_agent", "/x", FILE, of_worker) == []


def test_a_fabric_makes_its_transports_good() -> None:
    for name, value in (("btl", "self,sm,openib"), ("FI_PROVIDER", "verbs"), ("UCX_TLS", "rc")):
        assert harmful(name, value, "", TWO, fabrics=["infiniband"]) == []


@pytest.mark.parametrize(
    ("name", "value", "flavour", "level"),
    [
        ("btl_tcp_if_include", "ib0", "openmpi5", Level.WARNING),
        ("btl", "self,sm", "openmpi4", Level.WARNING),
        ("btl_tcp_if_exclude", "lo", "openmpi5", Level.WARNING),
        ("btl_tcp_if_exclude", "lo", "mpich", Level.WARNING),
        ("plm_rsh_agent", "/x", "openmpi4", Level.ERROR),
        ("plm_rsh_agent", "/x", "", Level.ERROR),
        ("UCX_TLS", "rc", "mpich", Level.ERROR),
        ("UCX_TLS", "rc", "intel", Level.WARNING),
        ("FI_PROVIDER", "psm2", "intel", Level.ERROR),
        ("FI_PROVIDER", "psm2", "openmpi5", Level.WARNING),
    ],
)
def test_what_breaks_shantys_runs_too_is_an_error(
    name: str, value: str, flavour: str, level: Level
) -> None:
    (found,) = harmful(name, value, FILE, replace(TWO, flavour=flavour))
    assert found.level is level


def harmless(meaning: str) -> bool:
    """Nothing that such a setting says on a host without a fast network is found to be harmful."""
    names = [name for name, means in MEANINGS.items() if means == meaning]
    values = ("ib0", "self,sm", "shm", "psm2", "/opt/site/launch")
    return not any(harmful(name, value, "", TWO) for name in names for value in values)


def test_what_is_known_of_settings_fits_together() -> None:
    assert {meaning for meaning in MEANINGS.values() if harmless(meaning)} == set()
    assert set(BREAKS) <= set(MEANINGS)
    assert {name for about in BREAKS.values() for name in about} <= set(FLAVOURS)


def test_only_files_below_the_home_are_mended() -> None:
    for place, mended in (
        (FILE, True),
        ("/etc/openmpi/openmpi-mca-params.conf", False),
        ("", False),
    ):
        settings = {"settings": [["btl_tcp_if_include", "ib0", place]]}
        (one,) = hosts.of_host(seen(health=settings), SEVERAL)
        assert one.fixable is mended


@given(st.text(max_size=30), st.sampled_from(sorted(MEANINGS)))
def test_no_value_upsets_the_judges(value: str, name: str) -> None:
    harmful(name, value, "", TWO)


# ---------------------------------------------------------------------------- side by side


def at(name: str, address: str, **more: Any) -> Seen:
    """A host of that name at that address."""
    entry = {"interface": "eth0", "address": address, "prefix": 24, "loopback": False}
    changes = {"hostname": name, "instance": name, "addresses": [entry]}
    meant = {"a": ["10.0.0.1"], "b": ["10.0.0.2"], "c": ["10.0.0.3"]}
    resolves = {"resolves": {**meant, **more.pop("resolves", {})}}
    return seen(name, changes, resolves, **more)


def together(*found: Seen) -> list[tuple[str, str]]:
    return [(each.code, each.host) for each in pairs.of_hosts(found)]


def test_hosts_that_agree() -> None:
    assert together(at("a", "10.0.0.1"), at("b", "10.0.0.2"), at("c", "10.0.0.3")) == []


def test_a_name_that_is_somebody_else_elsewhere() -> None:
    """The one who is wrong is named, not the one whose name it is."""
    stale = at("b", "10.0.0.2", resolves={"c": ["10.0.0.99"]})
    others = (at("a", "10.0.0.1"), at("c", "10.0.0.3"))
    assert together(others[0], stale, others[1]) == [("name-differs", "b")]


@pytest.mark.parametrize(
    "meant",
    [
        ["10.0.0.99", "10.0.0.3"],  # one of them is right
        [],  # unknown there
        None,  # no answer in time
        ["8.8.8.8"],  # a cloud's public address of a host that has a private one
    ],
)
def test_names_that_are_no_trouble(meant: list[str] | None) -> None:
    assert together(at("b", "10.0.0.2", resolves={"c": meant}), at("c", "10.0.0.3")) == []


def test_in_a_run_no_address_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without health nothing can be found, however many hosts there are."""
    monkeypatch.delattr(pairs, "_addresses")
    found = (at("a", "10.0.0.1"), at("b", "10.0.0.2"))
    assert together(*(replace(one, health={}) for one in found)) == []


def test_addresses_are_compared_as_numbers() -> None:
    """fe80 addresses bear their zone, and IPv6 is written in many ways."""
    other = at("c", "fd00:0:0::3")
    assert together(at("b", "10.0.0.2", resolves={"c": ["fd00::3"]}), other) == []


def test_two_names_of_one_machine() -> None:
    """That is all there is to say of the second."""
    twice = at("c", "10.0.0.2", resolves={"b": ["10.0.0.77"]})
    twice.survey["instance"] = "b"  # type: ignore[index]
    assert together(at("b", "10.0.0.2"), twice) == [("same-host", "c")]


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([0.01, -0.02, 0.0], []),
        ([4.0, 0.0, -4.0], []),
        ([3000.0, 0.0, 0.0], ["a"]),
        ([0.0, 0.0, -8.0], ["c"]),
        ([60.0, 60.0, 60.0], [""]),  # it is this machine's
        ([60.0, 60.0, 0.0], ["a", "b"]),  # two against two: this machine is believed
        ([60.0, 120.0, 180.0], ["a", "b", "c"]),
    ],
)
def test_clocks(errors: list[float], expected: list[str]) -> None:
    found = [
        at(name, f"10.0.0.{number}", clock_error=error, clock_doubt=0.1)
        for number, (name, error) in enumerate(zip("abc", errors, strict=True), 1)
    ]
    assert together(*found) == [("clock-off", name) for name in expected]


def test_a_clock_that_was_read_badly_is_not_judged() -> None:
    assert together(at("a", "10.0.0.1", clock_error=8.0, clock_doubt=4.0)) == []
    assert together(at("a", "10.0.0.1")) == []


def test_one_host_and_this_machine() -> None:
    """It is the host's word against this machine's, which is where somebody looks at the time."""
    (found,) = pairs.of_hosts([at("a", "10.0.0.1", clock_error=-400.0)])
    assert (found.host, found.level) == ("a", Level.WARNING)
    assert "7 min behind the clock of this machine" in found.what


def test_the_way_to_a_host_and_back_is_no_error_of_its_clock() -> None:
    """What the question took there is taken off, the rest is shared out."""
    error, doubt = hosts.clock(100.0, 103.0, {"time": 152.5, "took": 2.0})
    assert error == pytest.approx(50.0)
    assert doubt == pytest.approx(0.5)


def test_keys_of_two_hosts() -> None:
    found = [at("a", "10.0.0.1"), at("b", "10.0.0.2"), at("c", "10.0.0.3")]
    known = {
        "a": ["shanty-0 ssh-ed25519 AAAA", "shanty-0 ssh-rsa RRRR"],
        "b": ["shanty-1 ssh-ed25519 BBBB", "@revoked shanty-1 ssh-rsa RRRR"],
        "c": ["shanty-2 ssh-ed25519 AAAA"],
    }
    same = [(each.code, each.host) for each in pairs._same_keys(found, known)]
    assert same == [("same-host-key", "c")]


# -------------------------------------------------------------------------------- causes


def finding(code: str, host: str, level: Level = Level.ERROR) -> Finding:
    return Finding(code, level, host, "what")


def test_what_follows_from_another_finding_is_left_out() -> None:
    found = [finding("run-key-refused", "a"), finding("disk-full", "a"), finding("strays", "a")]
    assert [each.code for each in without_consequences(found)] == ["disk-full", "strays"]


def test_it_has_to_be_on_the_same_host_and_an_error() -> None:
    found = [finding("run-key-refused", "a"), finding("disk-full", "b"),
             finding("disk-full", "a", Level.WARNING)]  # fmt: skip
    assert without_consequences(found) == found


def test_causes_are_codes() -> None:
    every = {*EXPLAINS, *(code for each in EXPLAINS.values() for code in each)}
    assert every <= set(CODES)


# ------------------------------------------------------------------------------- wording


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 KiB"), (512 << 10, "512 KiB"), (GIB, "1 GiB"), (3 * GIB // 2, "1.5 GiB"),
     (1023 * GIB, "1023 GiB"), (4 << 40, "4 TiB")],
)  # fmt: skip
def test_amounts(size: int, text: str) -> None:
    assert amount(size) == text


def test_commands_for_a_host() -> None:
    assert command_on(Host(""), "chmod", "go-w", "/x y") == "chmod go-w '/x y'"
    host = Host("a", user="u", port=2222, config="/c d")
    assert command_on(host, "ls", "-l") == "ssh -F '/c d' -p 2222 u@a 'ls -l'"
