"""Handing a run to Slurm: whatever goes wrong, no job is left that nobody knows of.

Slurm's tools are scripts here. What is queued is a line of the file `queue`.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from plans import plan_of
from runs import wait_for
from shanty.runtime import platform
from shanty.runtime.errors import PrepareError
from shanty.runtime.rpc.slurm import slurm_submit
from shanty.runtime.rundir import RunDir, read_json
from shanty.runtime.slurm import first_node, submit, tools
from shanty.runtime.spec import JobSpec, Program, Status

SBATCH = """
[ "$1" != --test-only ] || exec env > checked
for word; do case $word in --comment=*) comment=${word#--comment=};; esac; done
env > environment
echo "7|$comment|$word" > queue
"""


class Slurm:
    """Its tools in a folder of their own; each notes that it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"PATH": f"{folder}:/usr/bin:/bin"}
        self.tool("sbatch", SBATCH + "echo 7")
        self.tool("squeue", "cat queue 2>/dev/null || true")
        self.tool("scancel", 'echo "$1" >> cancelled; rm -f queue')
        self.tool("sinfo", "echo 'n1|main|8|32000|2|(null)|idle'")
        self.tool("scontrol", "echo PartitionName=main Default=YES MaxTime=30")

    def tool(self, name: str, text: str) -> None:
        file = self.folder / name
        file.write_text(f"#!/bin/sh\ncd {self.folder}\necho {name} >> called\n{text}\n")
        file.chmod(0o755)

    def called(self, name: str) -> int:
        return (self.folder / "called").read_text().split().count(name)

    @property
    def cancelled(self) -> list[str]:
        file = self.folder / "cancelled"
        return file.read_text().split() if file.exists() else []

    @contextmanager
    def interrupted(self, file: str) -> Iterator[None]:
        """What is done within gets a signal, as from Ctrl-C, once the tools have made `file`."""

        def leave(number: int, _frame: Any) -> None:
            raise SystemExit(128 + number)

        def press() -> None:
            wait_for((self.folder / file).exists, 20)
            os.kill(os.getpid(), signal.SIGUSR2)

        before = signal.signal(signal.SIGUSR2, leave)
        thread = threading.Thread(target=press)
        thread.start()
        try:
            with pytest.raises(SystemExit):
                yield
        finally:
            thread.join()
            signal.signal(signal.SIGUSR2, before)


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    (tmp_path / "slurm").mkdir()
    return Slurm(tmp_path / "slurm")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path / "20261124-192142-s4hn")
    found.create()
    return found


JOB = JobSpec(Program(("x",)), ranks=2)


def queued(run: RunDir, slurm: Slurm, job: JobSpec = JOB) -> str:
    return submit.submit(run, plan_of(2), job, slurm.environ)


def test_a_job_is_queued(run: RunDir, slurm: Slurm) -> None:
    assert queued(run, slurm) == "7"
    assert not slurm.cancelled


def test_a_tool_ends_with_what_waits_for_it(slurm: Slurm) -> None:
    slurm.tool("sinfo", "echo $$ > pid.new; mv pid.new pid; exec sleep 60")
    with slurm.interrupted("pid"):
        tools.ask(["sinfo"], environ=slurm.environ)
    assert platform.process(int((slurm.folder / "pid").read_text())) is None


def test_no_password_is_in_what_slurm_writes_down(run: RunDir, slurm: Slurm) -> None:
    slurm.environ.update(SHANTY_REGISTRY_PASSWORD="secret1", MINE="secret2", OTHER="kept")
    job = JobSpec(JOB.command, ranks=2, registry_password="env:MINE")
    submit.check(job, "openmpi5", slurm.environ)
    queued(run, slurm, job)
    for seen in ("checked", "environment"):
        text = (slurm.folder / seen).read_text()
        assert "secret" not in text
        assert "OTHER=kept" in text


@pytest.mark.parametrize("typed", [None, "--comment=mine"])
def test_an_interrupted_sbatch_leaves_no_job(run: RunDir, slurm: Slurm, typed: str | None) -> None:
    slurm.tool("sbatch", SBATCH + "exec sleep 60")
    with slurm.interrupted("queue"):
        queued(run, slurm, JobSpec(JOB.command, ranks=2, options={"slurm": typed} if typed else {}))
    assert slurm.cancelled == ["7"]


def test_a_job_that_appears_late(run: RunDir, slurm: Slurm) -> None:
    slurm.tool("sbatch", SBATCH + "exec sleep 60")
    slurm.tool("squeue", "[ -e looked ] && cat queue; touch looked")
    with slurm.interrupted("queue"):
        queued(run, slurm)
    assert slurm.cancelled == ["7"]


@pytest.mark.parametrize(
    "end",
    [
        "exec sleep 60",
        "echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1",
    ],
)
def test_an_answer_that_is_lost(
    run: RunDir, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(tools, "ask", partial(tools.ask, patience=1.0))
    slurm.tool("sbatch", SBATCH + end)
    with pytest.raises(PrepareError, match="Slurm does not answer"):
        queued(run, slurm)
    assert slurm.cancelled == ["7"]


def test_an_answer_that_names_no_job(run: RunDir, slurm: Slurm) -> None:
    slurm.tool("sbatch", SBATCH + "echo thanks")
    with pytest.raises(PrepareError, match="did not return its number"):
        queued(run, slurm)
    assert slurm.cancelled == ["7"]


def test_slurmctld_that_is_away_is_said(run: RunDir, slurm: Slurm) -> None:
    away = "echo 'error: Unable to contact slurm controller' >&2; exit 1"
    slurm.tool("sbatch", SBATCH + away)
    slurm.tool("squeue", away)
    with pytest.raises(PrepareError, match="may have taken the job") as error:
        queued(run, slurm)
    assert f"shanty run {run.id}" in error.value.fix


def test_a_refusal_leaves_nothing_to_look_for(run: RunDir, slurm: Slurm) -> None:
    slurm.tool("sbatch", "echo 'sbatch: error: Invalid account' >&2; exit 1")
    with pytest.raises(PrepareError, match="the account"):
        queued(run, slurm)
    assert not slurm.called("squeue")


def test_a_client_that_is_gone_leaves_no_job(
    tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not have heard of the job, and ends the run that it does not know."""
    monkeypatch.setenv("PATH", slurm.environ["PATH"])
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path / "home"))
    ask = {
        "run": "20261124-192142-s4hn", "plan": plan_of(2).to_json(), "job": JOB.to_json(),
        "status": Status.new(2).to_json(), "files": {},
    }  # fmt: skip

    folder = tmp_path / "home/work/20261124-192142-s4hn.0"

    def gone(_said: Any) -> None:
        assert (read_json(folder / "site.json") or {})["name"] == "7"
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        slurm_submit(ask, io.BytesIO(), gone)
    assert slurm.cancelled == ["7"]
    assert not folder.exists()


def test_a_node_without_the_python_says_so(tmp_path: Path) -> None:
    """Whatever the path is, the shell takes it as it is."""
    python = '/home/ann/it\'s "$(touch made)" %s `touch made`/python'
    text = first_node.script(RunDir(tmp_path / "20261124-192142-s4hn"), [python, "boot.py"], "USR1")
    done = subprocess.run(["/bin/sh", "-c", text], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 69
    assert f"no Python found at {python} on " in done.stderr
    assert not (tmp_path / "made").exists()
