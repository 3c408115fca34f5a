"""Which network a run takes, and what that is worth: `shanty run` without a flag, with an interface
picked by hand, and bare launchers, interleaved.

    python benchmarks/network.py [--repeats 9] [--few 3] [--flavours openmpi5,mpich]
                                 [--hosts 3,16] [--mpis FOLDER] [--out FILE]

The hosts are those of a lab in this machine. eth0 is slowed to 200 Mbit/s, tb0 is fast, tun0 is up
and dead, docker0 has the same address on every host. An allreduce of 4 MB of float32 over three
hosts, one rank each; a figure is the median of 20 inside one job. What is slow or hangs (eth0 and
the bare launchers) is measured --few times only. Then: how long it takes to measure the networks,
with nothing known (cold) and when all is known (cached), on so many --hosts.

--flavours "" or --hosts "" leaves that part out; what is in FILE of it stays there.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import figures
import hosts_lab
import network_bare
from hosts_lab import Home

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "lab"))
import planted  # noqa: E402

PROGRAM = HERE / "network_allreduce.py"
MPIS = (HERE.parent / ".dev" / "mpi", Path.home() / ".shanty" / "mpi")
NETWORKS = ("--nic", "tb0", "--rate", "eth0=200mbit")
# How an interface is picked by hand.
BY_HAND = {
    "openmpi5": ("OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include"),
    "openmpi4": ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"),
    "mpich": ("UCX_NET_DEVICES", "HYDRA_IFACE"),
    "intel": ("FI_TCP_IFACE", "I_MPI_HYDRA_IFACE"),
}
BOUND = 120  # seconds for one run of shanty's
CLOSE_AIM, BARE_AIM = 1.3, 5.0
MEASURE_AIMS = {3: 10.0, 16: 30.0}  # seconds, cold

Figure = float | str  # seconds, or what came of it instead
Series = dict[str, list[Figure]]


@contextlib.contextmanager
def planted_lab(home: Home, count: int) -> Iterator[str]:
    """A lab in which only one of four networks is worth taking; its name."""
    with hosts_lab.lab(home, count, *NETWORKS) as lab:
        for number in range(1, count + 1):
            home.shanty("lab", "exec", f"{lab}{number}", *planted.words(number))
        yield lab


def allreduces(flavour: str, repeats: int, few: int, mpis: Path | None) -> Series:
    """The seconds of an allreduce, by who chose the network."""
    with hosts_lab.home(mpis) as home, planted_lab(home, 3) as lab:
        shutil.copy(PROGRAM, home.workspace)
        _shanty(home, lab, flavour)  # not counted: puts everything on the hosts, and measures
        bare = network_bare.prepare(home, lab, 3, [flavour], PROGRAM)
        starts: dict[str, tuple[int, Callable[[], Figure]]] = {
            "shanty": (repeats, lambda: _shanty(home, lab, flavour)),
            "tb0": (repeats, lambda: _shanty(home, lab, flavour, "tb0")),
            "eth0": (few, lambda: _shanty(home, lab, flavour, "eth0")),
            "bare": (few, lambda: network_bare.allreduce(home, bare, flavour)),
        }
        found: Series = {name: [] for name in starts}
        for number in range(repeats):
            for name, (most, start) in starts.items():
                if number < most:
                    found[name].append(start())
            print(f"{flavour}: round {number + 1} of {repeats}", file=sys.stderr)
        return found


def _shanty(home: Home, lab: str, flavour: str, interface: str = "") -> float:
    picked = [f"{name}={interface}" for name in BY_HAND[flavour]] if interface else []
    settings = [word for setting in picked for word in ("-e", setting)]
    words = ("run", "-q", "--on", lab, "--mpi", flavour, "-n", "3", "--ppn", "1")
    text = home.shanty(*words, *settings, PROGRAM.name, timeout=BOUND)
    (told,) = (line.split()[2] for line in text.splitlines() if " median " in line)
    return float(told)


def measuring(count: int, repeats: int) -> dict[str, list[float]]:
    """The seconds until a run on so many hosts knows its network."""
    from shanty.launch.network.selection import decide
    from shanty.launch.network.survey import chosen, survey

    with hosts_lab.home() as home, planted_lab(home, count) as lab:
        hosts = survey(chosen(lab, None, home.path), home.path, lambda _: None, terminal=False)
        found: dict[str, list[float]] = {"cold": [], "cached": []}
        try:
            for number in range(repeats):
                shutil.rmtree(home.path / "net", ignore_errors=True)
                for name in found:
                    decision = decide(hosts, home.path)
                    taken = {one.name for one in decision.route.rails[0].interfaces.values()}
                    if taken != {"tb0"} or (decision.age is None) != (name == "cold"):
                        raise SystemExit(f"{name}, {count} hosts: {decision}")
                    found[name].append(round(decision.seconds, 4))
                print(f"{count} hosts: round {number + 1} of {repeats}", file=sys.stderr)
        finally:
            for host in hosts:
                host.client.close(1.0)
        return found


# ----------------------------------------------------------------------------- the results


def median(values: list[Figure]) -> float | None:
    """The median; None where one of them came to nothing."""
    numbers = [value for value in values if isinstance(value, float)]
    return statistics.median(numbers) if numbers and len(numbers) == len(values) else None


def outcome(series: Series) -> str | float:
    """How many times as long bare takes as shanty, or what comes of it."""
    own, bare = median(series["shanty"]), median(series["bare"])
    words = [value for value in series["bare"] if isinstance(value, str)]
    if words:
        return words[0]
    assert own is not None and bare is not None
    return round(bare / own, 2)


def summary(series: Series) -> dict[str, Any]:
    """What is shown of one MPI."""
    middle = {name: median(values) for name, values in series.items()}
    own = middle["shanty"]
    best = min(filter(None, (middle["tb0"], middle["eth0"])))
    assert own is not None
    return {
        "median": middle,
        "shanty / best picked by hand": round(own / best, 3),
        "bare / shanty": outcome(series),
    }


def quartiles(values: list[Figure], unit: float, digits: int) -> str:
    numbers = [value * unit for value in values if isinstance(value, float)]
    words = [value for value in values if isinstance(value, str)]
    hung = ", ".join(f"{words.count(one)} times: {one}" for one in dict.fromkeys(words))
    if len(numbers) < 2:
        return hung or f"{numbers[0]:9.{digits}f}"
    return f"{figures.quartiles(numbers, digits=digits):<33} {hung}".rstrip()


def show(results: dict[str, Any]) -> None:
    for flavour, found in results["allreduce"].items():
        print(f"\n{flavour}: 4 MB allreduce over 3 hosts, ms: median [quartiles]")
        for name, values in found["seconds"].items():
            print(f"  {name:<8} {quartiles(values, 1e3, 1)}  ({len(values)} jobs)")
        ratio, gain = found["shanty / best picked by hand"], found["bare / shanty"]
        print(f"  shanty / best picked by hand: {ratio} (aim ≤ {CLOSE_AIM})")
        print(f"  bare / shanty: {gain} (aim ≥ {BARE_AIM}, or hangs)")
    for count, series in results["measuring"].items():
        aim = MEASURE_AIMS.get(int(count))
        print(f"\n{count} hosts, until the network is known, s: median [quartiles]")
        for name, values in series.items():
            wanted = f" (aim ≤ {aim})" if aim and name == "cold" else ""
            print(f"  {name:<8} {quartiles(values, 1, 3)}{wanted}")


def main() -> None:
    parser = figures.options(__doc__, 9, "network")
    parser.add_argument("--few", type=int, default=3, help="repeats of what is slow [3]")
    parser.add_argument("--flavours", default=",".join(BY_HAND), help="MPIs [all four]")
    parser.add_argument("--hosts", default="3,16", help="numbers of hosts to measure on [3,16]")
    parser.add_argument("--mpis", type=Path, default=next(filter(Path.is_dir, MPIS), None))
    options = parser.parse_args()
    results: dict[str, Any] = {"allreduce": {}, "measuring": {}}
    if options.out.exists():
        results = json.loads(options.out.read_text())
    for flavour in filter(None, options.flavours.split(",")):
        if flavour != "openmpi5" and not (options.mpis and (options.mpis / flavour).exists()):
            print(f"not measured: there is no {flavour} (--mpis FOLDER)", file=sys.stderr)
            continue
        few = min(options.few, options.repeats)
        series = allreduces(flavour, options.repeats, few, options.mpis)
        results["allreduce"][flavour] = {"seconds": series, **summary(series)}
        figures.keep(options.out, results)
    for count in map(int, filter(None, options.hosts.split(","))):
        results["measuring"][str(count)] = measuring(count, options.repeats)
        figures.keep(options.out, results)
    show(results)


if __name__ == "__main__":
    main()
