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
def folder(tmp_path: Path) -> Path:
    """A folder with a script, a folder, a notebook."""
    here = tmp_path / "work"
    (here / "package").mkdir(parents=True)
    (here / "train.py").write_text("print('hi')\n")
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
    "a link to nothing": (["run", "link.py"], 66, "a link to gone.py, which is not there"),
    "an address": (["run", "https://a.b/train.py"], 66, "curl -LO https://a.b/train.py"),
    "a quoted home": (["run", "~/train.py"], 66, "write it without quotes"),
    "a number in words": (["run", "-n", "two", "train.py"], 2, "not a valid integer"),
    "no ranks": (["run", "-n", "0", "train.py"], 2, "at least 1"),
    "nothing to run": (["run", "-n", "2"], 2, "Missing argument"),
    "an empty word": (["run", ""], 2, "nothing to run"),
    "an MPI with a slip": (["run", "--mpi", "opnmpi", "train.py"], 2, "did you mean openmpi5?"),
    "a lab that is not up": (["run", "--on", "lab", "train.py"], 69, "shanty lab up makes"),
    "a folder to run in that is not there": (["run", "-C", "x", "train.py"], 2, "no folder"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake(folder: Path, case: str) -> None:
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


def test_options_after_the_script(folder: Path) -> None:
    done = shanty(folder, "run", "--dry-run", "train.py", "-n", "2")
    assert done.returncode == 0
    assert "-n after train.py is an option of the script" in done.stderr
    (folder / "own.py").write_text("import argparse\np.add_argument('-n')\n")
    assert "option of the script" not in shanty(folder, "run", "--dry-run", "own.py", "-n2").stderr
    assert not shanty(folder, "run", "--dry-run", "own.py", "-n", "2").stderr
    assert not shanty(folder, "run", "--dry-run", "train.py", "--epochs", "2").stderr


def test_a_variable_that_is_not_set(folder: Path) -> None:
    done = shanty(folder, "run", "--dry-run", "-e", "NO_SUCH", "-e", "HOME", "train.py")
    assert "-e NO_SUCH: NO_SUCH is not set here" in done.stderr
    assert "-e HOME" not in done.stderr


@pytest.mark.parametrize("verb", ["run train.py", "run hostname", "doctor"])
def test_the_folder_that_one_is_in_is_gone(folder: Path, verb: str) -> None:
    gone = folder / "gone"
    gone.mkdir()
    done = shanty(gone, *verb.split(), preexec_fn=gone.rmdir)
    assert done.returncode == 66
    assert "the folder that you are in is gone" in done.stderr


@pytest.mark.parametrize("verb", ["ps", "show last", "logs last", "mpi list", "rm last", "--help"])
def test_what_needs_no_folder_works_in_one_that_is_gone(folder: Path, verb: str) -> None:
    home, gone = folder.parent / "home", folder / "gone"
    make_run(home, 1)
    gone.mkdir()
    done = shanty(gone, *verb.split(), home=home, preexec_fn=gone.rmdir)
    assert done.returncode == 0, done.stderr


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
        "shanty: there is no folder to keep runs in",
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
        (["run", "--json", "zzz.py"], 66, "there is no script 'zzz.py'"),
        (["run", "--json", "-n", "two", "train.py"], 2, "not a valid integer"),
        (["show", "nothing", "--json"], 66, "there is no run 'nothing'"),
        (["ps", "--json", "--state", "odd"], 2, "there is no state 'odd'"),
    ],
)
def test_errors_as_json(folder: Path, words: Words, code: int, what: str) -> None:
    done = shanty(folder, *words)
    assert done.returncode == code
    error = json.loads(done.stdout)
    assert (error["event"], error["exit_code"]) == ("error", code)
    assert what in error["what"]
    assert {"why", "fix"} <= set(error)
    assert not done.stderr


def test_a_script_that_asks_for_json_itself(folder: Path) -> None:
    assert shanty(folder, "run", "zzz.py", "--json").stderr.startswith("shanty: there is no script")


def test_nobody_reads(folder: Path) -> None:
    command = f"{sys.executable} -m shanty --help | true"
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True)
    assert not done.stderr


def test_windows_is_told_of_wsl() -> None:
    text = "import sys; sys.platform = 'win32'; import shanty.cli"
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
