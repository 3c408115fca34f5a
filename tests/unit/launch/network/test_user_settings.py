"""The networks of a run: what each MPI is told of them, what the user says, what is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shanty.launch.finding import Finding, Level
from shanty.launch.network import selection, user_settings
from shanty.launch.network.topology import Choice, Interface, Rail, Route
from shanty.launch.targets import networks
from shanty.runtime.errors import PrepareError
from shanty.runtime.mpi.flavour import Flavour
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.mpi.translate import decided_by, translate
from shanty.runtime.plan import Node
from shanty.runtime.resolve import layout_of, network_settings
from shanty.runtime.spec import JobSpec, Program, Raw, Script

HOSTS = ("a", "b")
LAYOUT = Layout(
    tuple(HostSlots(name, 1) for name in HOSTS),
    2, None, None, False, 4, "/hostfile", tcp_only=True,
    networks=("10.1.0.0/24",), interface="tb0",
)  # fmt: skip
JOB = JobSpec(Script("x.py"))


def rail(name: str, network: str) -> Rail:
    """A network with that interface on all hosts; `network` is the addresses' beginning."""
    return Rail({h: Interface(name, f"{network}{i}", 24) for i, h in enumerate(HOSTS, 1)})


FAST, SLOW = rail("tb0", "10.1.0."), rail("eth0", "10.0.0.")
ROUTE = Route((FAST,), "the fastest")
IPV6 = rail("tb0", "2001:db8::")


def of_host(
    route: Route, host: str, flavour: Flavour, layout: Layout, given: dict[str, str]
) -> dict[str, str]:
    """What is set on a host of a run that takes `route`."""
    return network_settings(networks.interfaces_of(route, host), flavour, layout, given)


def common_name(route: Route) -> str:
    """The name of the best network's interface, if it is the same on all hosts."""
    nodes = [
        Node(number, host, host, 1, 1, "/r", "/w", "python", "python", "/p", {})._replace(
            interfaces=networks.interfaces_of(route, host)
        )
        for number, host in enumerate(route.rails[0].interfaces)
    ]
    return layout_of(JobSpec(Program(("x",)), ranks=1), nodes).interface


def told(name: str, layout: Layout = LAYOUT, **given: str) -> dict[str, str]:
    """All that is set of networks for what starts on a host, and for the launcher."""
    flavour = FLAVOURS[name]
    installation = Installation(name, "1", "/mpi", "/mpi/bin/mpirun", "/mpi/lib/m", "shanty")
    where = replace(layout, networks=(), interface="")
    before = flavour.environment(installation, where, given, "/tmp/s")
    every = flavour.environment(installation, layout, given, "/tmp/s")
    new = {key: value for key, value in every.items() if key not in before}
    return {**new, **of_host(ROUTE, "a", flavour, layout, given)}


@pytest.mark.parametrize(
    ("name", "launcher"),
    [
        ("openmpi5", {"PRTE_MCA_prte_if_include": "tb0",
                      "PRTE_MCA_oob_tcp_disable_ipv6_family": "1"}),
        ("openmpi4", {"OMPI_MCA_oob_tcp_if_include": "tb0",
                      "OMPI_MCA_oob_tcp_disable_ipv6_family": "1"}),
        ("mpich", {"HYDRA_IFACE": "tb0"}),
        ("intel", {"I_MPI_HYDRA_IFACE": "tb0"}),
    ],
)  # fmt: skip
def test_a_launcher_is_given_a_name_that_all_hosts_share(
    name: str, launcher: dict[str, str]
) -> None:
    """All settings, where names differ, are in ../../runtime/golden."""
    assert launcher.items() <= told(name).items()


@pytest.mark.parametrize("name", FLAVOURS)
def test_where_there_is_a_faster_fabric_it_is_left_free(name: str) -> None:
    assert "UCX_NET_DEVICES" not in told(name, replace(LAYOUT, tcp_only=False))


@pytest.mark.parametrize("name", FLAVOURS)
def test_nothing_is_told_of_a_single_host(name: str) -> None:
    assert of_host(networks.OPEN, "a", FLAVOURS[name], LAYOUT, {}) == {}
    assert networks.interfaces_of(networks.OPEN, "a") == ()


@pytest.mark.parametrize("name", FLAVOURS)
def test_the_users_own_settings_stay(name: str) -> None:
    for variable in told(name):
        assert variable not in told(name, **{variable: "mine"})


