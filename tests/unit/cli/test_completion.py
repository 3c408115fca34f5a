"""What the key for completion gives, in real shells: bash, zsh and fish."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import make_run
from shanty.launch.cluster import inventory
from shanty.launch.machines import types
from shanty.runtime.rundir import write_json
from shanty.runtime.spec import JobSpec, Module, State

Complete = Callable[[str], list[str]]
NOT_NEEDED = {"sqlite3", "asyncio", "subprocess", "socket", "tomllib", "shanty.launch.index"}


@pytest.fixture
def place(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files, runs, groups, an MPI, a configuration of ssh; `shanty` is on PATH."""
    work = tmp_path / "work"
    for name in ("train.py", "trace.txt", "other.py", "hostfile"):
        (work / name).touch()
    (work / "traces").mkdir()
    make_run(home, 1, State.SUCCEEDED, name="night")
    run = make_run(home, 2, State.RUNNING, name="noon")
    command = Module("pkg.train", ("--lr", "1"))
    job = JobSpec(command, workdir="/home/ann/digits", name="noon", tags=("digits",))
    write_json(run.job, job.to_json())
    make_run(home, 3, State.FAILED)
    inventory.save(inventory.extended("desk", [inventory.parse_host("tower:4")], home), home)
    (home / "mpi" / "mpich").mkdir(parents=True)
    types.save(types.MachineType("big", "local"), home)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host desert *.lan\n  User ann\nHost !oasis\n")
    bin = tmp_path / "bin"
    bin.mkdir()
    program = bin / "shanty"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m shanty "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    return work


def bash(line: str) -> list[str]:
    """What bash offers: its function is called as the key would, in an interactive shell."""
    words = f"""
        eval "$(shanty completion bash)"
        COMP_LINE={_quoted(line)}; COMP_POINT=${{#COMP_LINE}}
        compopt() {{ options="$options $*"; }}
        COMP_WORDS=({" ".join(map(_quoted, _bash_words(line)))})
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        current=${{COMP_WORDS[COMP_CWORD]}}
        [ "$current" = "=" ] && current=
        _shanty_completion shanty "$current" "${{COMP_WORDS[COMP_CWORD-1]}}"
        case "$options" in
            *default*) COMPREPLY+=($(compgen -f -- "$current")) ;;
            *dirnames*) COMPREPLY+=($(compgen -d -- "$current")) ;;
        esac
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-i", "-c", words], capture_output=True, text=True, timeout=60
    )
    return done.stdout.split()


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _bash_words(line: str) -> list[str]:
    """The words of a line as bash takes them apart for completion."""
    return re.findall(r"=|[^\s=]+", line) + ([""] if line.endswith((" ", "=")) else [])


def fish(line: str) -> list[str]:
    words = f"shanty completion fish | source; complete -C {_quoted(line)}"
    done = subprocess.run(
        ["fish", "--no-config", "-c", words], capture_output=True, text=True, timeout=60
    )
    return [each.partition("\t")[0] for each in done.stdout.splitlines()]


def zsh(line: str) -> list[str]:
    """What a zsh lists, in a terminal, when a key asks for what may stand behind the line."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="dumb", PS1="ready> ")
        os.execvp("zsh", ["zsh", "-f", "-i"])
    try:
        for command in (
            "stty cols 200 rows 60; unsetopt prompt_cr prompt_sp",
            'eval "$(shanty completion zsh)"; bindkey "^D" list-choices',
        ):
            read_until(terminal, "ready> ")
            os.write(terminal, f"{command}\n".encode())
        read_until(terminal, "ready> ")
        os.write(terminal, line.encode() + b"\x04")
        shown = read_until(terminal, f"ready> {line}").partition("\n")[2]
        return [
            word for each in shown.splitlines()[:-1] for word in each.partition(" -- ")[0].split()
        ]
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


def read_until(terminal: int, text: str) -> str:
    """What the terminal shows until `text` is in it."""
    seen, deadline = "", time.monotonic() + 60
    while text not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace")
    return seen


@pytest.fixture(params=[bash, zsh, fish], ids=lambda shell: shell.__name__)
def complete(request: pytest.FixtureRequest, place: Path) -> Complete:
    shell: Complete = request.param
    if shutil.which(shell.__name__) is None:
        pytest.skip(f"there is no {shell.__name__} here")
    return shell


