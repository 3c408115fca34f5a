"""Whether an elastic run that loses ranks again and again leaks, or stands still at some time.

    python benchmarks/soak.py [--minutes 30] [--every 10] [--seed N] [--framework torch]

Four ranks on this machine train by `hvd.elastic`. Every few seconds one is lost, sometimes two, in
ways drawn by the seed, and started again by the others. Whenever all are there, the descriptors,
threads and memory of each process of the run are noted, and how many processes and files there
are. It ends with the first and last values and how they grew with each loss; with exit code 1 if
something grew, the run stood still, or something is left behind, and 0 otherwise.

Ranks are lost and come again, so their growth is that of each process between two losses.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shanty.runtime import platform
from shanty.runtime.run_status import read_status
from shanty.runtime.rundir import RunDir

HERE = Path(__file__).parent
SHANTY = [sys.executable, "-m", "shanty"]
RANKS = 4
KINDS = ["SIGKILL", "SIGSEGV", "SIGABRT", "exception", "sys.exit", "os._exit", "SIGSTOP"]
KINDS += ["two at once", "one after the other", "one that joins"]
LIMITS = {  # what may be more with each loss; Open MPI keeps what it knew of lost ranks
    "MB: rank": 0.6, "MB: launcher": 0.6, "MB": 0.15, "": 0.05,
}  # fmt: skip
SLACK = {"MB": 4, "files": 8, "descriptors": 8}  # that what comes once may take: stacks, libraries
_ALIKE, _MOST = ("sys.exit", "os._exit"), 2  # for three such ends a run fails, as for one bug
_LIMIT = 240.0  # seconds after which the run stands still
_YOUNG = 2  # losses that a process has to have seen before its growth counts
_WORDS = {  # of a process's command, and what it is then
    "prterun": "launcher", "rank.exec": "rank.exec", "/fork_server.py ": "fork server",
    "soak_rank.py": "rank",
}  # fmt: skip

Values = dict[str, float]


class StandsStillError(Exception):
    """The run has not come to what it had to come to."""


def look(run: Path, folders: dict[str, Path]) -> tuple[dict[tuple[str, int], Values], Values]:
    """Return figures of each process of a run, by its kind and pid, and those of all."""
    agents = json.loads((run / "agents.json").read_text())
    found = {agents[name]["pid"]: name.replace("_", " ") for name in ("controller", "node_agent")}
    totals: Values = {"zombies": 0}
    for each in [each for root in list(found) for each in platform.descendants(root)]:
        words = " ".join(platform.command(each.pid))
        kind = next((kind for word, kind in _WORDS.items() if word in words), words)
        if not words:
            totals["zombies"] += 1
        elif each.pid not in found:
            found[each.pid] = kind
    processes: dict[tuple[str, int], Values] = {}
    for pid, kind in found.items():
        try:
            processes[kind, pid] = {
                "descriptors": count(f"/proc/{pid}/fd"),
                "threads": count(f"/proc/{pid}/task"),
                "MB": private(pid),
            }
        except OSError:
            continue  # it has ended meanwhile
    for kind, many in Counter(kind for kind, _ in processes).items():
        totals[f"processes: {kind}"] = many
    for name, folder in folders.items():
        totals[f"files: {name}"] = sum(1 for _ in folder.rglob("*"))
    return processes, totals


def count(folder: str) -> int:
    """Return how many entries a folder has."""
    return sum(1 for _ in Path(folder).iterdir())


def private(pid: int) -> float:
    """Return the memory in MB that a process alone has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


