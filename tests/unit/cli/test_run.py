"""Starting runs without MPI: what a command means, and what keeps it from a start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from command_line import Cli
from shanty.launch.targets.base import Planned
from shanty.launch.targets.registry import Targets
from shanty.runtime.errors import UsageError


def test_too_few_cores_may_be_shared_on_request(cli: Cli) -> None:
    assert cli("run", "-n", "5", "--oversubscribe", "--dry-run", "train.py").code == 0


def test_a_dry_run_writes_nothing(cli: Cli, home: Path) -> None:
    done = cli("run", "-n", "2", "--dry-run", "train.py", "--epochs", "3")
    assert done.code == 0
    assert done.out.splitlines()[-1].endswith("train.py --epochs 3")
    assert not home.exists()


def test_a_script_of_tensorflow_1(cli: Cli, home: Path) -> None:
    typed = cli("run", "-n", "1", "--dry-run", "--tf1", "train.py")
    assert "SHANTY_TF1=1" in typed.out
    Path("shanty.toml").write_text("[run]\ntf1 = true\n")
    assert "SHANTY_TF1=1" in cli("run", "-n", "1", "--dry-run", "train.py").out
    Path("shanty.toml").write_text("[run]\ntf1 = false\n")
    assert "SHANTY_TF1" not in cli("run", "-n", "1", "--dry-run", "train.py").out


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["-n", "2"],
        ["-n2"],
        ["--ranks=2"],
        ["--ranks", "2"],
        ["-np", "2"],
        ["-q"],
        ["--name", "x", "--tag", "a", "-e", "A=1", "--oversubscribe"],
    ],
    ids=" ".join,
)
def test_a_module_and_the_options_after_it(cli: Cli, options: list[str]) -> None:
    words = ["-m", "pack.train", "-n", "7", "--frobnicate", "-m", "x"]
    done = cli("run", "--dry-run", *options, *words)
    assert done.code == 0, done.err
    assert done.out.rstrip().endswith("-m pack.train -n 7 --frobnicate -m x")


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (["train.py", "-n", "7", "--quiet", "--", "-x"], "train.py -n 7 --quiet -- -x"),
        (["--", "train.py", "-n", "7"], "train.py -n 7"),
        (["sh", "-c", "echo $RANK"], "sh -c 'echo $RANK'"),
        (["--", "mpirun", "-np", "2", "train.py"], "\nmpirun -np 2 train.py"),
        (["mpiexec.hydra", "-n", "2", "x"], "\nmpiexec.hydra -n 2 x"),
        (["mpirun -np 2 python train.py"], "\nsh -c 'mpirun -np 2 python train.py'"),
        (["--raw", "./all.sh", "3"], "\n./all.sh 3"),
    ],
)
def test_what_a_command_means(cli: Cli, words: list[str], end: str) -> None:
    done = cli("run", "--dry-run", *words)
    assert done.code == 0, done.err
    assert done.out.rstrip().endswith(end)


@pytest.mark.parametrize("kind", ["a file", "nowhere"])
def test_a_home_that_cannot_be_written(
    cli: Cli, home: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "a file":
        home.write_text("")
    else:
        if not Path("/proc/self").exists():
            pytest.skip("there is no /proc")
        monkeypatch.setenv("SHANTY_HOME", "/proc/nonexistent")
    done = cli("run", "-n", "2", "train.py")
    assert done.code == 73, done.err
    assert "SHANTY_HOME" in done.err
    assert "Traceback" not in done.err


def test_agents_get_no_password_of_a_registry(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started inherits the environment."""
    monkeypatch.setenv("SHANTY_REGISTRY_PASSWORD", "secret1")
    monkeypatch.setenv("MINE", "secret2")
    monkeypatch.setenv("OTHER", "kept")
    inherited: dict[str, str] = {}

    def plan(*_: object) -> Planned:
        inherited.update(os.environ)
        raise UsageError("that will do")

    monkeypatch.setattr(Targets, "plan", plan)
    words = ["--image", "x", "--registry-user", "ann", "--registry-password", "env:MINE"]
    assert cli("run", *words, "train.py").code == 2
    assert inherited["OTHER"] == "kept"
    assert not {"secret1", "secret2"} & {*inherited.values()}