@pytest.mark.parametrize("name", ["openmpi5", "openmpi4"])
def test_an_exclusion_of_the_users_is_not_contradicted(name: str) -> None:
    """Open MPI refuses to start where both are set."""
    found = told(name, OMPI_MCA_btl_tcp_if_exclude="lo,docker0")
    assert not [key for key in found if key.startswith("OMPI_MCA_btl_tcp")]
    found = told(name, OMPI_MCA_oob_tcp_if_exclude="docker0")
    assert not [key for key in found if "oob" in key or "prte_if" in key]


def test_ipv6() -> None:
    layout = replace(LAYOUT, networks=("2001:db8::/64",), interface="tb0")
    found = told("openmpi5", layout)
    assert "PRTE_MCA_prte_if_include" not in found
    assert found["PRTE_MCA_oob_tcp_disable_ipv4_family"] == "1"
    assert found["OMPI_MCA_btl_tcp_disable_family"] == "4"


def test_several_networks() -> None:
    """Open MPI deals its data out over all of them, the others take the best one."""
    route = Route((FAST, SLOW))
    found = of_host(route, "a", FLAVOURS["openmpi5"], LAYOUT, {})
    assert found["OMPI_MCA_btl_tcp_if_include"] == "tb0,eth0"
    assert found["NCCL_SOCKET_IFNAME"] == "=tb0,eth0"
    assert of_host(route, "a", FLAVOURS["intel"], LAYOUT, {})["FI_TCP_IFACE"] == "tb0"
    assert networks.described(route) == "tb0 (10.1.0.0/24) and eth0 (10.0.0.0/24)"
    assert common_name(route) == "tb0"


def test_names_that_differ() -> None:
    ends = {"a": Interface("eth0", "10.1.0.1", 24), "b": Interface("enp3s0", "10.1.0.2", 24)}
    route = Route((Rail(ends),))
    assert networks.interfaces_of(route, "b")[0][:2] == ("enp3s0", "10.1.0.2")
    assert common_name(route) == ""
    assert networks.described(route) == "eth0 / enp3s0 (10.1.0.0/24)"


@pytest.mark.parametrize(
    ("name", "given", "ports"),
    [
        ("openmpi5", {"OMPI_MCA_btl_tcp_port_min_v4": "20020",
                      "OMPI_MCA_btl_tcp_port_range_v4": "980"}, (20020, 20999)),
        ("openmpi4", {"OMPI_MCA_btl_tcp_port_min_v4": "20020"}, None),
        ("mpich", {"UCX_TCP_PORT_RANGE": "20100-20999"}, (20100, 20999)),
        ("intel", {"I_MPI_PORT_RANGE": "20000:20999"}, (20000, 20999)),
        ("intel", {"I_MPI_PORT_RANGE": "20999:20000"}, None),
        ("mpich", {"UCX_TCP_PORT_RANGE": "auto"}, None),
        ("mpich", {}, None),
    ],
)  # fmt: skip
def test_the_ports_that_the_user_allows(
    name: str, given: dict[str, str], ports: tuple[int, int] | None
) -> None:
    assert FLAVOURS[name].ports(given) == ports


# ---------------------------------------------------------------------------- the choice