def runs_of(home: Path) -> list[str]:
    return sorted((path.name for path in (home / "runs").iterdir()), reverse=True)


def test_what_can_be_run(complete: Complete) -> None:
    assert {each.rstrip("/") for each in complete("shanty run tra")} == {
        *("train.py", "trace.txt", "traces")
    }
    assert complete("shanty rer") in (["rerun"], [])  # zsh and fish complete it at once


def test_behind_a_script_there_are_files(complete: Complete) -> None:
    for line in ("run train.py --data tra", "run -n 2 train.py -n tra", "run -m pkg tra"):
        assert "trace.txt" in complete(f"shanty {line}"), line


def test_mpis(complete: Complete) -> None:
    found = complete("shanty run -n 2 --mpi ")
    assert sorted(found) == ["intel", "mpich", "openmpi", "openmpi4", "openmpi5"]


def test_hosts_and_groups(complete: Complete) -> None:
    assert set(complete("shanty run --on des")) == {"desk", "desert"}
    assert set(complete("shanty net tower,des")) == {"tower,desk", "tower,desert"}


def test_runs(complete: Complete, home: Path) -> None:
    newest, on, oldest = runs_of(home)
    assert sorted(complete("shanty logs ")) == sorted([newest, "noon", on, "night", oldest, "last"])
    assert sorted(complete("shanty stop ")) == [on, "last", "noon"]


# ------------------------------------------------------ in one shell: click does the same for all

LINES = {
    "run --frob": [],
    "run --mpi=mp": ["mpich"],
    "run --mpi=": ["openmpi", "openmpi5", "openmpi4", "mpich", "intel"],
    "run --on-stall ": ["warn", "stop"],
    "run --on tower,ann@des": ["tower,ann@desk", "tower,ann@desert"],
    "run --hostfile hos": ["hostfile"],
    "run --workdir tra": ["traces"],
    "run -- mpirun -np 2 oth": ["other.py"],
    "horovodrun -np 2 oth": ["other.py"],
    "dmlc-submit -n 2 oth": ["other.py"],
    "run --tag di": ["digits"],
    "logs ": ["{newest}", "noon", "{on}", "night", "{oldest}", "last"],
    "mpi remove ": ["mpich"],
    "mpi install int": ["intel"],
    "hosts show ": ["desk"],
    "stop ": ["noon", "{on}", "last"],
    "rm night ": ["{newest}", "{oldest}", "last"],
    "ps --state fa": ["failed"],
    "ps --name n": ["night", "noon"],
    "completion ": ["bash", "zsh", "fish"],
    "experiments stop --id n": ["noon"],
    "experiments delete n": ["night"],
    "experiments details --id=n": ["noon", "night"],
    "experiments create multinode --workerMachineType b": ["big"],
    "experiments metrics get --metric gpuU": ["gpuUtilization"],
    "create job single --instance-type ": ["big"],
    "show frob": [],
}


@pytest.mark.parametrize("line", LINES)
def test_lines(place: Path, home: Path, line: str) -> None:
    newest, on, oldest = runs_of(home)
    wanted = [word.format(newest=newest, on=on, oldest=oldest) for word in LINES[line]]
    assert bash(f"shanty {line}") == wanted


def test_damage_completes_nothing_and_says_nothing(place: Path, home: Path) -> None:
    for file in ("hosts/desk.json", "config.toml"):
        (home / file).write_text("{")
    for run in (home / "runs").iterdir():
        (run / "job.json").write_text("[]")
        (run / "status.json").write_text("{")
    assert bash("shanty run --on des") == ["desk", "desert"]
    assert len(bash("shanty show ")) == 4
    (place.parent / ".ssh" / "config").write_bytes(b"Host \xff\xfe\n")
    assert bash("shanty run --on desk") == ["desk"]


def test_little_is_loaded(place: Path) -> None:
    code = (
        "import sys\nfrom shanty.cli import app\n"
        "try:\n    app.main()\nexcept SystemExit:\n    print(*sys.modules)"
    )
    for words in ("run tra", "logs n", "run --mpi m"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "_SHANTY_COMPLETE": "bash_complete",
                "COMP_WORDS": f"shanty {words}",
                "COMP_CWORD": str(len(words.split())),
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert not NOT_NEEDED & set(done.stdout.split())
