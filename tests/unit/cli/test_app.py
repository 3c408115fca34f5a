"""The program as a whole: its help, what it loads, settings that it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Cli
from plans import MPI
from shanty.launch import mpis

# A help text needs none of them, and each would be felt.
HEAVY = """
asyncio concurrent email http importlib.metadata jinja2 logging mpi4py multiprocessing numpy
pdb pydantic rich runpy sklearn ssl tomllib torch unittest urllib.request xml yaml
shanty.runtime.mpi.detect shanty.launch.index shanty.launch.mpis shanty.launch.targets.local socket
sqlite3"""


@pytest.mark.parametrize("words", [["doctor", "--codes"], ["run", "--help"]])
def test_output_that_finds_no_room(words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "shanty", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 73
    assert done.stderr.splitlines()[0] == "shanty: the output cannot be written"
    assert "Traceback" not in done.stderr


def test_no_command_shows_the_help(cli: Cli) -> None:
    done = cli()
    assert done.code == 2
    assert "\nRun:\n" in done.out + done.err
    assert cli("ps", "-h").out == cli("ps", "--help").out


def test_the_mpis_that_can_be_had_and_how_large_they_are(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpis, "installed", lambda *_: [MPI])
    done = cli("mpi", "list")
    assert [line.split()[0] for line in done.out.splitlines()] == ["FLAVOUR", "openmpi5"]
    offered = done.err.splitlines()
    assert len(offered) == 3
    assert "`shanty mpi install intel` downloads 129 MB (296 MB on disk)" in offered[-1]


def test_a_help_text_loads_nothing_heavy_and_nothing_that_looks_at_runs() -> None:
    code = "import sys, shanty.program; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {*HEAVY.split()} & {*done.stdout.split()}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("keep_rnus = 3\n", "unknown setting 'keep_rnus'"),
        ("keep_runs = 'all'\n", "keep_runs"),
        ("stop_grace = -1\n", "stop_grace"),
        ("log_limit = true\n", "log_limit"),
        ("log_limit\n", "is not valid TOML"),
    ],
)
def test_bad_settings(cli: Cli, home: Path, text: str, says: str) -> None:
    home.mkdir()
    (home / "config.toml").write_text(text)
    done = cli("ps")
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert "config.toml" in done.err
