"""Which network a run takes by itself, among a slow one, a dead one and one that leads nowhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import planted as plants
import pytest
from conftest import LabHosts, lab_in
from faults_world import World
from site_runs import Site

from runs import wait_for

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

# What each host sends over which interface, and whom its processes talk to, sshd apart.
ALLREDUCE = """
import array, glob, json, os, socket, time
from mpi4py import MPI

def sent():
    files = glob.glob("/sys/class/net/*/statistics/tx_bytes")
    return {file.split("/")[4]: int(open(file).read()) for file in files}

def peers():
    found = set()
    for row in open("/proc/net/tcp").read().splitlines()[1:]:
        own, other, state = row.split()[1:4]
        if state == "01" and not {own[-4:], other[-4:]} & {"0016"}:
            found.add(socket.inet_ntoa(bytes.fromhex(other[:8])[::-1]))
    return sorted(address for address in found if not address.startswith("127."))

world = MPI.COMM_WORLD
data, total = array.array("f", [1.0]) * 1000000, array.array("f", [0.0]) * 1000000
world.Barrier()
before = sent()
for _ in range(2):
    world.Allreduce(data, total)
assert total[7] == world.size
talks = peers()
world.Barrier()
told = {name: os.environ.get(name, "") for name in (
    "MASTER_ADDR", "SHANTY_ADDRESS", "SHANTY_INTERFACE", "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES")}
print(json.dumps({"sent": {k: v - before.get(k, 0) for k, v in sent().items()},
                  "peers": talks, **told}), flush=True)
