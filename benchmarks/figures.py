"""What the benchmarks share: their options, how they print figures, and the file of raw figures."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class NoFigures(SystemExit):
    """A measured command ended without figures: what it said. Uncaught, it ends the benchmark."""


def options(doc: str, repeats: int, kept: str = "") -> argparse.ArgumentParser:
    """The options --repeats and --out, by default results/KEPT.json, else no file."""
    out = Path(__file__).parent / "results" / f"{kept}.json" if kept else None
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--out", type=Path, default=out)
    return parser


def in_turn(ways: Sequence[T], number: int) -> list[T]:
    """The ways in the order of a round: another one is first in each."""
    first = number % len(ways)
    return [*ways[first:], *ways[:first]]


def measured(words: Sequence[object], timeout: float | None = None, **environ: str) -> Any:
    """The line of JSON that a command prints last."""
    done = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-600:]
        raise NoFigures(f"exit code {done.returncode}: {said}")
    return last_line(done.stdout)


def last_line(text: str) -> Any:
    """The last line of JSON of an output; the labels of ranks stand before it."""
    lines = [line for line in text.splitlines() if "{" in line and line.endswith("}")]
    if not lines:
        raise NoFigures(f"no figures: {text[-600:]}")
    return json.loads(lines[-1][lines[-1].index("{") :])


def quartiles(values: Sequence[float], scale: float = 1.0, digits: int = 2) -> str:
    """The median and, in brackets, the quartiles."""
    several = values if len(values) > 1 else [*values] * 2
    low, middle, high = (scale * each for each in statistics.quantiles(several, n=4))
    return f"{middle:9.{digits}f}  [{low:.{digits}f} … {high:.{digits}f}]"


def milliseconds(values: Sequence[float]) -> str:
    """The median and the 95th percentile."""
    several = values if len(values) > 1 else [*values] * 2
    high = statistics.quantiles(several, n=20)[-1]
    return f"{statistics.median(values):8.1f} ms   95 %: {high:8.1f} ms"


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """The ratios round by round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def differences(more: Sequence[float], less: Sequence[float]) -> list[float]:
    """The differences round by round."""
    return [a - b for a, b in zip(more, less, strict=True)]


def keep(out: Path | None, found: Mapping[Any, object]) -> None:
    """Write the raw figures to the file, and print its name."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found, indent=1) + "\n")
        print(f"raw figures: {out}")
