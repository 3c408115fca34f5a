"""Where a run goes that names no target, and targets of other packages that do not work here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from command_line import make_run
from shanty.launch.settings import Settings
from shanty.launch.targets.base import Surroundings
from shanty.launch.targets.registry import Targets
from shanty.runtime.errors import NotFoundError, PrepareError, UsageError
from shanty.runtime.rundir import RunDir, write_json
from shanty.runtime.spec import JobSpec, Program, State


@pytest.mark.parametrize("module", ["nowhere", "broken"])
def test_a_package_whose_target_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    info = tmp_path / "package" / "cloud-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cloud\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[shanty.targets]\ncloud = cloud_{module}:make\n")
    (info.parent / "cloud_broken.py").write_text("def make(here):\n    raise OSError('no key')\n")
    monkeypatch.syspath_prepend(str(info.parent))
    targets = Targets(Surroundings(tmp_path, {}, Settings()))
    with pytest.raises(NotFoundError, match="target cloud of the package cloud does not work"):
        targets.named("cloud")
    run = make_run(tmp_path, 1, State.RUNNING)
    write_json(run.site, {"target": "cloud", "name": "7"})
    status = targets.describe([run])[run]
    assert status.state is State.LOST
    assert status.failure is not None and status.failure.why


# In each of these jobs a run would use this machine only, though the job may have others.
JOBS = [
    ("PBS_JOBID=12", "PBS job 12, and its hosts", "PBS_NODEFILE is not set", "--on HOSTS"),
    ("PBS_JOBID=12 PBS_NODEFILE=/nowhere", "PBS job 12", "PBS_NODEFILE=/nowhere cannot be", ""),
    ("PBS_JOBID=12 PBS_NODEFILE={hosts}", "on a, b", "PBS_NODEFILE", '--hostfile "$PBS_NODEFILE"'),
    ("LSB_JOBID=12 LSB_DJOB_HOSTFILE={hosts}", "LSF job 12 on a, b", "LSB_DJOB_HOSTFILE", ""),
    ("LSB_JOBID=12 LSB_HOSTS=a,a,b", "LSF job 12 on a, b", "LSB_HOSTS", "--on a:2,b:1"),
    ("JOB_ID=12 PE_HOSTFILE={hosts}", "Grid Engine job 12 on a, b", "PE_HOSTFILE", "--on a:2,b:4"),
    ("COBALT_JOBID=12 COBALT_NODEFILE={empty}", "Cobalt job 12", "is empty", "--on HOSTS"),
    ("OAR_JOB_ID=12 OAR_NODEFILE={hosts}", "OAR job 12 on a, b", "OAR_NODEFILE", "--hostfile"),
    ("LOADL_STEP_ID=12", "LoadLeveler job 12", "LOADL_HOSTFILE is not set", "--on HOSTS"),
    ("FLUX_JOB_ID=f12 FLUX_JOB_NNODES=2", "Flux job f12", "Flux sets no variable", "--on HOSTS"),
    ("K_MPI_JOB_ROLE=launcher", "launcher of an MPIJob", "/etc/mpi/hostfile", "--on HOSTS"),
    ("SLURM_JOB_ID=12", "Slurm job 12", "SLURM_JOB_NODELIST is not set", "--on HOSTS"),
    ("SLURM_JOB_NODELIST=a", "this Slurm job", "SLURM_JOB_ID is not set", "--on HOSTS"),
    (
        "SLURM_JOB_ID=12 SLURM_JOB_NODELIST=a,b SLURM_JOB_CPUS_PER_NODE=1(x2)",
        "Slurm job 12 cannot be reached", "not on PATH", "--on local",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("variables", "what", "why", "fix"), JOBS)
def test_this_machine_is_not_used_silently_in_a_job_of_a_queue(
    tmp_path: Path, variables: str, what: str, why: str, fix: str
) -> None:
    (tmp_path / "hosts").write_text("a 2 all.q UNDEFINED\nb 4 all.q UNDEFINED\n")
    (tmp_path / "empty").write_text("\n")
    files = {"hosts": tmp_path / "hosts", "empty": tmp_path / "empty"}
    environ = dict(each.split("=", 1) for each in variables.format(**files).split())
    if "LSB_HOSTS" in environ:
        environ["LSB_HOSTS"] = environ["LSB_HOSTS"].replace(",", " ")
    targets = Targets(Surroundings(tmp_path, {"PATH": "/nowhere", **environ}, Settings()))
    job, run = JobSpec(Program(("true",)), workdir=str(tmp_path)), RunDir(tmp_path / "run")
    with pytest.raises(PrepareError) as caught:
        targets.plan(job, run)
    assert what in caught.value.what
    assert why in caught.value.why
    assert fix in caught.value.fix and "--on local" in caught.value.fix


def test_a_step_of_several_tasks_does_not_start_several_runs(tmp_path: Path) -> None:
    environ = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    targets = Targets(Surroundings(tmp_path, environ, Settings()))
    with pytest.raises(UsageError, match="srun started 4 tasks here"):
        targets.plan(JobSpec(Program(("true",))), RunDir(tmp_path / "run"))


@pytest.mark.mpi
@pytest.mark.parametrize("of_node", [False, True])
def test_a_job_whose_only_host_is_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_node: bool
) -> None:
    """In a container Slurm's commands are missing; they are not needed for one node."""
    own = os.uname().nodename
    (tmp_path / "hosts").write_text(f"{own}\n{own}\n")
    queue = {"PBS_JOBID": "12", "PBS_NODEFILE": str(tmp_path / "hosts")}
    slurm = {
        "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": own, "SLURMD_NODENAME": own,
        "SLURM_JOB_CPUS_PER_NODE": "3", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "1",
    }  # fmt: skip
    environ = {**os.environ, **(slurm if of_node else queue), "PATH": "/nowhere"}
    job = JobSpec(Program((sys.executable,)), workdir=str(tmp_path), oversubscribe=True)
    planned = Targets(Surroundings(tmp_path, environ, Settings())).plan(
        job, RunDir(tmp_path / "runs" / "20240101-000001-bcdf")
    )
    assert planned.ranks == 3 if of_node else planned.ranks