"""
MOST = 3_000_000  # bytes: less than any of the ranks sends
LEAST = 100_000  # more than what else goes over a wire meanwhile


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, stores: Path) -> Iterator[LabHosts]:
    """eth0 at 200 Mbit/s, tb0 fast, a dead tunnel, and docker0 with one address everywhere."""
    folder = tmp_path_factory.mktemp("planted")
    words = ("--name", "net", "--nic", "tb0", "--rate", "eth0=200mbit")
    with lab_in(folder, 3, *words, stores=stores) as lab:
        for number, host in enumerate(lab.hosts, 1):
            done = lab.exec(host, *plants.words(number))
            assert done.returncode == 0, done.stderr
        for host in lab.hosts:
            wait_for(lambda host=host: _up(lab, host), 10, f"the networks of {host} stay down")
        yield lab


def _up(lab: LabHosts, host: str) -> bool:
    shown = lab.exec(host, "ip", "-br", "link", "show", "up").stdout
    return all(f"\n{name}" in f"\n{shown}" for name in plants.SHOWN)


@pytest.fixture
def site(planted: LabHosts, tmp_path: Path) -> Iterator[Site]:
    here = Site(planted, tmp_path / "work")
    here.write("allreduce.py", ALLREDUCE)
    yield here
    if (planted.shanty.home / "runs").is_dir():
        wait_for(lambda: not here.remains(here.last.id), 10, "processes are left")


@pytest.fixture
def world(planted: LabHosts) -> Iterator[World]:
    found = World(planted)
    yield found
    found.close()


def reports(site: Site, mpi: str, *words: str) -> list[dict[str, Any]]:
    """What the three ranks tell, by rank, when they are run with these options."""
    command = words if "--" in words else (*words, "--ppn", "1", "allreduce.py")
    done = site("run", "--on", "net", "--mpi", mpi, "-n", "3", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    site.said = done.stderr  # type: ignore[attr-defined]
    found = {
        int(line[1:2]): json.loads(line[4:])
        for line in done.stdout.splitlines()
        if line.startswith("[") and line[4:5] == "{"
    }
    assert sorted(found) == [0, 1, 2], done.stdout
    return [found[rank] for rank in range(3)]


def goes_over(reports: list[dict[str, Any]], *names: str) -> None:
    """The data took these interfaces (one name for all hosts, or each its own) and no others."""
    for index, report in enumerate(reports):
        own = names[index % len(names)]
        assert report["sent"].pop(own) > MOST
        assert max(report["sent"].values()) < LEAST, report


def test_the_fast_network_is_taken(site: Site, flavour: str) -> None:
    found = reports(site, flavour)
    goes_over(found, "tb0")
    first = found[0]["SHANTY_ADDRESS"]
    network = first.rpartition(".")[0] + "."
    for report in found:
        # the ranks' data and the launcher's daemons, all of it
        assert report["peers"]
        assert all(address.startswith(network) for address in report["peers"]), report
        assert report["MASTER_ADDR"] == first
        assert report["NCCL_SOCKET_IFNAME"] == "=tb0"
        assert report["GLOO_SOCKET_IFNAME"] == report["UCX_NET_DEVICES"] == "tb0"
    assert len({report["SHANTY_ADDRESS"] for report in found}) == 3
    assert "warning" not in site.said  # type: ignore[attr-defined]
    shown = site("show", site.last.id).stdout
    assert f"network    tb0 ({network}0/24)" in shown


def test_the_network_has_another_name_on_one_host(world: World, site: Site, flavour: str) -> None:
    rename = "ip link set {0} down; ip link set {0} name {1}; ip link set {1} up"
    names = ("tb0", "enp3s0")
    with world.console_pair("net2", rename.format(*names), rename.format(*names[::-1])):
        found = reports(site, flavour)
    goes_over(found, "tb0", "enp3s0", "tb0")
    assert [report["SHANTY_INTERFACE"] for report in found] == ["tb0", "enp3s0", "tb0"]
    network = found[0]["SHANTY_ADDRESS"].rpartition(".")[0] + "."
    assert all(one.startswith(network) for report in found for one in report["peers"])


@contextmanager
def ipv6(world: World, *rules: str) -> Iterator[None]:
    """An IPv6 address at tb0 of every host, and rules of its firewall."""
    with ExitStack() as stack:
        for number, host in enumerate(world.lab.hosts, 1):
            address = f"fd99::{number}/64 dev tb0"
            do, undo = f"ip -6 addr add {address} nodad", f"ip -6 addr del {address}"
            stack.enter_context(world.console_pair(host, do, undo))
            stack.enter_context(world.firewall(host, *rules))
        yield


def test_an_ipv6_address_that_is_blocked_is_not_in_the_way(world: World, site: Site) -> None:
    """Open MPI 5 takes IPv6 where an interface has it."""
    with ipv6(world, "ip6 saddr fd99::/64 drop"):
        goes_over(reports(site, "openmpi5"), "tb0")


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory, stores: Path) -> Iterator[LabHosts]:
    """Two networks that are equally fast."""
    words = ("--name", "net", "--nic", "tb0", "--rate", "eth0=200mbit", "--rate", "tb0=200mbit")
    with lab_in(tmp_path_factory.mktemp("equal"), 3, *words, stores=stores) as lab:
        yield lab


def test_equal_networks_are_taken_together_where_that_is_faster(
    equal: LabHosts, tmp_path: Path, flavour: str
) -> None:
    """Open MPI deals its data out over both."""
    here = Site(equal, tmp_path / "work")
    here.write("allreduce.py", ALLREDUCE)
    for report in reports(here, flavour):
        taken = [name for name, sent in report["sent"].items() if sent > LEAST]
        assert len(taken) == (2 if flavour.startswith("openmpi") else 1), report


OWN = {
    "openmpi5": ("OMPI_MCA_btl_tcp_if_include=eth0",),
    "openmpi4": ("OMPI_MCA_btl_tcp_if_exclude=lo,tb0,docker0,tun0",),
    "mpich": ("UCX_NET_DEVICES=eth0",),
    "intel": ("FI_TCP_IFACE=eth0",),
}
LINES = {
    "openmpi5": "mpirun --map-by ppr:1:node --mca btl_tcp_if_include eth0 "
    "--mca oob_tcp_if_include eth0",
    "openmpi4": "mpirun --map-by ppr:1:node -mca btl_tcp_if_exclude lo,tb0,docker0,tun0",
    "mpich": "mpiexec -ppn 1 -iface eth0",
    "intel": "mpirun -ppn 1 --mca btl_tcp_if_include eth0",
}


def test_the_users_own_setting_wins(site: Site, flavour: str) -> None:
    found = reports(site, flavour, *(word for one in OWN[flavour] for word in ("-e", one)))
    goes_over(found, "eth0")


def test_the_users_own_line_wins(site: Site, flavour: str) -> None:
    line = [*LINES[flavour].split(), "-n", "3", "python", "allreduce.py"]
    goes_over(reports(site, flavour, "--", *line), "eth0")


def test_settings_that_do_not_fit_the_hosts(site: Site) -> None:
    site.write("x.py", "")
    words = ("run", "--dry-run", "--on", "net", "-n", "3", "-e")
    done = site(*words, "OMPI_MCA_btl_tcp_if_include=docker0", "x.py")
    assert done.returncode == 0, done.stderr
    setting = "OMPI_MCA_btl_tcp_if_include=docker0"
    assert f"{setting} takes docker0, which does not lead to all other" in done.stderr
    assert "# network tb0 (10." in done.stdout
    line = ("mpirun", "--mca", "btl_tcp_if_include", "bridge0", "python", "x.py")
    none = site("run", "--on", "net", "--", *line)
    assert none.returncode == 69
    says = "--mca btl_tcp_if_include bridge0 matches no interface on net1, net2, net3"
    assert says in none.stderr
    assert done.stderr.count("leave it out, then tb0 is taken") == 1
    assert none.stderr.count("leave it out, then tb0 is taken") == 1


@pytest.mark.parametrize("mpi", ["openmpi5", "openmpi4"])
def test_a_list_of_unwanted_interfaces_on_a_host(world: World, site: Site, mpi: str) -> None:
    """Open MPI refuses ours beside it, so there its own counts; the others keep to the choice."""
    path = "~/.openmpi/mca-params.conf"
    text = "btl_tcp_if_exclude = lo,eth0,docker0,tun0"
    do = f"mkdir -p ~/.openmpi; echo {text!r} > {path}"
    with world.console_pair("net2", do, f"rm -r {path.rpartition('/')[0]}"):
        goes_over(reports(site, mpi), "tb0")


def test_hosts_that_only_ipv6_joins(world: World, site: Site, flavour: str) -> None:
    """Open MPI 5 works there; of the others the run ends before it begins, with the cause."""
    site.write("where.py", "from mpi4py import MPI; print('sum', MPI.COMM_WORLD.allreduce(1))")
    ends = [each.rpartition(".")[0] for each in site.lab.show()["hosts"][0]["addresses"].values()]
    drops = (f"ip saddr {network}.1-{network}.3 drop" for network in ends)
    with ipv6(world, "iifname lo accept", *drops):
        words = ("run", "-q", "--on", "net", "--mpi", flavour, "-n", "3", "--ppn", "1")
        done = site(*words, "where.py", timeout=120)
        if flavour == "openmpi5":  # whose daemons connect through ours then
            elastic = site(*words, "--elastic", "where.py", timeout=120)
    if flavour == "openmpi5":
        for each in (done, elastic):
            assert each.returncode == 0, each.stderr
            assert each.stdout.count("sum 3") == 3
    else:
        assert done.returncode == 69, done.stderr
        assert "joined by IPv6 only" in done.stderr
        assert "--mpi openmpi5" in done.stderr
