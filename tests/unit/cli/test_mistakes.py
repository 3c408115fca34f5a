"""What people type in their first hour, and what they are told: never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Cli, make_run

Words = list[str]


@pytest.fixture
def folder(home: Path) -> Path:
    """The current folder, with a script, a folder, a notebook, a link to nothing."""
    here = home.parent / "work"
    (here / "package").mkdir()
    (here / "notes.ipynb").write_text("{}")
    (here / "link.py").symlink_to("gone.py")
    return here


def shanty(
    folder: Path, *words: str, home: Path | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SHANTY_")}
    environ = {**kept, "SHANTY_HOME": str(home or folder.parent / "home")}
    environ.update(options.pop("env", {}))  # type: ignore[call-overload]
    done = subprocess.run(
        [sys.executable, "-m", "shanty", *words],
        **{"cwd": folder, "env": environ, "timeout": 60, **options},  # type: ignore[call-overload]
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


MISTAKES: dict[str, tuple[Words, int, str]] = {
    "a script as a command": (["train.py", "--x"], 2, "did you mean: shanty run train.py --x"),
    "a slip": (["rnu", "train.py"], 2, "did you mean: shanty run train.py"),
    "a program as a command": (["uname", "-a"], 2, "shanty run uname -a"),
    "nothing like it": (["frobnicate"], 2, "`shanty --help` lists the commands"),
    "a name that is nearly right": (["run", "trian.py"], 66, "did you mean train.py?"),
    "a name like none": (["run", "zzz.py"], 66, "check the name"),
    "in a folder that is not there": (["run", "src/train.py"], 66, "check the name"),
    "a notebook": (["run", "notes.ipynb"], 2, "jupyter nbconvert --to script notes.ipynb"),
    "a folder": (["run", "package"], 66, "without __main__.py"),
    "mpirun's variable": (["run", "-x", "FOO", "train.py"], 2, "-e NAME=VALUE"),
    "mpirun's hosts": (["run", "-H", "a,b", "train.py"], 2, "--on HOST,HOST"),
    "torchrun's number": (["run", "--nproc_per_node", "2", "train.py"], 2, "-n NUMBER"),
    "torchrun's, with a dash": (["run", "--nproc-per-node=2", "train.py"], 2, "-n NUMBER"),
    "mpirun's parameter": (["run", "--mca", "btl", "tcp", "train.py"], 2, "mpirun --mca …"),
    "mpirun's leave": (["run", "--allow-run-as-root", "train.py"], 2, "it is not needed"),
    "mpiexec's number": (["run", "-ppn", "2", "train.py"], 2, "--ppn NUMBER"),
    "another program's command": (["kill", "last"], 2, "did you mean: shanty stop last"),
    "another program's word": (["list"], 2, "did you mean: shanty ps"),
    "help as a word": (["help", "run"], 2, "shanty run --help"),
    "options before the command": (["-n", "2", "run", "a.py"], 2, "shanty run -n 2 a.py"),
    "options and no command": (["-n", "2", "train.py"], 2, "shanty run -n 2 train.py"),
    "a script as a module": (["run", "-m", "train.py"], 2, "leave -m out, or write -m train"),
    "a script behind python": (["run", "python", "trian.py"], 66, "did you mean train.py?"),
    "a link to nothing": (["run", "link.py"], 66, "a link to gone.py, which does not exist"),
    "an address": (["run", "https://a.b/train.py"], 66, "curl -LO https://a.b/train.py"),
    "a quoted home": (["run", "~/train.py"], 66, "write it without quotes"),
    "a number in words": (["run", "-n", "two", "train.py"], 2, "not a valid integer"),
    "no ranks": (["run", "-n", "0", "train.py"], 2, "at least 1"),
    "nothing to run": (["run", "-n", "2"], 2, "Missing argument"),
    "an empty word": (["run", ""], 2, "nothing to run"),
    "an MPI with a slip": (["run", "--mpi", "opnmpi", "train.py"], 2, "did you mean openmpi5?"),
    "a lab that is not up": (["run", "--on", "lab", "train.py"], 69, "shanty lab up makes"),
    "a folder to run in that is not there": (["run", "-C", "x", "train.py"], 2, "folder not found"),
    "--json of a script": (["run", "-n", "x", "train.py", "--json"], 2, "Error: Invalid value"),
    "a long word": (["a" * 300], 2, "shanty has no command 'aaa"),
    "an option that there is not": (["run", "--frobnicate", "train.py"], 2, "--frobnicate"),
    "fewer than no ranks": (["run", "-n", "-1", "train.py"], 2, "at least 1, not -1"),
    "no ranks on a host": (["run", "--ppn", "0", "train.py"], 2, "ranks per host must be at"),
    "no cores": (["run", "-c", "0", "train.py"], 2, "cpus per rank must be at least 1"),
    "more ranks than cores": (["run", "-n", "3", "train.py"], 2, "take -n 2, or --oversubscribe"),
    "too many cores": (["run", "-n", "2", "-c", "2", "train.py"], 2, "2 cpus each do not fit"),
    "two numbers": (["run", "-n", "2", "--ppn", "1", "train.py"], 2, "-n or --ranks-per-host out"),
    "no module": (["run", "-m"], 2, "-m needs the name of a module"),
    "a time in words": (["run", "--time-limit", "soon", "train.py"], 2, "90, 90s, 15m, 2h, 1h30m"),
    "a time before now": (["run", "--start-timeout", "-1", "train.py"], 2, "invalid time '-1'"),
    "no name of a variable": (["run", "-e", "=1", "train.py"], 2, "'=1' is not KEY=VALUE"),
    "a file of variables": (["run", "--env-file", "x", "train.py"], 66, "cannot read the env file"),
    "a Python's path": (["run", "--python", "./x", "train.py"], 66, "Python not found: './x'"),
    "a Python's name": (["run", "--python", "no", "train.py"], 66, "Python not found: 'no'"),
    "a debugger": (["run", "--debug", "0", "-d", "train.py"], 2, "--debug needs a terminal"),
    "no run yet": (["show"], 66, "nothing has been run yet"),
    "no such run": (["logs", "nothing"], 66, "run 'nothing' not found"),
    "no such run again": (["rerun", "nothing"], 66, "run 'nothing' not found"),
    "which run to stop": (["stop"], 2, "no run is named"),
    "which run to delete": (["rm"], 2, "Missing argument"),
    "how many to keep": (["prune", "--keep", "-1"], 2, "--keep must be 0 or more"),
    "a state that there is not": (["ps", "--state", "dead"], 2, "known are pending, starting"),
}


IN_A_PROCESS = ("a script as a command", "an MPI with a slip", "a lab that is not up")


@pytest.mark.parametrize("case", [case for case in MISTAKES if case not in IN_A_PROCESS])
def test_a_mistake(cli: Cli, folder: Path, case: str) -> None:
    words, code, text = MISTAKES[case]
    done = cli(*words)
    assert done.code == code, done.err
    assert text in done.err
    assert done.out == ""


@pytest.mark.parametrize("case", IN_A_PROCESS)
def test_a_mistake_in_a_process(folder: Path, case: str) -> None:
    words, code, text = MISTAKES[case]
    done = shanty(folder, *words)
    assert done.returncode == code, done.stderr
    assert text in done.stderr


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_standard_stream_that_is_closed(folder: Path, stream: str) -> None:
    line = f"{sys.executable} -m shanty run -n 1 train.py {stream}>&-"
    done = subprocess.run(
        ["sh", "-c", line], cwd=folder, capture_output=True, text=True, timeout=60,
        env={**os.environ, "SHANTY_HOME": str(folder.parent / "home")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert not list(folder.glob("*home*"))


def test_a_reader_that_leaves(folder: Path) -> None:
    make_run(folder.parent / "home", 1)
    line = f"{sys.executable} -m shanty ps | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=60,
        env={**os.environ, "SHANTY_HOME": str(folder.parent / "home")},
    )  # fmt: skip
    assert done.returncode in (0, 141)  # it may have written all before
    assert done.stderr == ""


def test_options_after_the_script(cli: Cli, folder: Path) -> None:
    done = cli("run", "--dry-run", "train.py", "-n", "2")
    assert done.code == 0
    assert "-n after train.py is an option of the script" in done.err
    (folder / "own.py").write_text("import argparse\np.add_argument('-n')\n")
    assert "option of the script" not in cli("run", "--dry-run", "own.py", "-n2").err
    assert not cli("run", "--dry-run", "own.py", "-n", "2").err
    assert not cli("run", "--dry-run", "train.py", "--epochs", "2").err


def test_a_variable_that_is_not_set(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    done = cli("run", "--dry-run", "-e", "NO_SUCH", "-e", "HOME", "train.py")
    assert "-e NO_SUCH: NO_SUCH is not set here" in done.err
    assert "-e HOME" not in done.err


def test_a_password_is_never_a_word_of_a_command_line(cli: Cli, folder: Path) -> None:
    login = ("--registry-user", "me", "--registry-password", "hunter2")
    done = cli("run", "--image", "i", *login, "train.py")
    assert done.code == 2
    assert "not the password itself" in done.err
    assert "hunter2" not in done.err


@pytest.mark.parametrize("verb", ["run train.py", "run hostname", "doctor"])
def test_the_folder_that_one_is_in_is_gone(folder: Path, verb: str) -> None:
    gone = folder / "gone"
    gone.mkdir()
    done = shanty(gone, *verb.split(), preexec_fn=gone.rmdir)
    assert done.returncode == 66
    assert "the current folder no longer exists" in done.stderr


@pytest.mark.parametrize("verb", ["ps", "show last", "logs last", "mpi list", "rm last", "--help"])
def test_what_needs_no_folder_works_in_one_that_is_gone(
    cli: Cli, home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    make_run(home, 1)
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = cli(*verb.split())
    assert done.code == 0, done.err


# ------------------------------------------------------------------------------ the home


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("verb", ["ps", "hosts list", "prune"])
def test_a_home_that_root_has_written(cli: Cli, home: Path, verb: str) -> None:
    home.mkdir(parents=True)
    cli("ps")  # what it imports, another user may not be able to read
    home.chmod(0o700)
    os.seteuid(12345)
    try:
        done = cli(*verb.split())
    finally:
        os.seteuid(0)
    assert done.code == 73
    assert "belongs to root, and you are 12345" in done.err
    assert "point SHANTY_HOME at a folder that can be written" in done.err


def test_no_home_at_all(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("SHANTY_HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    done = cli("ps")
    assert (done.code, done.err.splitlines()[0]) == (
        73,
        "shanty: no folder found to keep runs in",
    )
    assert "set HOME, or SHANTY_HOME" in done.err


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts a small disk")
def test_a_full_disk(folder: Path) -> None:
    disk = folder.parent / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "none", disk], check=False)
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        home = disk / "home"
        make_run(home, 1)
        with (disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="28"):
            while True:
                file.write(bytes(4096))
        assert "20240101-000001-bcdf" in shanty(folder, "ps", "-a", home=home).stdout
        new = shanty(folder, "run", "train.py", home=home)
        assert new.returncode == 73
        assert "No space left on device" in new.stderr
        assert "free some space" in new.stderr
        assert len(list((home / "runs").iterdir())) == 1  # and nothing of the new one
        assert shanty(folder, "rm", "last", home=home).returncode == 0
        assert "no run" in shanty(folder, "ps", "-a", home=home).stdout
    finally:
        subprocess.run(["umount", disk], check=True)


# ------------------------------------------------------------------------------ programs


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["run", "--json", "zzz.py"], 66, "script 'zzz.py' not found"),
        (["run", "--json", "-n", "two", "train.py"], 2, "not a valid integer"),
        (["show", "nothing", "--json"], 66, "run 'nothing' not found"),
        (["ps", "--json", "--state", "odd"], 2, "unknown state 'odd'"),
    ],
)
def test_errors_as_json(cli: Cli, words: Words, code: int, what: str) -> None:
    done = cli(*words)
    assert done.code == code
    error = json.loads(done.out)
    assert (error["event"], error["exit_code"]) == ("error", code)
    assert what in error["what"]
    assert {"why", "fix"} <= set(error)
    assert not done.err


def test_a_script_that_asks_for_json_itself(cli: Cli) -> None:
    assert cli("run", "zzz.py", "--json").err.startswith("shanty: script 'zzz.py' not found")


def test_nobody_reads(folder: Path) -> None:
    command = f"{sys.executable} -m shanty --help | true"
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True)
    assert not done.stderr


@pytest.mark.parametrize("module", ["program", "client", "cli.app", "sdk.submit"])
def test_windows_is_told_of_wsl(module: str) -> None:
    text = f"import sys; sys.platform = 'win32'; import shanty.{module}"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "install WSL" in done.stderr


def test_the_version() -> None:
    import shanty as package

    done = subprocess.run(
        [sys.executable, "-m", "shanty", "--version"], capture_output=True, text=True
    )
    assert done.stdout == f"shanty {package.__version__}\n"
