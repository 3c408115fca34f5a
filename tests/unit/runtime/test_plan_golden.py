"""What `shanty run --dry-run` prints, for each MPI and each kind of command, word for word.

`UPDATE_GOLDEN=1 pytest tests/unit/runtime/test_plan_golden.py` writes the files in golden/ anew;
read the difference before it is kept.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import shanty.runtime
from shanty.launch.network.topology import Interface, Rail, Route
from shanty.launch.provision.node import HostPlace, Ready
from shanty.launch.provision.provision import Bring
from shanty.launch.provision.session import shared_out
from shanty.launch.settings import Settings
from shanty.launch.targets import ssh
from shanty.launch.targets.base import Surroundings
from shanty.launch.targets.local import Facts, LocalPlan, LocalTarget
from shanty.launch.targets.ssh import SshPlan, Surveyed
from shanty.launch.transport import keys
from shanty.runtime import platform
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec, Module, Raw, Script

GOLDEN = Path(__file__).parent / "golden"
HOME = Path("/home/ann/.shanty")
RUN = RunDir(HOME / "runs" / "20260102-030405-abcd")
ENVIRON = {"HOME": "/home/ann", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
MPIS = {
    "openmpi5": ("5.0.11", "mpirun", "libmpi.so.40", "wheel"),
    "openmpi4": ("4.1.8", "mpirun", "libmpi.so.40", "shanty"),
    "mpich": ("5.0.2", "mpiexec.hydra", "libmpi.so.12", "shanty"),
    "intel": ("2021.18.1", "mpiexec.hydra", "libmpi.so.12", "shanty"),
}
TUTORIAL = (
    "mpirun --allow-run-as-root -np 3 --hostfile $HOSTFILE -bind-to none -map-by slot "
    "-mca pml ob1 -mca btl ^openib python main.py"
)
SCRIPT = JobSpec(Script("train.py", ("--epochs", "3")), ranks=2, workdir="/home/ann/digits")
JOBS = {
    "script": SCRIPT,
    "module": replace(
        SCRIPT, command=Module("pack.train", ("-v", "two words")), env={"GREETING": "good day"}
    ),
    "raw": replace(SCRIPT, command=Raw(tuple(TUTORIAL.split())), ranks=None),
    "cpus-per-rank": replace(SCRIPT, cpus_per_rank=2),
    "oversubscribe": replace(SCRIPT, ranks=12, oversubscribe=True),
}


def facts(name: str) -> Facts:
    version, launcher, library, origin = MPIS[name]
    prefix = f"/mpi/{name}"
    installation = Installation(
        name, version, prefix, f"{prefix}/bin/{launcher}", f"{prefix}/lib/{library}", origin
    )
    return Facts(8, installation, "/home/ann/digits/.venv/bin/python")


def planned(name: str, job: JobSpec) -> LocalPlan:
    return LocalTarget(Surroundings(HOME, ENVIRON, Settings())).plan_on(facts(name), job, RUN)


def rendered(name: str, job: JobSpec) -> str:
    """The plan as text, the same on every machine."""
    text = planned(name, job).render()
    runtime = str(Path(shanty.runtime.__file__).parent)
    for real, placeholder in ((runtime, "RUNTIME"), (sys.executable, "SHANTYS_PYTHON")):
        text = text.replace(shlex.quote(real), placeholder).replace(real, placeholder)
    return text + "\n"


@pytest.fixture(autouse=True)
def any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is one with /dev/shm, the user is no root."""
    monkeypatch.setattr(platform, "SHARED_MEMORY", "/dev/shm")
    monkeypatch.setattr(platform, "scratch_root", lambda: "/tmp/shanty-1000")
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize("name", MPIS)
def test_a_dry_run(name: str, kind: str) -> None:
    text, file = rendered(name, JOBS[kind]), GOLDEN / f"{name}-{kind}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()
    # A shell accepts it, and each word comes out as it was meant.
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    argv = planned(name, JOBS[kind]).plan.attempt.argv
    assert len(shlex.split(text.splitlines()[-1])) == len(argv)


# The second host calls the same network by another name.
ROUTE = Route(
    (
        Rail(
            {
                "host0": Interface("tb0", "10.1.0.2", 24),
                "host1": Interface("enp3s0", "10.1.0.3", 24),
            }
        ),
    )
)


def on_hosts(name: str) -> str:
    """A plan for two hosts with different homes, and what their agents are told."""
    survey = {"system": "Linux", "cores": 8, "path": "/usr/bin:/bin", "fabrics": []}
    hosts = []
    for index, home in enumerate(("/home/ann", "/data/users/ann")):
        client = SimpleNamespace(
            home=f"{home}/.shanty",
            root=f"{home}/.shanty/store/bundle/1234",
            python="/usr/bin/python3",
        )
        address = f"10.0.0.{index + 2}"
        way = {"kind": "ssh", "user": "ann", "port": 22, "alias": keys.alias(index)}
        place = HostPlace(f"host{index}", address, 2, 8, (address,), way)
        hosts.append(Surveyed(f"host{index}", client, survey, address, place, "10.0.0.2"))
    mpi = facts(name).installation
    found = ssh.Facts(tuple(hosts), mpi, Bring(mpi, facts(name).python), ROUTE)
    job = replace(SCRIPT, ranks=3, env={"GREETING": "good day"}, on="host0,host1")
    made = found.plan(job, RUN, Settings(), found.unprepared(job))
    plan = SshPlan(job, RUN, None, found, made)
    ready = [
        Ready(
            replace(
                found.installation, prefix=mpi, launcher=f"{mpi}/bin/mpirun", library=f"{mpi}/lib/m"
            ),
            f"{client.home}/store/env/9/bin/python",
            "",
            f"{client.home}/workspaces/77/tree",
            client.python,
            client.root,
            survey["path"],
        )
        for host in hosts
        for client in (host.client,)
        for mpi in (f"{client.home}/store/mpi/5678",)
    ]
    prepared = found.plan(job, RUN, Settings(), ready)
    values = {**prepared.to_json(), "created": 0}
    return plan.render() + "\n" + json.dumps(values, indent=1) + "\n"


@pytest.mark.parametrize("name", MPIS)
def test_a_plan_for_several_hosts(name: str) -> None:
    text, file = on_hosts(name), GOLDEN / f"{name}-hosts.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_no_golden_file_is_left_over() -> None:
    wanted = {f"{name}-{kind}.txt" for name in MPIS for kind in (*JOBS, "hosts")}
    assert {path.name for path in GOLDEN.iterdir()} == wanted


@pytest.mark.parametrize(
    ("hosts", "own"),
    [
        ({"a": ("k", 2, 2), "b": ("k", 2, 2), "c": ("k", 2, 2)}, {"a": 1, "b": 1, "c": 1}),
        ({"a": ("k", 8, 8), "b": ("l", 4, 4)}, {"a": 8, "b": 4}),
        ({"a": ("k", 4, 16), "b": ("k", 8, 16)}, {"a": 4, "b": 8}),  # each has some of its own
        ({"a": ("k", 16, 16), "b": ("k", 16, 16)}, {"a": 8, "b": 8}),
        ({"a": ("", 2, 2), "b": ("", 2, 2)}, {"a": 2, "b": 2}),  # a kernel that does not say
    ],
)
def test_hosts_under_one_kernel_share_its_cores(
    hosts: dict[str, tuple[str, int, int]], own: dict[str, int]
) -> None:
    surveys = {
        name: {"boot": boot, "cores": cores, "machine_cores": machine}
        for name, (boot, cores, machine) in hosts.items()
    }
    assert shared_out(surveys) == own
