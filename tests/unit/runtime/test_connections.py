"""Commands on other hosts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from plans import node
from shanty.runtime.connections import Answer, command, quoted, run_each
from shanty.runtime.slurm import allocation


def test_a_path_with_spaces_as_an_option_of_ssh(tmp_path: Path) -> None:
    key = tmp_path / "my home" / 'k"e\\y'
    argv = ["ssh", "-G", "-F", "none", "-o", f"IdentityFile={quoted(str(key))}", "10.0.0.1"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert f"identityfile {key}" in done.stdout.splitlines()


def test_a_command_whose_child_keeps_its_output_open_is_given_up() -> None:
    answers = run_each([["sh", "-c", "sleep 600; true"], ["echo", "here"]], 0.5)
    assert answers == [Answer(None, "", ""), Answer(0, "here\n", "")]


def test_a_step_takes_nothing_from_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what leads srun to the job; the variables are those where the step is started."""
    for name in ("SLURM_GPUS_PER_TASK", "SLURM_CONF", "SRUN_FUTURE", "SLURM_JOB_ID", "OTHER"):
        monkeypatch.setenv(name, "7")
    other = node(number=1)._replace(connection=allocation.connection("n2", 8, "7", ["--overlap"]))
    argv = command(other, node(number=0), ["true"])
    unset = {argv[at + 1] for at, word in enumerate(argv) if word == "-u"}
    assert unset == {"SLURM_GPUS_PER_TASK", "SRUN_FUTURE"}
    assert {"--jobid=7", "--overlap", "-c8", "--mpi=none", "true"} <= {*argv}
