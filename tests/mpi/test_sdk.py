"""Tasks on this machine: values, exceptions, ends, another attempt, kept values."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from launches import LONG
from runs import Shanty, mpi_folder, traces, vanish, wait_for
from sdk_runs import NAMES, SHORT, check, out, passed, selected, started

pytestmark = [pytest.mark.mpi, pytest.mark.slow]
OPTIONS = {"oversubscribe": True}


class Checks:
    """All checks, done once, in a home of their own."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._names = names
        self.shanty = Shanty(folder / "home", folder / "work")
        self.shanty.home.mkdir()
        if mpi_folder().exists():
            (self.shanty.home / "mpi").symlink_to(mpi_folder())
        self.output = cache(self._output)

    def _output(self) -> str:
        return check(self.shanty.folder, self.shanty.environ, OPTIONS, self._names, 500)


@pytest.fixture(scope="module")
def launches(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Checks]:
    """The output of all checks; afterwards nothing is left of their runs."""
    before = traces()
    found = Checks(tmp_path_factory.mktemp("sdk"), [*selected(request), "output_is_shown"])
    yield found
    wait_for(lambda: not found.shanty.alive(), 10, "processes of the runs are left")
    vanish(traces() - before)
    assert not [*(found.shanty.home / "cache" / "calls").iterdir()]


@LONG
@pytest.mark.timeout(520)
@pytest.mark.parametrize("name", NAMES)
def test_on_this_machine(launches: Checks, name: str) -> None:
    passed(launches.output(), name)


@LONG
@pytest.mark.timeout(520)
def test_output_is_shown(launches: Checks) -> None:
    """Each whole line with its rank, also a last one without an end."""
    lines = launches.output().splitlines()
    for rank in (0, 1):
        assert f"[{rank}] hello from {rank}" in lines
        assert f"[{rank}] no end {rank}" in lines


def test_in_short(shanty: Shanty) -> None:
    output = check(shanty.folder, shanty.environ, OPTIONS, SHORT)
    for name in SHORT:
        passed(output, name)
    assert not [*(shanty.home / "cache" / "calls").iterdir()]


OTHER = """
import shanty

@shanty.task(ranks=1, cache="1", retries=1)
def report():
    return "made"

if __name__ == "__main__":
    print(report(), len(shanty.runs()))
"""


@LONG
def test_values_are_kept_for_other_processes(shanty: Shanty) -> None:
    """Also where two of them begin at the same time."""
    script = shanty.script(OTHER)
    both = [started(shanty.folder, shanty.environ, script) for _ in range(2)]
    assert all(out(process, 60).startswith("made") for process in both)
    began = len([*(shanty.home / "runs").iterdir()])
    assert 1 <= began <= 2
    assert out(started(shanty.folder, shanty.environ, script)) == f"made {began}\n"
    assert len([*(shanty.home / "cache" / "values").iterdir()]) == 1


LAST = """
import shanty

@shanty.task(ranks=2)
def save():
    (shanty.artifacts() / f"{shanty.rank()}").write_text("saved")

save.submit()
"""


def test_a_script_may_end_with_a_call(shanty: Shanty) -> None:
    """Its run begins all the same, and goes on."""
    process = started(shanty.folder, shanty.environ, shanty.script(LAST))
    assert (process.communicate(timeout=120), process.returncode) == (("", ""), 0)
    wait_for(lambda: shanty.status().get("state") == "succeeded", 30)
    assert sorted(path.name for path in shanty.last.artifacts.iterdir()) == ["0", "1"]
    assert not [*(shanty.home / "cache" / "calls").iterdir()]


HOARD = """
import json, os, pathlib, sys
import shanty

more = {"memory": sys.argv[1] or None, "memory_per_rank": "16M"}

@shanty.task(ranks=2, oversubscribe=True, retries=1, **more)
def hoard():
    from mpi4py import MPI

    job = json.loads(pathlib.Path(os.environ["SHANTY_RUN_DIR"], "job.json").read_text())
    MPI.COMM_WORLD.barrier()
    few = job["memory_per_rank"] > 16 << 20
    kept = bytearray(1 if few or MPI.COMM_WORLD.rank == 0 else 600 << 20)
    MPI.COMM_WORLD.barrier()
    return job["memory_per_rank"] >> 20

if __name__ == "__main__":
    try:
        print("value", hoard(), len(shanty.runs()))
    except shanty.RunError as error:
        print("error", error.cause, len(shanty.runs()))
"""


@LONG
@pytest.mark.parametrize(("memory", "words"), [("x2", "value 32 2"), ("", "error memory 1")])
def test_the_kernel_ends_a_rank_for_its_memory(
    shanty: Shanty, memory_limit: Path, memory: str, words: str
) -> None:
    script = shanty.script(HOARD)
    inner = 'echo $$ > "$1" && exec "$2" "$3" "$4"'
    done = subprocess.run(
        ["sh", "-c", inner, "sh", memory_limit, sys.executable, script, memory],
        cwd=shanty.folder, env=shanty.environ, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.stdout.strip() == words, done.stderr
