"""Counts the runs that hang: programs that end at once, many times, on many hosts.

Open MPI 5 forgets a rank that ends before its launcher has written down its pid, and then waits
for ever; shanty's settings prevent that. Every run has a bound; what did not end in it, or ended
in another way than it should, is kept with all its files. A launcher that shanty had to end
because it outlived its ranks counts as a hang too, although the run goes well.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import figures
import hosts_lab
from hosts_lab import SHANTY, Home

BOUND = 60.0  # seconds after which a run hangs
_LEAVING = 20.0  # seconds for a command that is told to end


@dataclass(frozen=True)
class Case:
    title: str
    hosts: int  # 0 for this machine
    runs: int
    words: tuple[str, ...]  # what follows `shanty run -q`
    lines: int  # of output


CASES = {
    "16": Case("hostname at 16 hosts", 16, 200, ("-n", "16", "hostname"), 16),
    "32": Case("hostname at 32 hosts", 32, 30, ("-n", "32", "hostname"), 32),
    "local": Case("-n 64 true here", 0, 50, ("-n", "64", "--oversubscribe", "true"), 0),
}


def wanted(words: Sequence[str]) -> dict[str, int]:
    """NAME or NAME=RUNS of each case; all of them where none is named."""
    found = {}
    for word in words or CASES:
        name, _, runs = word.partition("=")
        if name not in CASES:
            raise SystemExit(f"there is no case {name}: {', '.join(CASES)}")
        found[name] = int(runs or CASES[name].runs)
    return found


def count(wanted: Mapping[str, int], out: Path, kept: Path | None) -> None:
    """Run the cases (name → runs), print what came of them, write it to `out`."""
    kept = kept or Path(tempfile.mkdtemp(prefix="shanty-hangs-"))
    found: dict[str, dict[str, object]] = {}
    for name, runs in wanted.items():
        with hosts_lab.home() as home:
            found[name] = _case(CASES[name], runs, home, kept / name)
        figures.keep(out, found)
    for name, result in found.items():
        print(
            f"  {CASES[name].title:<22} {result['runs']:>4} runs  {result['hangs']} hang  "
            f"{result['failures']} fail  {min(result['seconds']):.1f} … "  # type: ignore[call-overload]
            f"{max(result['seconds']):.1f} s"  # type: ignore[call-overload]
        )
    if any(result["hangs"] or result["failures"] for result in found.values()):
        raise SystemExit(f"the files of runs that went wrong are in {kept}")
    shutil.rmtree(kept, ignore_errors=True)


def _case(case: Case, runs: int, home: Home, kept: Path) -> dict[str, object]:
    seconds: list[float] = []
    hangs = failures = 0
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(hosts_lab.lab(home, case.hosts)) if case.hosts else ""
        on = ("--on", lab) if lab else ()
        argv = [SHANTY, "run", "-q", *on, *case.words]
        expected = {f"{lab}{number}" for number in range(1, case.lines + 1)}
        home.shanty(*argv[1:], timeout=300)  # not counted: puts everything on the hosts
        for number in range(1, runs + 1):
            since, began = time.time(), time.monotonic()
            folder = kept / str(number)
            stuck = functools.partial(_keep, home, lab, since, folder)
            code, text, complaints = _run(argv, home, stuck)
            seconds.append(round(time.monotonic() - began, 3))
            seen = [line.rpartition(" ")[2] for line in text.splitlines()]
            hung = code is None or _launcher_hung(home, since)
            good = code == 0 and len(seen) == len(expected) and set(seen) == expected
            hangs += hung
            failures += not (good or hung)
            if hung or not good:
                what = "hangs" if hung else f"ended with {code}"
                print(f"{case.title}: run {number} {what}", file=sys.stderr)
                if code is not None:
                    _keep(home, lab, since, folder)
                (folder / "stdout").write_text(text)
                (folder / "stderr").write_text(complaints)
            if number % 10 == 0 or number == runs:
                print(
                    f"{case.title}: {number} of {runs} runs, {hangs} hang, {failures} fail",
                    file=sys.stderr,
                )
    return {"runs": runs, "hangs": hangs, "failures": failures, "seconds": seconds}


def _run(argv: Sequence[str], home: Home, stuck: Callable[[], None]) -> tuple[int | None, str, str]:
    """Exit code (None: it did not end in time) and output of one run.

    `stuck` is called for one that has not ended in time, before it is made to.
    """
    process = subprocess.Popen(
        argv,
        env=home.environ,
        cwd=home.workspace,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        text, complaints = process.communicate(timeout=BOUND)
        return process.returncode, text, complaints
    except subprocess.TimeoutExpired:
        stuck()
        process.send_signal(signal.SIGINT)
    try:
        text, complaints = process.communicate(timeout=_LEAVING)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, complaints = process.communicate()
    return None, text, complaints


def _newest(home: Home, since: float) -> Path | None:
    """The directory of the run that was begun after `since`, if it got that far."""
    runs = [path for path in (home.path / "runs").iterdir() if (path / "job.json").exists()]
    new = [path for path in runs if (path / "job.json").stat().st_mtime >= since]
    return max(new, default=None)


def _launcher_hung(home: Home, since: float) -> bool:
    run = _newest(home, since)
    events = run / "events.jsonl" if run else Path(os.devnull)
    return events.exists() and '"launcher-hung"' in events.read_text()


def _keep(home: Home, lab: str, since: float, folder: Path) -> None:
    """Copy what the run that began then has here and on its hosts."""
    folder.mkdir(parents=True)
    run = _newest(home, since)
    if run is None:
        return
    places = [run]
    if lab:
        places += (home.path / "lab" / lab / "hosts").glob(f"*/home/.shanty/work/{run.name}.*")
    for place in places:
        # a FIFO cannot be copied, and what is there may go at any moment
        with contextlib.suppress(shutil.Error, OSError):
            shutil.copytree(place, folder / place.name, ignore=shutil.ignore_patterns("reports"))
