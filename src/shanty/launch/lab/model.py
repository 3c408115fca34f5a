"""Describes a lab: its hosts and networks, as `lab.json` keeps them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shanty.runtime import platform
from shanty.runtime.errors import UsageError

MOST_HOSTS = 200  # each has an address in a /24, which also holds the gateway
GATEWAY = 254
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,30}[a-z])?")
_NIC = re.compile(r"[a-z][a-z0-9]{0,14}")
_RATE = re.compile(r"[0-9]+(\.[0-9]+)?(|[kmgt]i?)(bit|bps)")
_FIRST_NETWORK = 77  # 10.77.0.0/16: routers and VPNs rarely use it, which avoids confusion


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface that every host has; each has its own bridge."""

    name: str
    network: str  # the first three numbers of its addresses
    rate: str = ""  # as tc(8) writes it: 200mbit; "" for no limit

    def address(self, number: int) -> str:
        """Returns the address of host `number` on this network."""
        return f"{self.network}.{number}"

    def hardware_address(self, number: int) -> str:
        """Returns the MAC address of host `number`, which a restart does not change."""
        second, third = self.network.split(".")[1:]
        return f"02:73:68:{int(second):02x}:{int(third):02x}:{number:02x}"


@dataclass(frozen=True, slots=True)
class LabHost:
    """One host of a lab."""

    name: str
    number: int
    home: str


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab with its options and its first process; `folder` holds all its files."""

    name: str
    folder: Path
    user: str
    uid: int
    gid: int
    bare: bool
    nics: tuple[Nic, ...]
    hosts: tuple[LabHost, ...]
    sshd: str
    python: str  # the interpreter that the hosts have as `python3`
    shown: tuple[str, ...] = ()  # folders of Python's that every host has at the same path
    emptied: tuple[str, ...] = ()  # folders that are empty on every host
    masked: tuple[str, ...] = ()  # files that cannot be used on any host
    path: str = "/usr/local/bin:/usr/bin:/bin"
    pid: int = 0  # 0 until it has started
    born: str = ""

    @property
    def alive(self) -> bool:
        """True while the lab runs."""
        return self.pid > 0 and platform.is_alive(self.pid, self.born)

    def address(self, member: LabHost) -> str:
        """Returns the address by which a host is reached: that of its first interface."""
        return self.nics[0].address(member.number)

    def files(self, member: LabHost) -> Path:
        """Returns the folder of one host's files."""
        return self.folder / "hosts" / member.name


def check_name(name: str) -> None:
    """UsageError if a lab cannot have that name."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"invalid name of a lab: {name!r}",
            "the names of its hosts are this name and a number",
            "use small letters, for example: lab, east, big-one",
        )


def make_hosts(name: str, count: int, *, shared_home: bool = False) -> tuple[LabHost, ...]:
    """Makes the hosts of a lab of that name."""
    if not 1 <= count <= MOST_HOSTS:
        raise UsageError(f"a lab has 1 to {MOST_HOSTS} hosts, not {count}")
    homes = ("/home/{}", "/srv/{}/home", "/export/users/{}")  # hosts differ in their homes
    if shared_home:
        homes = (f"/home/{name}",) * 3
    return tuple(
        LabHost(f"{name}{number}", number, homes[(number - 1) % 3].format(f"{name}{number}"))
        for number in range(1, count + 1)
    )


def make_nics(extra: Iterable[str], rates: Iterable[str], second: int) -> tuple[Nic, ...]:
    """Makes the interfaces: eth0 and `extra`, in 10.`second`.x.0; `rates` are NIC=RATE."""
    names = ["eth0", *extra]
    for name in names:
        if not _NIC.fullmatch(name) or name.startswith("lo"):
            raise UsageError(f"invalid name of an interface: {name!r}", fix="for example: tb0")
        if names.count(name) > 1:
            raise UsageError(f"the interface {name} is given twice")
    limits = {}
    for word in rates:
        name, _, rate = word.partition("=")
        if name not in names or not _RATE.fullmatch(rate.lower()):
            raise UsageError(
                f"invalid --rate {word}",
                f"it must be NIC=RATE, and the interfaces are {', '.join(names)}",
                "for example: --rate eth0=200mbit",
            )
        limits[name] = rate.lower()
    return tuple(
        Nic(name, f"10.{second}.{third}", limits.get(name, "")) for third, name in enumerate(names)
    )


def free_network(labs: Iterable[Lab]) -> int:
    """Returns the x of a network 10.x.0.0/16 that no other lab uses; the machine sees none."""
    taken = {int(lab.nics[0].network.split(".")[1]) for lab in labs}
    return min(set(range(256)) - taken, key=lambda number: (number - _FIRST_NETWORK) % 256)
