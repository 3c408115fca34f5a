"""Lines for torchrun and the like as the command of `shanty run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shanty.cli import process_lines
from shanty.cli.run import process_line
from shanty.client import jobs, options
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.lines.command import LOCAL_RANK
from shanty.runtime.spec import JobSpec, Module, Program, Script

NOTHING: dict[str, Any] = {**dict.fromkeys(options.OPTIONS), "env": {}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(process_lines, "usable_cores", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "x.py").touch()
    (tmp_path / "hosts").write_text("10.0.0.2 slots=2\n10.0.0.3 slots=2\n")
    return tmp_path


def job(folder: Path, line: str, **given: Any) -> JobSpec:
    typed = process_line(tuple(line.split()), folder, {})
    assert typed is not None
    command, values = process_lines.as_run(typed, folder, {**NOTHING, **given}, {})
    kept = {key: value for key, value in values.items() if key in JobSpec.__dataclass_fields__}
    return jobs.job_typed(command, folder, kept)


@pytest.mark.parametrize(
    ("line", "command", "ranks"),
    [
        ("torchrun --nproc-per-node 2 x.py -v", Script("x.py", ("-v",)), 2),
        ("-m torch.distributed.run --nproc-per-node 2 -m x", Module("x"), 2),
        ("torchrun --no-python ./a.out 1", Program(("./a.out", "1")), 1),
        (
            "deepspeed --num_gpus 2 x.py --deepspeed",
            Script("x.py", (f"--local_rank={LOCAL_RANK}", "--deepspeed")),
            2,
        ),
        ("accelerate launch --num_processes 2 x.py", Script("x.py"), 2),
    ],
)
def test_what_a_line_becomes(folder: Path, line: str, command: object, ranks: int) -> None:
    found = job(folder, line)
    assert (found.command, found.ranks, found.ranks_per_host) == (command, ranks, None)
    assert not found.oversubscribe
    assert job(folder, line, ranks=ranks) == found


def test_other_lines_are_left_alone(folder: Path) -> None:
    for line in ("x.py", "-m x", "mpirun -np 2 torchrun x.py", "accelerate env", "python x.py"):
        assert process_line(tuple(line.split()), folder, {}) is None


def test_any_number_of_processes_on_this_machine(folder: Path) -> None:
    assert job(folder, "torchrun --nproc-per-node 8 x.py").oversubscribe


def test_on_hosts(folder: Path) -> None:
    line = "torchrun --nnodes 2 --nproc-per-node 4 --rdzv-endpoint a:1 x.py"
    found = job(folder, line, on="a,b")
    assert (found.ranks, found.ranks_per_host, found.oversubscribe) == (8, 4, False)
    found = job(folder, "torchrun --nproc-per-node 4 x.py", on="a,b")
    assert (found.ranks, found.ranks_per_host) == (None, 4)
    found = job(folder, "torchrun --nproc-per-node cpu x.py", on="a,b")
    assert (found.ranks, found.ranks_per_host) == (None, None)
    found = job(folder, "torchrun x.py", on="a,b", ranks_per_host=3)
    assert (found.ranks, found.ranks_per_host) == (None, 3)
    found = job(folder, "torchrun --nnodes 2 x.py", on="a,b", ranks=6)
    assert (found.ranks, found.ranks_per_host) == (6, 3)
    with pytest.raises(UsageError, match=r"--ranks-per-host 3 contradicts --nproc-per-node 4"):
        job(folder, line, on="a,b", ranks_per_host=3)
    with pytest.raises(UsageError, match=r"a multiple of 4"):
        job(folder, "torchrun --nproc-per-node 4 x.py", on="a,b", ranks=6)


def test_a_host_file_of_deepspeed(folder: Path) -> None:
    found = job(folder, "deepspeed --hostfile hosts --num_nodes 2 --num_gpus 2 x.py")
    assert found.hostfile == str(folder / "hosts")
    assert (found.ranks, found.ranks_per_host) == (4, 2)
    found = job(folder, "deepspeed --hostfile hosts x.py")
    assert (found.ranks, found.ranks_per_host) == (None, None)
    found = job(folder, "deepspeed --hostfile hosts --num_gpus 1 x.py", on="a,b")
    assert (found.hostfile, found.on) == (None, "a,b")


def test_the_workspaces_defaults(folder: Path) -> None:
    """What the line says wins over them; they fill in what it leaves open."""
    (folder / "shanty.toml").write_text('[run]\nranks = 2\nenv = {A = "1"}\n')
    assert job(folder, "torchrun --nproc-per-node 1 x.py").ranks == 1
    assert job(folder, "torchrun x.py").ranks == 2
    found = job(
        folder, "accelerate launch --cpu --num_processes 1 x.py", env={"KMP_BLOCKTIME": "9"}
    )
    assert found.env["KMP_BLOCKTIME"] == "9"
    assert (found.env["A"], found.env["ACCELERATE_USE_CPU"]) == ("1", "True")


def test_the_interpreter_of_the_line(folder: Path) -> None:
    python = folder / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    for line in (f"{python} -m torch.distributed.run x.py", f"{python.parent}/torchrun x.py"):
        assert job(folder, line).python == str(python)
    assert job(folder, "env/bin/torchrun x.py").python == str(python)
    assert job(folder, "env/bin/torchrun x.py", python="python3").python == "python3"
    assert job(folder, "python3 -m torch.distributed.run x.py").python is None


def test_the_script_has_to_be_there(folder: Path) -> None:
    with pytest.raises(NotFoundError, match=r"script 'y\.py' not found"):
        job(folder, "torchrun y.py")
