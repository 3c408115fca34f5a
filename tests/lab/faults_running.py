"""Faults that come while a run is on, or that a login brings along: what a run says, or survives.

A run that survives says nothing. What the others have to say is in the table, with `lab1` for the
lead host; `test_faults_running.py` plants each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from faults_world import Plant, World

RUNNING: list[RunningFault] = []

# Allreduces with a pause in between, and an alltoall, so that all hosts talk to each other.
LOOP = """
import sys, time
import numpy
from mpi4py import MPI
world, value = MPI.COMM_WORLD, numpy.zeros(int(sys.argv[1]))
def step():
    world.Allreduce(MPI.IN_PLACE, value)
    world.alltoall([0] * world.size)
step()
print("on", flush=True)
end = time.monotonic() + float(sys.argv[3])
while world.bcast(time.monotonic() < end, 0):
    time.sleep(float(sys.argv[2]))
    step()
print("done", flush=True)
"""


@dataclass(frozen=True)
class RunningFault:
    """One row. `says` is what a run prints of it, a pattern; "" where it works all the same."""

    name: str
    title: str
    says: str
    plant: Plant
    before: bool = False  # it is there before the run
    script: tuple[str, ...] = ("1", "0.05", "120")  # numbers, seconds between steps, and in all
    words: tuple[str, ...] = ()  # further options of `run`
    told: str = ""  # as the page has it, where that is not the pattern
    bound: float = 30  # seconds from the fault to the words about it
    goes_on: bool = False  # the run says so and goes on
    silent: float = 0  # seconds for which all is well, and nothing is said, before the fault
    only: tuple[str, ...] = ()  # the MPIs that it is about; all where empty
    variables: Mapping[str, str] = field(default_factory=dict)  # one for each MPI


Planter = Callable[[World], Iterator[None]]


def fault(title: str, says: str = "", **more: object) -> Callable[[Planter], Planter]:
    """A decorator that makes a row of a function."""

    def add(function: Planter) -> Planter:
        name = function.__name__.replace("_", "-")
        RUNNING.append(RunningFault(name, title, says, contextmanager(function), **more))  # type: ignore[arg-type]
        return function

    return add


# ------------------------------------------------------------------------- the network


@fault(
    "packets between two workers are dropped, in the middle of a run",
    r"no progress for \d+ s: lab2 and lab3 do not reach each other \(no answer, as if packets were "
    r"dropped\); ",
    told="lab2 and lab3 do not reach each other (no answer, as if packets were dropped)",
)
def dropped(world: World) -> Iterator[None]:
    with world.firewall("lab3", f"ip saddr {world.address('lab2')} drop"):
        yield


@fault(
    "a firewall begins to drop what belongs to established connections between two workers",
    r"no progress for \d+ s: lab2 and lab3 do not reach each other \(no answer, as if packets were "
    r"dropped\); ",
    told="lab2 and lab3 do not reach each other (no answer, as if packets were dropped)",
)
def established(world: World) -> Iterator[None]:
    with world.firewall("lab3", f"ip saddr {world.address('lab2')} ct state established drop"):
        yield


@fault(
    "a firewall begins to reject what one worker sends another one (TCP reset)",
    r"lab2 and lab3 do not reach each other \(connections are refused, as by a firewall\)",
    told="lab2 and lab3 do not reach each other (connections are refused, as by a firewall)",
)
def rejected(world: World) -> Iterator[None]:
    rule = f"ip saddr {world.address('lab2')} tcp dport 1024-65535 reject with tcp reset"
    with world.firewall("lab3", rule):
        yield


@fault(
    "packets above 1400 bytes no longer reach one host (a black hole for its path's MTU)",
    r"no progress for \d+ s: large packets from lab1 to lab3, from lab2 to lab3 vanish, "
    r"while small ones pass; ",
    script=("100000", "0.05", "120"),
    told="large packets from lab1 to lab3, from lab2 to lab3 vanish, while small ones pass",
)
def large_vanish(world: World) -> Iterator[None]:
    with world.firewall("lab3", "meta length > 1400 drop"):
        yield


@fault(
    "the link of one worker falls back to 5 Mbit/s",
    r"no progress for \d+ s: .*; data still moves, at only \d+ KiB/s",
    script=("4000000", "0.05", "120"),
    told="data still moves, at only 610 KiB/s (lab2)",
    bound=60,  # nothing is lost: it has to be seen for longer
    silent=12,  # what was carried until then does not count
)
def slow_link(world: World) -> Iterator[None]:
    do = "tc qdisc add dev eth0 root tbf rate 5mbit burst 32kb latency 50ms"
    with world.console_pair("lab2", do, "tc qdisc del dev eth0 root"):
        yield


@contextmanager
def _forgetful(world: World, seconds: int) -> Iterator[None]:
    """A firewall that forgets connections which were idle for so long, and drops what follows."""
    folder = "/proc/sys/net/netfilter/nf_conntrack_tcp"
    before = world.console("lab3", f"cat {folder}_timeout_established {folder}_loose").split()
    do = f"echo {seconds} >{folder}_timeout_established; echo 0 >{folder}_loose"
    undo = f"echo {before[0]} >{folder}_timeout_established; echo {before[1]} >{folder}_loose"
    rules = (
        "iif lo accept",
        "ct state established,related accept",
        "ct state new tcp flags & (syn|ack) == syn accept",
        "meta l4proto { icmp, ipv6-icmp } accept",
        "drop",
    )
    with world.console_pair("lab3", do, undo), world.firewall("lab3", *rules):
        yield


@fault(
    "a firewall forgets connections that were idle for 5 s, and drops what follows",
    r"no progress for \d+ s: a connection from lab\d to lab\d is dead, though new ones pass: ",
    before=True,
    script=("1", "9", "120"),
    told="a connection from lab3 to lab1 is dead, though new ones pass: its data was sent again "
    "6 times without effect",
)
def soon_forgotten(world: World) -> Iterator[None]:
    with _forgetful(world, 5):
        yield


@fault(
    "a firewall forgets connections that were idle for 20 s, and drops what follows",
    before=True,
    script=("1", "26", "20"),
)
def forgotten(world: World) -> Iterator[None]:
    with _forgetful(world, 20):
        yield


@fault("all hosts have the same host name", before=True, script=("1", "0.05", "0.5"))
def namesakes(world: World) -> Iterator[None]:
    with ExitStack() as stack:
        for host in world.lab.hosts:
            stack.enter_context(world.console_pair(host, "hostname ubuntu", f"hostname {host}"))
        yield


@fault("/tmp of a worker is emptied in the middle of a run", script=("1", "0.05", "6"))
def emptied(world: World) -> Iterator[None]:
    # Not what is mounted there: a checkout below /tmp is seen from all hosts.
    world.console("lab2", "find /tmp -xdev -mindepth 1 -delete 2>/dev/null || true")
    yield


@fault("/dev/shm of a worker fills up in the middle of a run", script=("100000", "0.05", "6"))
def full(world: World) -> Iterator[None]:
    do = (
        "mount -o remount,size=64m /dev/shm; "
        "dd if=/dev/zero of=/dev/shm/full bs=1M 2>/dev/null || true"
    )
    undo = "rm /dev/shm/full; mount -o remount,size=50% /dev/shm"
    with world.console_pair("lab2", do, undo):
        yield


@fault(
    "a third of the packets to one worker is lost",
    r"packets from lab\d to lab2 are lost: \d+% of its TCP segments were sent again, at \d+ KiB/s",
    script=("100000", "0.05", "120"),
    told="packets from lab1 to lab2 are lost: 38% of its TCP segments were sent again, at "
    "267 KiB/s",
    goes_on=True,
)
def lossy(world: World) -> Iterator[None]:
    with world.firewall("lab2", "numgen random mod 100 < 30 drop"):
        yield


@fault(
    "the MTU of one worker becomes smaller",
    r"eth0 on lab2 has MTU 576, was 1500 when the run began; ",
    script=("100000", "0.05", "120"),
    told="eth0 on lab2 has MTU 576, was 1500 when the run began",
    goes_on=True,
)
def smaller_mtu(world: World) -> Iterator[None]:
    with world.console_pair("lab2", "ip link set eth0 mtu 576", "ip link set eth0 mtu 1500"):
        yield


@fault(
    "the link of one worker falls back to 1 Mbit/s, with a queue of four packets",
    r"(packets from lab2 to lab\d are lost|lab2 loses packets): \d+% of its TCP segments were sent "
    r"again, at \d+ KiB/s",
    script=("100000", "0.05", "120"),
    told="packets from lab2 to lab1 are lost: 25% of its TCP segments were sent again, at "
    "106 KiB/s",
    bound=60,
    goes_on=True,
)
def short_queue(world: World) -> Iterator[None]:
    do = "tc qdisc add dev eth0 root tbf rate 1mbit burst 3kb limit 6kb"
    with world.console_pair("lab2", do, "tc qdisc del dev eth0 root"):
        yield


@fault(
    "the connections of a rank are ended from outside (`ss -K`)",
    r"why: a connection of rank \d was ended from outside: "
    r".*(Software caused connection abort|UCX  ERROR .* Input/output error)",
    script=("100000", "0.05", "120"),
    told="a connection of rank 1 was ended from outside: … Software caused connection abort (103)",
    # Open MPI 4.1 connects again and may go on, Intel MPI too, and may hang: a stall.
    only=("openmpi5", "mpich"),
)
def killed(world: World) -> Iterator[None]:
    ports = "'sport > 1023 and dport > 1023'"
    world.console("lab2", f"ss -K dst {world.address('lab3')} {ports} >/dev/null")
    yield


# ---------------------------------------------------------------------------- variables


@contextmanager
def _login(world: World, line: str) -> Iterator[None]:
    with ExitStack() as stack:
        for host in world.lab.hosts:
            path = world.lab.home(host) / ".bashrc"
            stack.enter_context(world.file(path, f"export {line}\n"))
        yield


@fault(
    "a login file sets the variables of an allocation of Slurm's",
    before=True,
    script=("1", "0.05", "0.5"),
)
def slurm(world: World) -> Iterator[None]:
    line = (
        "SLURM_JOB_ID=12 SLURM_JOBID=12 SLURM_NNODES=2 SLURM_NODELIST=n1,n2 "
        "SLURM_JOB_NODELIST=n1,n2 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE='2(x2)' SLURM_PROCID=0"
    )
    with _login(world, line):
        yield


@fault(
    "a login file sets those of PBS and of Grid Engine, and of the rank of an outer mpirun",
    before=True,
    script=("1", "0.05", "0.5"),
)
def other_allocations(world: World) -> Iterator[None]:
    line = (
        "PBS_JOBID=12 PBS_ENVIRONMENT=PBS_BATCH PBS_NODEFILE=/nowhere PE_HOSTFILE=/nowhere "
        "SGE_ROOT=/sge ARC=lx JOB_ID=7 PMI_RANK=3 PMI_SIZE=7 PMIX_RANK=3 PMIX_NAMESPACE=x"
    )
    with _login(world, line):
        yield


@fault(
    "PYTHONHOME and LD_PRELOAD lead nowhere",
    before=True,
    script=("1", "0.05", "0.5"),
)
def nowhere(world: World) -> Iterator[None]:
    with _login(world, "PYTHONHOME=/nowhere LD_PRELOAD=/nowhere/lib.so"):
        yield


@fault(
    "on one host a login file sets PYTHONHASHSEED=abc, with which no Python starts",
    r"PYTHONHASHSEED=abc was set on lab2 before the run, as by a login file",
    before=True,
    script=("1", "0.05", "0.5"),
    told="Fatal Python error: … PYTHONHASHSEED=abc was set on lab2 before the run, as by a login "
    "file",
)
def hash_seed(world: World) -> Iterator[None]:
    with world.file(world.lab.home("lab2") / ".bashrc", "export PYTHONHASHSEED=abc\n"):
        yield


@fault(
    "a login file names a component of Open MPI 4.1 that does not exist",
    r"OMPI_MCA_osc=nothing \(set on lab\d, as by a login file\)",
    before=True,
    script=("1", "0.05", "0.5"),
    only=("openmpi4",),
    told="these settings are not shanty's: OMPI_MCA_osc=nothing (set on lab1, as by a login file)",
)
def no_component(world: World) -> Iterator[None]:
    with _login(world, "OMPI_MCA_osc=nothing"):
        yield


@fault(
    "a login file sets an MPI's parameter that nothing can start with",
    r"set before the run, as by a login file: \S+ on lab1, lab2, lab3",
    before=True,
    script=("1", "0.05", "0.5"),
    words=("--start-timeout", "8"),
    variables={
        "openmpi5": "PMIX_MCA_gds=nothing",
        "openmpi4": "OMPI_MCA_plm=nothing",
        "mpich": "HYDRA_LAUNCHER=slurm",
        "intel": "I_MPI_HYDRA_BOOTSTRAP=slurm",
    },
    told="set before the run, as by a login file: PMIX_MCA_gds=nothing on lab1, lab2, lab3",
)
def wrong_setting(_world: World) -> Iterator[None]:
    yield
