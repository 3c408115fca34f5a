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
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from command_line import make_run
from shanty.cli import completion
from shanty.launch import inventory
from shanty.launch.machines import types
from shanty.program import app
from shanty.runtime.rundir import write_json
from shanty.runtime.spec import JobSpec, Module, State

Shell = Callable[[Sequence[str]], list[list[str]]]
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


def bash(lines: Sequence[str]) -> list[list[str]]:
    """What bash offers: its function is called as the key would, in an interactive shell."""
    words = """
        eval "$(shanty completion bash)"
        compopt() { options="$options $*"; }
        try() {
            options= COMPREPLY=() COMP_LINE=$1 COMP_POINT=${#1}
            shift
            COMP_WORDS=("$@")
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            current=${COMP_WORDS[COMP_CWORD]}
            [ "$current" = "=" ] && current=
            _shanty_completion shanty "$current" "${COMP_WORDS[COMP_CWORD-1]}"
            case "$options" in
                *default*) COMPREPLY+=($(compgen -f -- "$current")) ;;
                *dirnames*) COMPREPLY+=($(compgen -d -- "$current")) ;;
            esac
            printf '%s\\n' "${COMPREPLY[@]}" "== end"
        }
    """
    for line in lines:
        words += f"\ntry {' '.join(map(_quoted, [line, *_bash_words(line)]))}"
    done = subprocess.run(
        ["bash", "--norc", "-i", "-c", words], capture_output=True, text=True, timeout=100
    )
    return [each.split() for each in done.stdout.split("== end\n")[:-1]]


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _bash_words(line: str) -> list[str]:
    """The words of a line as bash takes them apart for completion."""
    return re.findall(r"=|[^\s=]+", line) + ([""] if line.endswith((" ", "=")) else [])


def fish(lines: Sequence[str]) -> list[list[str]]:
    words = "shanty completion fish | source"
    for line in lines:
        words += f"; complete -C {_quoted(line)}; echo == end"
    done = subprocess.run(
        ["fish", "--no-config", "-c", words], capture_output=True, text=True, timeout=100
    )
    return [
        [word.partition("\t")[0] for word in each.splitlines()]
        for each in done.stdout.split("== end\n")[:-1]
    ]


def zsh(lines: Sequence[str]) -> list[list[str]]:
    """What a zsh lists, in a terminal, when a key asks for what may stand behind the line."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="dumb", PS1="ready> ")
        os.execvp("zsh", ["zsh", "-f", "-i"])
    found = []
    try:
        for command in (
            "stty cols 200 rows 60; unsetopt prompt_cr prompt_sp",
            'eval "$(shanty completion zsh)"; bindkey "^D" list-choices',
        ):
            read_until(terminal, "ready> ")
            os.write(terminal, f"{command}\n".encode())
        for line in lines:
            read_until(terminal, "ready> ")
            os.write(terminal, line.encode() + b"\x04")
            shown = read_until(terminal, f"ready> {line}").partition("\n")[2]
            rows = [each.partition(" -- ")[0] for each in shown.splitlines()[:-1]]
            found.append([word for row in rows for word in row.split()])
            os.write(terminal, b"\x15\n")  # away with the line
        return found
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


def runs_of(home: Path) -> list[str]:
    return sorted((path.name for path in (home / "runs").iterdir()), reverse=True)


@pytest.mark.parametrize("shell", [bash, zsh, fish], ids=lambda shell: shell.__name__)
def test_what_a_shell_offers(place: Path, home: Path, shell: Shell) -> None:
    """All lines in one process of the shell."""
    if shutil.which(shell.__name__) is None:
        pytest.skip(f"there is no {shell.__name__} here")
    newest, on, oldest = runs_of(home)
    wanted = {
        "run tra": ["train.py", "trace.txt", "traces"],
        "run -n 2 --mpi ": ["intel", "mpich", "openmpi", "openmpi4", "openmpi5"],
        "run --on des": ["desk", "desert"],
        "net tower,des": ["tower,desk", "tower,desert"],
        "logs ": [newest, "noon", on, "night", oldest, "last"],
        "stop ": [on, "last", "noon"],
    }
    behind_a_script = ("run train.py --data tra", "run -n 2 train.py -n tra", "run -m pkg tra")
    lines = [*wanted, *behind_a_script, "rer"]
    offered = dict(zip(lines, shell([f"shanty {line}" for line in lines]), strict=True))
    assert offered.pop("rer") in (["rerun"], [])  # zsh and fish complete it at once
    for line in behind_a_script:  # there are files
        assert "trace.txt" in offered.pop(line), line
    found = {line: sorted(word.rstrip("/") for word in words) for line, words in offered.items()}
    assert found == {line: sorted(words) for line, words in wanted.items()}


# ------------------------------------------------- without a shell: click does the same for all

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
    "mpi rm ": ["mpich"],
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


def here(line: str) -> list[str]:
    """What bash would get for the last word of a line, which may be empty."""
    *words, last = line.split(" ")
    found = []
    for item in completion.SHELLS["bash"](app, {}, "shanty", "").get_completions(words, last):
        names = [path for path in Path().glob(f"{last}*") if item.type != "dir" or path.is_dir()]
        found += [item.value] if item.type == "plain" else map(str, names)
    return found


def test_lines(place: Path, home: Path) -> None:
    newest, on, oldest = runs_of(home)
    parted = [line for line in LINES if "=" in line]  # into several words, by bash
    found = dict(zip(parted, bash([f"shanty {line}" for line in parted]), strict=True))
    for line, words in LINES.items():
        wanted = [word.format(newest=newest, on=on, oldest=oldest) for word in words]
        assert (found[line] if line in found else here(line)) == wanted, line


def test_damage_completes_nothing_and_says_nothing(place: Path, home: Path) -> None:
    for file in ("hosts/desk.json", "config.toml"):
        (home / file).write_text("{")
    for run in (home / "runs").iterdir():
        (run / "job.json").write_text("[]")
        (run / "status.json").write_text("{")
    hosts, runs = bash(["shanty run --on des", "shanty show "])
    assert hosts == ["desk", "desert"]
    assert len(runs) == 4
    (place.parent / ".ssh" / "config").write_bytes(b"Host \xff\xfe\n")
    assert bash(["shanty run --on desk"]) == [["desk"]]


def test_little_is_loaded(place: Path) -> None:
    code = (
        "import sys\nfrom shanty.program import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print(*sys.modules)"
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