class Chosen:
    """`networks.chosen` with a decision that is made up; what it warned of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, choice: Choice) -> None:
        self.warnings: list[str] = []
        monkeypatch.setattr(selection, "decide", lambda *_, **__: choice)

    def __call__(self, name: str, job: JobSpec = JOB) -> Route:
        installation = Installation(name, "1", "/mpi", "/mpi/bin/mpirun", "/mpi/lib/m", "shanty")
        members: Any = [SimpleNamespace(name=host, survey=SURVEY) for host in HOSTS]
        say, warn = (lambda _: None), self.warnings.append
        return networks.chosen(job, installation, members, Path("/nowhere"), say, warn)


def entry(name: str, address: str) -> dict[str, Any]:
    return {"interface": name, "address": address, "prefix": 24, "up": True, "loopback": False}


SURVEY = {
    "addresses": [entry("eth0", "10.0.0.1"), entry("tb0", "10.1.0.1"), entry("tb1", "10.2.0.1")]
}
BLOCKED = Finding("port-blocked", Level.ERROR, "b", "a → b is blocked", "no answer", "open it")


def test_what_was_chosen_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    note = Finding("net-dead", Level.NOTE, "a", "tun0 is dead")
    slow = Finding("net-slow", Level.WARNING, "a", "it is slow", "94 Mbit/s", "see to the cable")
    choose = Chosen(monkeypatch, Choice(Route((FAST,), "fast"), (note, slow), joining=(FAST,)))
    assert choose("mpich") == Route((FAST,), "fast")
    assert choose.warnings == ["a: it is slow (94 Mbit/s); see to the cable [net-slow]"]


def test_an_error_ends_the_run_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PrepareError) as error:
        Chosen(monkeypatch, Choice(Route(), (BLOCKED,)))("mpich")
    assert (error.value.what, error.value.why) == (
        "b: a → b is blocked [port-blocked]",
        "no answer",
    )
    assert error.value.fix == "open it"


def test_the_user_may_know_better(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = Chosen(monkeypatch, Choice(Route(), (BLOCKED,), joining=(FAST,)))
    assert choose("mpich", replace(JOB, env={"UCX_NET_DEVICES": "tb0"})) == Route()
    assert choose.warnings == ["b: a → b is blocked (no answer); open it [port-blocked]"]


@pytest.mark.parametrize("name", FLAVOURS)
def test_hosts_that_are_joined_by_ipv6_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = Chosen(monkeypatch, Choice(Route((IPV6,)), joining=(IPV6,)))
    if name == "openmpi5":
        assert choose(name).rails == (IPV6,)
        return
    with pytest.raises(PrepareError, match=r"joined by IPv6 only, which .* cannot use") as error:
        choose(name)
    able = " or ".join(f"--mpi {key}" for key, flavour in FLAVOURS.items() if flavour.ipv6)
    assert error.value.fix.startswith(f"take {able}, or ")


def test_rails_of_two_families_are_not_mixed() -> None:
    assert user_settings.usable(Route((IPV6, FAST)), FLAVOURS["openmpi5"], HOSTS)[0].rails == (
        IPV6,
    )
    assert user_settings.usable(Route((IPV6, FAST)), FLAVOURS["intel"], HOSTS)[0].rails == (FAST,)
    assert user_settings.usable(Route((FAST, SLOW)), FLAVOURS["intel"], HOSTS)[0].rails == (
        FAST,
        SLOW,
    )


# ------------------------------------------------------------------------ the user's flags


def line(text: str) -> JobSpec:
    return replace(JOB, command=Raw(tuple(text.split())))


def shell(text: str) -> JobSpec:
    return replace(JOB, command=Raw((text,), shell=True))


@pytest.mark.parametrize(
    ("name", "job", "written"),
    [
        ("openmpi5", replace(JOB, env={"OMPI_MCA_btl_tcp_if_include": "eth0", "A": "b"}),
         ["OMPI_MCA_btl_tcp_if_include=eth0"]),
        ("openmpi5", line("mpirun --mca btl_tcp_if_include br0 --mca oob_tcp_if_include br0 x"),
         ["--mca btl_tcp_if_include br0", "--mca oob_tcp_if_include br0"]),
        ("openmpi5", line("mpirun --prtemca prte_if_include 10.0.0.0/8 x"),
         ["--prtemca prte_if_include 10.0.0.0/8"]),
        ("mpich", line("mpiexec -iface eth1 -genv UCX_NET_DEVICES eth1 x"),
         ["-iface eth1", "-genv UCX_NET_DEVICES eth1"]),
        ("intel", shell("cd x && FI_TCP_IFACE=eth0 mpirun -x NCCL_SOCKET_IFNAME=eth python t.py"),
         ["FI_TCP_IFACE=eth0", "-x NCCL_SOCKET_IFNAME=eth"]),
        ("intel", shell("echo 'half a quote"), []),
        ("mpich", replace(JOB, env={"OMPI_MCA_btl_tcp_if_include": "eth0"}), []),  # not its own
        ("openmpi4", line("mpirun -np 2 x"), []),
    ],
)  # fmt: skip
def test_what_the_user_says_of_networks(name: str, job: JobSpec, written: list[str]) -> None:
    assert [flag.written for flag in user_settings.given(job, FLAVOURS[name])] == written


A = {"addresses": [entry("eth0", "10.0.0.1"), entry("tb0", "10.1.0.1"), entry("br0", "172.17.0.1")]}
B = {"addresses": [entry("eth0", "10.0.0.2"), entry("ib1", "10.1.0.2"), entry("br0", "172.17.0.1")]}
OTHER = Rail({"a": Interface("tb0", "10.1.0.1", 24), "b": Interface("ib1", "10.1.0.2", 24)})


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("OMPI_MCA_btl_tcp_if_include", "eth0", ""),
        ("OMPI_MCA_btl_tcp_if_include", "10.1.0.0/24", ""),
        ("OMPI_MCA_btl_tcp_if_include", "eth0,10.1.0.0/16", ""),
        ("OMPI_MCA_btl_tcp_if_include", "tb0", "matches no interface on b"),
        ("OMPI_MCA_btl_tcp_if_include", "br0", "takes br0, which does not lead to all other hosts"),
        ("OMPI_MCA_btl_tcp_if_include", "eth0,br0", "takes br0"),
        ("PRTE_MCA_prte_if_include", "192.168.0.0/16", "matches no interface on a, b"),
        ("UCX_NET_DEVICES", "all", ""),
        ("UCX_NET_DEVICES", "mlx5_0:1", ""),
        ("UCX_NET_DEVICES", "eth1", "on a, b"),
        ("NCCL_SOCKET_IFNAME", "eth", ""),
        ("NCCL_SOCKET_IFNAME", "=eth", "on a, b"),
        ("NCCL_SOCKET_IFNAME", "^br0,lo", ""),
        ("GLOO_SOCKET_IFNAME", "eth", "on a, b"),
        ("FI_TCP_IFACE", "$NIC", ""),
    ],
)  # fmt: skip
def test_whether_it_fits_the_hosts(variable: str, value: str, says: str) -> None:
    flag = user_settings.Flag(f"{variable}={value}", variable, value, of_ranks="OMPI" in variable)
    found = user_settings.check([flag], {"a": A, "b": B}, (SLOW, OTHER), Route((OTHER,)))
    assert bool(found) == bool(says)
    for finding in found:
        hopeless = "on a, b" in says and "MCA" in variable  # nothing that the MPI could use
        level = Level.ERROR if hopeless else Level.WARNING
        assert (finding.code, finding.level) == ("flag-interface", level)
        assert finding.what.startswith(f"{variable}={value} ")
        assert says in finding.what
        assert "tb0 / ib1" in finding.fix


# ------------------------------------------------------------------ a launcher's own line

DECIDED = [
    ("openmpi5", "--mca btl_tcp_if_exclude lo x", {"OMPI_MCA_btl_tcp_if_include"}),
    ("openmpi5", "--mca btl_tcp_if_include lo x", {"OMPI_MCA_btl_tcp_disable_family"}),
    ("openmpi5", "--mca oob_tcp_if_include lo x", {"PRTE_MCA_prte_if_include"}),
    ("openmpi4", "--mca pml ucx x", {"OMPI_MCA_pml", "OMPI_MCA_btl"}),
    ("openmpi4", "-x A=1 -x B x", {"A"}),
    ("mpich", "-iface eth0 x", {"HYDRA_IFACE", "UCX_NET_DEVICES"}),
    ("intel", "--mca btl_tcp_if_include eth0 x", {"I_MPI_HYDRA_IFACE", "FI_TCP_IFACE"}),
    ("intel", "-genv FI_TCP_IFACE eth0 -env B 2 x", {"FI_TCP_IFACE", "B"}),
]


@pytest.mark.parametrize(("name", "words", "decided"), DECIDED)
def test_what_a_line_decides(name: str, words: str, decided: set[str]) -> None:
    assert decided <= decided_by(words.split(), FLAVOURS[name])
    assert not decided & decided_by(["x"], FLAVOURS[name])
    assert "B" not in decided_by(["-x", "B", "x"], FLAVOURS[name])


def test_the_interface_of_a_line_is_for_the_ranks_too() -> None:
    """Hydra's own -iface is not."""
    for words in ("-iface eth0 x", "--mca btl_tcp_if_include eth0 x"):
        found = translate(words.split(), FLAVOURS["mpich"], LAYOUT, given_environment={})
        assert found.environment["UCX_NET_DEVICES"] == "eth0"
        assert found.argv[:2] == ("-iface", "eth0")
    own = {"UCX_NET_DEVICES": "tb0"}  # what -e says stays
    found = translate(["-iface", "eth0", "x"], FLAVOURS["mpich"], LAYOUT, given_environment=own)
    assert "UCX_NET_DEVICES" not in found.environment
