"""Describes a lab: its hosts and networks, as `lab.json` keeps them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shanty.runtime import platform
from shanty.runtime.errors import UsageError

MOST_HOSTS = 200  # an address each in a /24, with room left for the gateway
GATEWAY = 254
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,30}[a-z])?")
_NIC = re.compile(r"[a-z][a-z0-9]{0,14}")
_RATE = re.compile(r"[0-9]+(\.[0-9]+)?(|[kmgt]i?)(bit|bps)")
_FIRST_NETWORK = 77  # 10.77.0.0/16: far from what routers and VPNs like to use


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface that every host has, on a bridge of its own."""

    name: str
    network: str  # the first three numbers of its addresses
    rate: str = ""  # in the words of tc(8), as 200mbit; "" for all that the machine can do

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
    """A lab as it was asked for, and its first process; `folder` holds all that it keeps."""

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
    pid: int = 0  # while it is made there is none
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
    """Checks that a lab can have that name: hosts are the name and a number. UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a lab cannot be called {name!r}",
            "its hosts are called by that name and a number",
            "take small letters, such as: lab, east, big-one",
        )


def make_hosts(name: str, count: int, *, shared_home: bool = False) -> tuple[LabHost, ...]:
    """Makes the hosts of a lab of that name."""
    if not 1 <= count <= MOST_HOSTS:
        raise UsageError(f"a lab has 1 to {MOST_HOSTS} hosts, not {count}")
    homes = ("/home/{}", "/srv/{}/home", "/export/users/{}")  # different ones, in turn
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
            raise UsageError(f"an interface cannot be called {name!r}", fix="for example: tb0")
        if names.count(name) > 1:
            raise UsageError(f"the interface {name} is asked for twice")
    limits = {}
    for word in rates:
        name, _, rate = word.partition("=")
        if name not in names or not _RATE.fullmatch(rate.lower()):
            raise UsageError(
                f"--rate {word} makes no sense",
                f"it is NIC=RATE, and the interfaces are {', '.join(names)}",
                "for example: --rate eth0=200mbit",
            )
        limits[name] = rate.lower()
    return tuple(
        Nic(name, f"10.{second}.{third}", limits.get(name, "")) for third, name in enumerate(names)
    )


def free_network(routes: Iterable[ipaddress.IPv4Network], labs: Iterable[Lab]) -> int:
    """Returns the second number of a 10.x.0.0/16 that neither this machine nor another lab uses."""
    taken: set[int] = {int(lab.nics[0].network.split(".")[1]) for lab in labs}
    # a clash does no harm but confuse people, so a VPN's route for all of 10.0.0.0/8 is no obstacle
    used = [route for route in routes if route.prefixlen > 8]
    for step in range(256):
        second = (_FIRST_NETWORK + step) % 256
        mine = ipaddress.ip_network(f"10.{second}.0.0/16")
        if second not in taken and not any(mine.overlaps(route) for route in used):
            return second
    return _FIRST_NETWORK


def routes_of_machine() -> list[ipaddress.IPv4Network]:
    """Returns the networks that this machine has a route to, the default route left out."""
    found = []
    for line in Path("/proc/net/route").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        target, mask = (int.from_bytes(bytes.fromhex(fields[i]), "little") for i in (1, 7))
        if mask:
            found.append(ipaddress.IPv4Network((target, mask.bit_count()), strict=False))
    return found
