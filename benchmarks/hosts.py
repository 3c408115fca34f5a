"""How long a start over several hosts takes: `shanty run --on` beside bare launchers, interleaved.

    python benchmarks/hosts.py [--repeats 9] [--hosts 3,8,32] [--mpis FOLDER] [--out FILE]
    python benchmarks/hosts.py --hangs [16=200 32=30 local=50]      (see hosts_hangs.py)

The hosts are those of a lab in this machine. `hostname`, one rank a host: shanty's is the whole
command, from Enter to its end, on hosts that have all they need, as in a second run. The others
are started on the first host, with keys of their own for real ssh to the rest, and timed there.
Each round runs all of them once, in turn. At the first number of hosts it is also measured how
long it takes from Enter until the last rank has MPI_Init behind it.

Bare launchers: the Open MPI 5 that comes with shanty; MPICH where FOLDER has it, which is .dev/mpi
(as `./dev test` fills it) or else ~/.shanty/mpi (`shanty mpi install mpich`); and the system's Open
MPI, where there is one (apt-get install openmpi-bin).
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import figures
import hosts_hangs
import hosts_lab
from figures import quartiles
from hosts_bare import Bare, Peer
from hosts_lab import Home

HERE = Path(__file__).parent
JOINED = "hosts_joined.py"
MPIS = (HERE.parent / ".dev" / "mpi", Path.home() / ".shanty" / "mpi")
JOINED_AIM = 3.0  # seconds that shanty may take longer than bare mpirun until all have joined
BOUND = 120  # seconds for one run of shanty's

Start = Callable[[], float]  # one start; the seconds that it took
Series = dict[str, list[float]]  # name → seconds, round by round


def measure(count: int, repeats: int, home: Home, *, joined: bool) -> tuple[Series, Series]:
    """The seconds of `hostname` on so many hosts; and, if wanted, those until all have joined."""
    with hosts_lab.lab(home, count) as lab:
        flavours = ["openmpi5", *(["mpich"] if (home.path / "mpi" / "mpich").exists() else [])]
        for flavour in flavours:  # not counted: puts everything on the hosts
            home.shanty("run", "-q", "--on", lab, "-n", str(count), "--mpi", flavour, "hostname")
        bare = Bare(home, lab, count)
        bare.prepare(flavours, HERE / JOINED)
        shutil.copy(HERE / JOINED, home.workspace)
        peers = bare.peers(flavours)
        until_end: dict[str, Start] = {"shanty": lambda: _whole(home, lab, count)}
        until_end |= {peer.title: _hostname(bare, peer) for peer in peers}
        until_joined: dict[str, Start] = {}
        if joined:
            until_joined = {
                "shanty": lambda: _until_joined(home, lab, count),
                **{peer.title: _bare_joined(bare, peer) for peer in peers[:1]},
            }
        for start in (*until_end.values(), *until_joined.values()):
            start()  # not counted: fills the caches
        found: tuple[Series, Series] = ({n: [] for n in until_end}, {n: [] for n in until_joined})
        for number in range(1, repeats + 1):
            for series, starts in zip(found, (until_end, until_joined), strict=True):
                for name, start in starts.items():
                    series[name].append(round(start(), 4))
            print(f"{count} hosts: round {number} of {repeats}", file=sys.stderr)
        return found


def _hostname(bare: Bare, peer: Peer) -> Start:
    def start() -> float:
        began, ended, lines = bare.run(peer, ["hostname"])
        _check(lines, bare.hosts, peer.title)
        return ended - began

    return start


def _bare_joined(bare: Bare, peer: Peer) -> Start:
    def start() -> float:
        began, _, lines = bare.run(peer, [sys.executable, bare.program])
        return _last_joined(lines, len(bare.hosts), peer.title) - began

    return start


def _whole(home: Home, lab: str, count: int) -> float:
    began, ended, lines = _shanty(home, lab, count, "hostname")
    _check([line.partition("] ")[2] for line in lines], _names(lab, count), "shanty")
    return ended - began


def _until_joined(home: Home, lab: str, count: int) -> float:
    began, _, lines = _shanty(home, lab, count, JOINED)
    return _last_joined([line.partition("] ")[2] for line in lines], count, "shanty") - began


def _shanty(home: Home, lab: str, count: int, program: str) -> tuple[float, float, list[str]]:
    began = time.time()
    text = home.shanty("run", "-q", "--on", lab, "-n", str(count), program, timeout=BOUND)
    return began, time.time(), text.splitlines()


def _names(lab: str, count: int) -> list[str]:
    return [f"{lab}{number}" for number in range(1, count + 1)]


def _check(lines: Sequence[str], hosts: Sequence[str], who: str) -> None:
    if sorted(lines) != sorted(hosts):
        raise SystemExit(f"{who}: one rank a host was meant, but there was: {lines}")


def _last_joined(lines: Sequence[str], count: int, who: str) -> float:
    times = [float(line.split()[2]) for line in lines if line.startswith("joined ")]
    if len(times) != count:
        raise SystemExit(f"{who}: {count} ranks were to join, but there was: {lines}")
    return max(times)


# ----------------------------------------------------------------------------- the results


def show(count: int, until_end: Series, until_joined: Series) -> None:
    print(f"\n{count} hosts, one rank each, `hostname`: seconds, median [quartiles]")
    for name, values in until_end.items():
        print(f"  {name:<24} {quartiles(values)}")
    if not until_joined:
        return
    print(f"{count} hosts, an mpi4py program: seconds from Enter until all ranks have joined")
    for name, values in until_joined.items():
        print(f"  {name:<24} {quartiles(values)}")
    own, bare = until_joined.values()
    more = figures.differences(own, bare)
    print(f"  {'shanty minus bare':<24} {quartiles(more)}  (aim ≤ {JOINED_AIM})")


def main() -> None:
    parser = figures.options(__doc__, 9)
    parser.add_argument("--hosts", default="3,8,32", help="numbers of hosts [3,8,32]")
    parser.add_argument("--mpis", type=Path, default=next(filter(Path.is_dir, MPIS), None))
    parser.add_argument("--hangs", nargs="*", metavar="CASE=RUNS", help="count hangs instead")
    parser.add_argument("--kept", type=Path, help="where the files of runs that hang are kept")
    options = parser.parse_args()
    if options.hangs is not None:
        out = options.out or HERE / "results" / "hangs.json"
        hosts_hangs.count(hosts_hangs.wanted(options.hangs), out, options.kept)
        return
    out = options.out or HERE / "results" / "hosts.json"
    results: dict[int, tuple[Series, Series]] = {}
    counts = [int(word) for word in options.hosts.split(",")]
    for count in counts:
        with hosts_lab.home(options.mpis) as home:
            first = count == counts[0]
            results[count] = measure(count, options.repeats, home, joined=first)
    for count, (until_end, until_joined) in results.items():
        show(count, until_end, until_joined)
    raw = {str(n): {"whole": a, "until joined": b} for n, (a, b) in results.items()}
    figures.keep(out, raw)


if __name__ == "__main__":
    main()