class Soak:
    """A run that loses ranks. folder: where it trains."""

    def __init__(self, folder: Path, seed: int, framework: str, options: list[str]) -> None:
        self.folder, self._random = folder, random.Random(seed)
        self.home, self._tmp = folder / "home", folder / "tmp"
        for each in (self.home, self._tmp):
            each.mkdir()
        mpis = Path(os.environ.get("SHANTY_HOME", Path.home() / ".shanty")) / "mpi"
        (self.home / "mpi").symlink_to(mpis)
        words = ["run", "--mpi", "openmpi5", "--oversubscribe", "--elastic", "-n", str(RANKS)]
        words += ["--stall-after", "3s", *options, str(HERE / "soak_rank.py"), framework]
        self._environ = {**os.environ, "SHANTY_HOME": str(self.home), "TMPDIR": str(self._tmp)}
        with (folder / "output").open("w") as output:
            self.process = subprocess.Popen(
                [*SHANTY, *words], cwd=folder, env=self._environ,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.run = folder
        self.samples: list[tuple[int, dict[tuple[str, int], Values], Values]] = []
        self.lost: Counter[str] = Counter()
        self.times: dict[str, list[float]] = defaultdict(list)

    def begin(self) -> None:
        """Wait until all ranks train."""
        self.run = self._until("it has begun", lambda: next(self.home.glob("runs/*-*"), None))
        self._until("all train", (self.folder / "stepped").exists)
        self.sample()

    def shown(self) -> str:
        """Return what shanty and the run say at present."""
        done = subprocess.run(
            [*SHANTY, "stacks"], env=self._environ, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        return done.stdout + done.stderr + (self.folder / "output").read_text()[-4000:]

    def _until(self, what: str, look: Callable[[], Any]) -> Any:
        end = time.monotonic() + _LIMIT
        while time.monotonic() < end:
            if found := look():
                return found
            if self.process.poll() is not None:
                raise StandsStillError(f"the run ended before {what}")
            time.sleep(0.02)
        raise StandsStillError(f"not within {_LIMIT:.0f} s: {what}")

    def sample(self) -> None:
        """Note the figures of now."""
        short = self.run.name[-11:]
        folders = {"the run's folder": self.run, "shanty's home": self.home, "TMPDIR": self._tmp}
        folders["/dev/shm"] = Path("/dev/shm", short)
        folders["scratch"] = Path(platform.scratch_root(), short)
        self.samples.append((sum(self.lost.values()), *look(self.run, folders)))

    def pid(self, seat: int) -> int:
        """Return the process of a rank, by the number that the first one with it began with."""
        return int((self.folder / f"pid-{seat}").read_text() or 0)

    def lose(self) -> None:
        """Lose a rank, or two, and wait until all are there again."""
        spared = sum(self.lost.values()) // 15 % RANKS  # so that some processes grow old
        first, second = self._random.sample([each for each in range(RANKS) if each != spared], 2)
        kind = self._random.choice(KINDS)
        if kind in _ALIKE and sum(map(self.lost.get, _ALIKE, (0, 0))) == _MOST:
            kind = "exception"
        lost, pid, begun = self._lost(), self.pid(first), time.monotonic()
        if kind in ("two at once", "one after the other", "one that joins"):
            self._kill(first)
        else:
            (self.folder / "new").write_text(kind)
            (self.folder / "new").replace(self.folder / f"lose-{first}")
        if kind == "one after the other":
            time.sleep(self._random.uniform(0, 0.3))
        if kind in ("two at once", "one after the other"):
            self._kill(second)
        if kind == "one that joins":
            self._until("another is started", lambda: self.pid(first) not in (0, pid))
            time.sleep(self._random.uniform(0, 0.3))
            self._kill(first)
        self._until("the loss is noted", lambda: self._lost() > lost)
        self.lost[kind] += 1
        stepped = self._until(f"a step after {kind}", lambda: self._stepped(begun))
        if kind != "SIGSTOP":  # which counts as a loss after some seconds only
            self.times["step"].append(stepped - begun)
        self._until(f"all are there after {kind}", lambda: self._up() == RANKS)
        self.times["full"].append(time.monotonic() - begun)

    def _kill(self, seat: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, which will be noticed
            os.kill(self.pid(seat), signal.SIGKILL)

    def _lost(self) -> int:
        return len(read_status(RunDir(self.run)).lost)

    def _up(self) -> int | None:
        return read_status(RunDir(self.run)).up

    def _stepped(self, since: float) -> float | None:
        """Return when the first step with fewer ranks was over."""
        lines = (self.folder / "stepped").read_text().splitlines()
        times = [tuple(map(float, line.split())) for line in lines]
        return next((at for at, size in times if at > since and size < RANKS), None)

    def end(self) -> None:
        """Have the training come to its end."""
        (self.folder / "end").touch()
        if self.process.wait(_LIMIT) != 0:
            raise StandsStillError(f"the run ended with exit code {self.process.returncode}")

    def left(self) -> list[str]:
        """Return what the run has left behind."""
        short = self.run.name[-11:]
        paths = [Path("/dev/shm", short), Path(platform.scratch_root(), short)]
        found = [str(each) for each in paths if each.exists()]
        variable = f"{self.run}".encode()
        for each in platform.processes().values():
            with contextlib.suppress(OSError):
                if variable in Path(f"/proc/{each.pid}/environ").read_bytes():
                    found.append(f"process {each.pid}: {' '.join(platform.command(each.pid))}")
        return found


def growth(soak: Soak) -> dict[str, tuple[float, float, float]]:
    """Return the first and the last value of each figure, and how it grew with each loss."""
    found = {}
    begins = max(_YOUNG, sum(soak.lost.values()) // 2)  # some files come with the first stall
    settled = [(lost, totals) for lost, _, totals in soak.samples if lost >= begins]
    for name in {name for _, totals in settled for name in totals}:
        at = [lost for lost, _ in settled]
        values = [totals.get(name, 0.0) for _, totals in settled]
        slope = statistics.linear_regression(at, values).slope if len(set(at)) > 1 else 0.0
        found[name] = values[0], values[-1], slope
    seen: dict[tuple[str, int], list[tuple[int, Values]]] = defaultdict(list)
    for lost, processes, _ in soak.samples:
        for process, values in processes.items():
            seen[process].append((lost, values))
    kinds: dict[str, list[list[tuple[int, Values]]]] = defaultdict(list)
    for (kind, _), life in seen.items():
        begins = max(life[0][0] + _YOUNG, (life[0][0] + life[-1][0]) // 2)
        old = [each for each in life if each[0] >= begins]
        if len(old) > 1:
            kinds[kind].append(old)
    for kind, lives in kinds.items():
        losses = sum(life[-1][0] - life[0][0] for life in lives)
        for name in ("descriptors", "threads", "MB") if losses else ():
            more = sum(life[-1][1][name] - life[0][1][name] for life in lives)
            longest = max(lives, key=lambda life: life[-1][0] - life[0][0])
            found[f"{name}: {kind}"] = longest[0][1][name], longest[-1][1][name], more / losses
    return found


def report(soak: Soak) -> list[str]:
    """Print the figures; returns those that grew."""
    many = sum(soak.lost.values())
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(soak.lost.items()))
    click.echo(f"{many} losses: {kinds}")
    for name, what in (("step", "loss → next step"), ("full", "loss → all ranks are there")):
        if times := soak.times[name]:
            click.echo(f"{what}: median {statistics.median(times):.2f} s, longest {max(times):.2f}")
    click.echo(f"{'':<34}{'first':>9}{'last':>9}{'a loss':>10}")
    grew = []
    for name, (first, last, slope) in sorted(growth(soak).items()):
        limit = LIMITS.get(name) or LIMITS.get(name.partition(":")[0], LIMITS[""])
        over = slope > limit and last > first + SLACK.get(name.partition(":")[0], 1)
        if over:
            grew.append(name)
        text = f"{name:<34}{first:>9.1f}{last:>9.1f}{slope:>+10.3f}"
        click.echo(text + (f"  more than {limit}" if over else ""))
    return grew


@click.command()
@click.option("--minutes", default=30.0, help="How long it trains.")
@click.option("--every", default=10.0, help="Seconds from a loss to the next one, at least.")
@click.option("--seed", type=int, help="Which losses; one at random if it is not given.")
@click.option("--option", "options", multiple=True, help="Of `shanty run`; by default --warm.")
@click.option("--framework", default="numpy", help="Or torch, whose optimizer then takes part.")
@click.option("--out", type=Path, help="A file for all figures.")
def main(
    minutes: float,
    every: float,
    seed: int | None,
    options: tuple[str, ...],
    framework: str,
    out: Path | None,
) -> None:
    """Lose ranks, and look for what grows."""
    seed = random.randrange(1 << 16) if seed is None else seed
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    click.echo(f"seed {seed}, in {folder}")
    usual = "--warm=torch,torch._dynamo" if framework == "torch" else "--warm=numpy"
    soak = Soak(folder, seed, framework, list(options) or [usual])
    faults = []
    try:
        soak.begin()
        end, shown = time.monotonic() + 60 * minutes, time.monotonic()
        while time.monotonic() < end:
            next_loss = time.monotonic() + every
            soak.lose()
            time.sleep(max(0.0, next_loss - time.monotonic()))
            soak.sample()
            if time.monotonic() > shown + 120:
                shown = time.monotonic()
                report(soak)
        soak.end()
    except StandsStillError as error:
        faults.append(str(error))
        click.echo(soak.shown())
    finally:
        soak.process.terminate()  # which stops the run
        soak.process.wait()
    faults += [f"it grew: {name}" for name in report(soak)]
    faults += [f"it is left: {each}" for each in soak.left()]
    if out is not None:
        figures = {"seed": seed, "lost": soak.lost, "times": soak.times, "growth": growth(soak)}
        out.write_text(json.dumps(figures, indent=1) + "\n")
    click.echo("\n".join(faults) or "nothing grew, and nothing is left")
    if faults:
        raise SystemExit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
