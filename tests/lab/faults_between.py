"""Faults between hosts: names, firewalls, networks; and faults of the MPI that they share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import planted
from faults_case import Fault, table
from faults_world import World

BETWEEN: list[Fault] = []
fault = table(BETWEEN)

# A firewall as distributions set one up: ssh, ping and what was asked for comes in.
ONLY_SSH = (
    "ct state established,related accept",
    "iif lo accept",
    "meta l4proto { icmp, ipv6-icmp } accept",
    "tcp dport 22 accept",
)


# ------------------------------------------------------------------------------- names


@fault("its own name is 127.0.1.1 in its /etc/hosts", "name-loopback", "lab2", level="note")
def own_name(world: World) -> Iterator[None]:
    path = world.own("lab2", "etc/hosts")
    with world.text(path, lambda text: text.replace(world.address("lab2"), "127.0.1.1")):
        yield


@fault(
    "it resolves the name of another host to a wrong address", "name-differs", "lab2", level="note"
)
def other_name(world: World) -> Iterator[None]:
    path = world.own("lab2", "etc/hosts")
    wrong = world.address("lab3").rpartition(".")[0] + ".99"
    with world.text(path, lambda text: text.replace(world.address("lab3"), wrong)):
        yield


@fault("two names mean one machine", "same-host", "lab3")
def two_names(world: World) -> Iterator[None]:
    old, new = world.address("lab3"), world.address("lab2")

    def changed(text: str) -> str:
        return text.replace(f"{old} 22", f"{new} 22").replace("Alias lab3", "Alias lab2")

    with ExitStack() as stack:
        stack.enter_context(world.way_to("lab3", changed))
        if world.bare:
            hosts, known = world.own("lab1", "etc/hosts"), world.known_hosts[1]
            stack.enter_context(world.text(hosts, lambda text: text.replace(old, new)))
            stack.enter_context(world.text(known, lambda text: text.replace("lab2,", "lab2,lab3,")))
        yield


@fault("two hosts were copied from one disk, host key included", "same-host-key", "lab3",
       level="warning")  # fmt: skip
def copied_key(world: World) -> Iterator[None]:
    key = world.own("lab2", "host_key").read_text()
    public = world.own("lab2", "host_key.pub").read_text().split()[1]
    own = world.own("lab3", "host_key.pub").read_text().split()[1]
    with ExitStack() as stack:
        for path in world.known_hosts:
            stack.enter_context(world.text(path, lambda text: text.replace(own, public)))
        stack.enter_context(world.sshd("lab3", "# it starts again at the end, with its own key"))
        stack.enter_context(world.text(world.own("lab3", "host_key"), lambda _text: key))
        world.restart_sshd("lab3")
        yield


# --------------------------------------------------------------------------- firewalls


@fault("its firewall drops ssh from the lead host", "lead-blocked", "lab2", drops=True, runs=True)
def lead_dropped(world: World) -> Iterator[None]:
    rule = f"ip saddr {world.address('lab1')} tcp dport 22 drop"
    with world.firewall("lab2", rule):
        yield


@fault("its sshd reads keys only from a file of the administrator", "run-key-refused", "lab2")
def keys_elsewhere(world: World) -> Iterator[None]:
    keys = world.lab.home("lab2") / ".ssh/authorized_keys"
    with (
        world.file(world.own("lab2", "keys"), keys.read_text(), 0o600),
        world.sshd("lab2", "AuthorizedKeysFile /run/shanty-lab/keys"),
    ):
        yield


@contextmanager
def _closed(world: World, *hosts: str, last: str = "drop") -> Iterator[None]:
    with ExitStack() as stack:
        for host in hosts:
            stack.enter_context(world.firewall(host, *ONLY_SSH, last))
        yield


@fault("one worker's firewall drops all but ssh", "port-blocked", "lab2", drops=True, runs=True)
def one_firewall(world: World) -> Iterator[None]:
    with _closed(world, "lab2"):
        yield


@fault("two workers' firewalls drop all but ssh", "port-blocked", "lab2", "lab3", drops=True)
def two_firewalls(world: World) -> Iterator[None]:
    with _closed(world, "lab2", "lab3"):
        yield


@fault("the lead host's firewall drops all but ssh", "port-blocked", "lab1", drops=True)
def firewall_on_lead(world: World) -> Iterator[None]:
    with _closed(world, "lab1"):
        yield


@fault("a worker's firewall rejects all but ssh", "port-blocked", "lab2")
def rejecting_firewall(world: World) -> Iterator[None]:
    with _closed(world, "lab2", last="reject with icmpx type admin-prohibited"):
        yield


@fault("it accepts no connections from one other host", "port-blocked", "lab3", drops=True)
def one_direction(world: World) -> Iterator[None]:
    rule = f"ip saddr {world.address('lab2')} tcp flags & (syn | ack) == syn drop"
    with world.firewall("lab3", rule):
        yield


@fault("large packets between two hosts vanish", "mtu-blackhole", "lab3", drops=True)
def black_hole(world: World) -> Iterator[None]:
    with world.firewall("lab3", f"ip saddr {world.address('lab2')} meta length > 1300 drop"):
        yield


@fault("the lead host has no ssh", "ssh-missing", "lab1")
def no_ssh(world: World) -> Iterator[None]:
    with world.masked("lab1", "$(command -v ssh)"):
        yield


# ---------------------------------------------------------------------------- networks


@fault("no network joins all hosts: each of two joins two of them", "net-none", "", lab="two",
       drops=True)  # fmt: skip
def two_halves(world: World) -> Iterator[None]:
    others = "10.0.0.0/8"
    gateway = world.address("lab1").rpartition(".")[0] + ".254"
    with (
        world.firewall("lab3", f"iifname eth0 ip saddr != {gateway} ip saddr {others} drop"),
        world.firewall("lab2", "iifname tb0 drop"),
    ):
        yield


@fault("a second network is up but leads nowhere", "net-dead", "lab2", level="note", lab="two",
       drops=True)  # fmt: skip
def dead_network(world: World) -> Iterator[None]:
    with world.firewall("lab2", "iifname tb0 drop"):
        yield


@fault("every host has a docker0 with the same address", "net-isolated", "", level="note")
def docker(world: World) -> Iterator[None]:
    with ExitStack() as stack:
        for host in world.lab.hosts:
            stack.enter_context(world.console_pair(host, planted.DOCKER, planted.NO_DOCKER))
        yield


@fault("the cable of one host is bad: 5 Mbit/s", "net-slow", "lab2", level="warning")
def slow(world: World) -> Iterator[None]:
    do = "tc qdisc add dev eth0 root tbf rate 5mbit burst 32kb latency 50ms"
    with world.console_pair("lab2", do, "tc qdisc del dev eth0 root"):
        yield


@fault(
    "the hosts have IPv6 among each other and no IPv4, and the MPI is Open MPI 4.1",
    "ipv6-only",
    "",
    words=("--mpi", "openmpi4"),
)
def only_ipv6(world: World) -> Iterator[None]:
    with ExitStack() as stack:
        for host in world.lab.hosts:
            own = world.address(host)
            network, _, number = own.rpartition(".")
            do = (
                f"ip addr del {own}/24 dev eth0; ip addr add {own}/32 dev eth0; "
                f"ip route add {network}.254 dev eth0 src {own}; "
                f"ip -6 addr add fd77::{number}/64 dev eth0 nodad"
            )
            undo = (
                f"ip -6 addr del fd77::{number}/64 dev eth0; ip route del {network}.254 dev eth0; "
                f"ip addr del {own}/32 dev eth0; ip addr add {own}/24 dev eth0"
            )
            stack.enter_context(world.console_pair(host, do, undo))
        yield


@fault("a setting names an interface that no host has", "flag-interface", "",
       words=("-e", "OMPI_MCA_btl_tcp_if_include=ib0"),
       bare_words=("--mca", "btl_tcp_if_include", "ib0"))  # fmt: skip
def wrong_interface(world: World) -> Iterator[None]:
    yield


@fault("another host has taken its address as well", "address-twice", "lab2", "lab3",
       runs=True)  # fmt: skip
def address_twice(world: World) -> Iterator[None]:
    address = f"{world.address('lab3')}/24"
    with world.console_pair(
        "lab2", f"ip addr add {address} dev eth0", f"ip addr del {address} dev eth0"
    ):
        yield
