"""The program as a whole: what it refuses and how, its help, what it loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Cli
from shanty.launch import mpis
from shanty.runtime.mpi.installation import Installation

MPI = Installation("openmpi5", "5.0.11", "/mpi", "/mpi/bin/mpirun", "/mpi/lib/libmpi.so", "shanty")

# None of them is needed for a help text, and each would be felt.
HEAVY = {
    "asyncio",
    "concurrent",
    "email",
    "http",
    "importlib.metadata",
    "jinja2",
    "logging",
    "mpi4py",
    "multiprocessing",
    "numpy",
    "pdb",
    "pydantic",
    "rich",
    "runpy",
    "sklearn",
    "ssl",
    "tomllib",
    "torch",
    "unittest",
    "urllib.request",
    "xml",
    "yaml",
}


@pytest.mark.parametrize("words", [["doctor", "--codes"], ["run", "--help"]])
def test_output_that_finds_no_room(words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "shanty", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 73
    assert done.stderr.splitlines()[0] == "shanty: the output cannot be written"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["frobnicate"], 2, "shanty has no command 'frobnicate'"),
        (["a" * 300], 2, "shanty has no command 'aaa"),
        (["run", "-n", "x", "train.py", "--json"], 2, "Error: Invalid value for '-n'"),
        (["run"], 2, "Missing argument"),
        (["run", "--frobnicate", "train.py"], 2, "--frobnicate"),
        (["run", "-n", "two", "train.py"], 2, "'-n'"),
        (["run", "-n", "0", "train.py"], 2, "ranks must be at least 1, not 0"),
        (["run", "-n", "-1", "train.py"], 2, "ranks must be at least 1, not -1"),
        (["run", "--ppn", "0", "train.py"], 2, "ranks per host must be at least 1"),
        (["run", "-c", "0", "train.py"], 2, "cpus per rank must be at least 1"),
        (["run", "-n", "3", "train.py"], 2, "take -n 2, or --oversubscribe"),
        (["run", "-n", "2", "-c", "2", "train.py"], 2, "2 ranks with 2 cpus each do not fit"),
        (["run", "-n", "2", "--ppn", "1", "train.py"], 2, "leave -n or --ranks-per-host out"),
        (["run", "nothing.py"], 66, "there is no script 'nothing.py'"),
        (["run", "-C", "nowhere", "train.py"], 2, "check --workdir"),
        (["run", "-m"], 2, "-m needs the name of a module"),
        (["run", "--time-limit", "soon", "train.py"], 2, "write 90, 90s, 15m, 2h, 1h30m"),
        (["run", "--start-timeout", "-1", "train.py"], 2, "'-1' is no time"),
        (["run", "-e", "=1", "train.py"], 2, "'=1' is not KEY=VALUE"),
        (["run", "--env-file", "nowhere", "train.py"], 66, "cannot read the env file nowhere"),
        (["run", "--python", "./nowhere", "train.py"], 66, "there is no Python at './nowhere'"),
        (["run", "--python", "nopython", "train.py"], 66, "there is no Python at 'nopython'"),
        (["run", "--debug", "0", "-d", "train.py"], 2, "--debug needs a terminal"),
        (["show", "nothing"], 66, "there is no run 'nothing'"),
        (["show"], 66, "there are no runs yet"),
        (["logs", "nothing"], 66, "there is no run 'nothing'"),
        (["rerun", "nothing"], 66, "there is no run 'nothing'"),
        (["stop"], 2, "which run?"),
        (["rm"], 2, "Missing argument"),
        (["rm", "nothing"], 66, "there is no run 'nothing'"),
        (["prune", "--keep", "-1"], 2, "--keep must be 0 or more"),
        (["ps", "--state", "dead"], 2, "known are pending, starting, running"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_words(cli: Cli, words: list[str], code: int, says: str) -> None:
    done = cli(*words)
    assert done.code == code
    assert says in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_no_command_shows_the_help(cli: Cli) -> None:
    done = cli()
    assert done.code == 2
    assert "Commands:" in done.out + done.err


@pytest.mark.parametrize("verb", ["", "run", "ps", "show", "logs", "stop", "stacks", "mpi"])
def test_help(cli: Cli, verb: str) -> None:
    done = cli(*verb.split(), "--help")
    assert done.code == 0
    assert done.out.startswith("Usage: ")
    assert cli(*verb.split(), "-h").out == done.out


def test_the_mpis_that_can_be_had_and_how_large_they_are(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpis, "installed", lambda *_: [MPI])
    done = cli("mpi", "list")
    assert [line.split()[0] for line in done.out.splitlines()] == ["FLAVOUR", "openmpi5"]
    offered = done.err.splitlines()
    assert len(offered) == 3
    assert "`shanty mpi install intel` downloads 129 MB (296 MB on disk)" in offered[-1]


def loaded_for_help() -> set[str]:
    code = "import sys, shanty.cli.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_a_help_text_loads_nothing_heavy() -> None:
    assert not HEAVY & loaded_for_help()


def test_a_help_text_loads_nothing_that_looks_at_runs() -> None:
    avoidable = {
        "shanty.runtime.mpi.detect",
        "shanty.launch.index",
        "shanty.launch.mpis",
        "shanty.launch.targets.local",
        "socket",
        "sqlite3",
    }
    assert not avoidable & loaded_for_help()


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
