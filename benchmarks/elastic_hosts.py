"""How long an elastic run over several hosts stands still when it loses a rank or a host.

    python benchmarks/elastic_hosts.py [--hosts 3,4] [--runs 5] [--only KINDS] [--mpis FOLDER]
                                       [--json FILE]

Hosts of a lab, one rank each, train by `hvd.elastic` with --retries. Then one of these happens:

- rank, daemon, agent: that process on the second host gets SIGKILL
- reboot, cut, freeze: the second host is restarted, loses its network, or stands still
- lead: the lead host loses its network; with `lead freeze` it stands still

Measured is the time from there to the end of the first step of those that are left, on the slowest
of them; for the lead host, to that of the next attempt on the other hosts. A host that was cut off
or stood still then comes back. Nothing on it may have been at work since the others went on: late
writes are counted. (A frozen host cannot stop itself; see docs/how-to/elastic.md.)
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import click
import hosts_lab
from hosts_lab import SHANTY, Home

RANK = Path(__file__).with_name("elastic_hosts_rank.py")
PROCESSES = {"daemon": "^[^ ]*/prted", "agent": "agent[.]worker_agent"}
KINDS = ("rank", "daemon", "agent", "reboot", "cut", "freeze", "lead", "lead freeze")
BACK = {"cut": "join", "freeze": "thaw"}
_STEPS = 30  # before the loss
_LIMIT = 120.0  # seconds
_THAWED = 1.0  # seconds in which a host that is back would write what comes late


class Run:
    """A training on all hosts of a lab."""

    def __init__(self, home: Home, lab: str, count: int) -> None:
        self.home, self.names = home, [f"{lab}{number}" for number in range(1, count + 1)]
        self._lab = lab
        for name in self.names:
            for path in home.files(lab, name).glob("*.[0-9]"):
                path.unlink()
        shutil.copy(RANK, home.workspace)
        words = ["run", "-q", "--mpi", "openmpi5", "--on", ",".join(self.names), "--ppn", "1"]
        words += ["--elastic", "--retries", "1", RANK.name, "first-"]
        self.process = subprocess.Popen(
            [SHANTY, *words], env=home.environ, cwd=home.workspace, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.until("it trains", lambda: min(map(len, self.steps(count))) > _STEPS)

    def until(self, what: str, look: Callable[[], bool]) -> None:
        """Wait for that; ends the benchmark where it does not come."""
        end = time.monotonic() + _LIMIT
        while not look():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.send_signal(signal.SIGINT)
                raise click.ClickException(f"not so: {what}\n{self.process.communicate()[1]}")
            time.sleep(0.02)

    def lines(self, number: int, what: str, rank: int | None = None) -> list[list[str]]:
        """Return what the rank of a host has written; by default the one of the same number."""
        name = f"{what}.{number if rank is None else rank}"
        path = self.home.files(self._lab, self.names[number]) / name
        with contextlib.suppress(FileNotFoundError):
            return [line.split() for line in path.read_text().rpartition("\n")[0].splitlines()]
        return []

    def steps(self, size: int, attempt: str = "first-") -> list[list[float]]:
        """Return when each rank has ended steps in a world of that size."""
        words, found = ["step", str(size)], []
        for number in range(len(self.names)):
            rank = number if attempt == "first-" else number - 1  # without the lead host
            lines = self.lines(number, f"{attempt}noted", rank)
            found.append([float(line[0]) for line in lines if line[1:] == words])
        return found

    def fault(self, kind: str) -> float:
        """Let it happen; returns when it did."""
        lead = kind.startswith("lead")
        victim, number = (self.names[0], 0) if lead else (self.names[1], 1)
        how = {"lead": "cut", "lead freeze": "freeze"}.get(kind, kind)
        if how in ("cut", "freeze", "reboot"):
            self.home.shanty("lab", how, victim)
            if how == "cut":
                return time.monotonic()
            return float(self.lines(number, "first-alive")[-1][0])
        pid = self.lines(number, "first-noted")[0][1]
        line = f"kill -KILL {pid}" if how == "rank" else f"pkill -KILL -f '{PROCESSES[how]}'"
        ahead = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        said = self.home.shanty("lab", "exec", victim, "sh", "-c", f"cat /proc/uptime; {line}")
        return float(said.split()[0]) - ahead

    def come_back(self, kind: str) -> None:
        """Bring a host back that was cut off or frozen."""
        way = {"lead": "cut", "lead freeze": "freeze"}.get(kind, kind)
        if way in BACK:
            self.home.shanty("lab", BACK[way], self.names[0 if kind.startswith("lead") else 1])

    def end(self) -> str:
        """End it; returns what it said."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=_LIMIT)[1]


def lose(home: Home, lab: str, count: int, kind: str) -> tuple[float, int]:
    """Return the seconds from a loss to the next step, and how often the lost wrote after that."""
    run = Run(home, lab, count)
    try:
        lost, attempt = (0, "again-") if kind.startswith("lead") else (1, "first-")
        left = [number for number in range(count) if number != lost]
        at = run.fault(kind)
        try:
            run.until(
                "the others go on", lambda: all(run.steps(count - 1, attempt)[k] for k in left)
            )
            on = max(run.steps(count - 1, attempt)[number][0] for number in left)
        finally:
            run.come_back(kind)
        time.sleep(_THAWED)
        alive = [float(line[0]) for line in run.lines(lost, "first-alive")]
        return on - at, sum(each > on for each in alive)
    finally:
        run.end()


@click.command()
@click.option("--hosts", default="3,4", help="Numbers of hosts, with commas.")
@click.option("--runs", default=5, help="Losses of each kind.")
@click.option("--only", default=",".join(KINDS), help="Kinds, with commas.")
@click.option("--mpis", type=Path, help="A folder of MPIs, as ~/.shanty/mpi.")
@click.option("--json", "out", type=Path, help="A file for all figures.")
def main(hosts: str, runs: int, only: str, mpis: Path | None, out: Path | None) -> None:
    """Measure all kinds in turns."""
    mpis = mpis or Path(os.environ.get("SHANTY_HOME", Path.home() / ".shanty")) / "mpi"
    found: dict[str, dict[str, list[float]]] = {}
    with hosts_lab.home(mpis) as home:
        for count in map(int, hosts.split(",")):
            here = found.setdefault(f"{count} hosts", {})
            with hosts_lab.lab(home, count) as lab:
                for _ in range(runs):
                    for kind in only.split(","):
                        took, late = lose(home, lab, count, kind)
                        here.setdefault(kind, []).append(took)
                        here.setdefault(f"{kind}, late writes", []).append(late)
    click.echo("loss → next step of those that are left: median / longest, late writes")
    for hosts_there, kinds in found.items():
        for kind in only.split(","):
            times, late = kinds[kind], sum(kinds[f"{kind}, late writes"])
            text = f"{statistics.median(times):.2f} / {max(times):.2f} s of {len(times)}"
            click.echo(f"  {hosts_there}, {kind:<12} {text}, {late:.0f}")
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
