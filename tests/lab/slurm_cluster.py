"""A real Slurm on the hosts of a lab: slurmctld on the first, slurmd on the others.

All hosts have one home, as by NFS; whoever runs the tests is at a laptop outside of it. Each host
has its own /run, /tmp and /dev/shm, a munged, and /etc/slurm in memory. Partitions:

    main   the default; its jobs preempt those of `low`
    short  no more than a minute
    low    its jobs are preempted: SIGTERM, SIGKILL some seconds later, then queued again
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import LabHosts, lab_in
from site_runs import Site

from runs import wait_for
from shanty.runtime import platform
from shanty.runtime.rundir import RunDir, read_json

KILL_WAIT = 6  # seconds
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
_CONF = """\
ClusterName=lab
SlurmctldHost={login}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
CredType=cred/munge
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/run/slurm/slurmctld.log
SlurmdLogFile=/run/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout={patience}
KillWait={wait}
InactiveLimit=0
MinJobAge=600
JobRequeue=1
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
PartitionName=short Nodes=ALL MaxTime=1 PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE
"""


@dataclass
class Cluster:
    """Slurm in a lab: `login` is its first host, `nodes` are the others."""

    lab: LabHosts
    cpus: int = 2
    patience: int = 10  # seconds after which a node that is silent counts as down
    started: list[str] = field(default_factory=list)

    @property
    def login(self) -> str:
        return self.lab.hosts[0]

    @property
    def nodes(self) -> list[str]:
        return self.lab.hosts[1:]

    def up(self) -> None:
        """Start munged, slurmctld and slurmd on their hosts; comes back when all nodes are idle."""
        key = secrets.token_hex(64)
        known = self.lab.shanty.known(self.lab.name)
        address = {member.name: known.address(member) for member in known.hosts}
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={address[name]} CPUs={self.cpus} RealMemory=4000 "
            "Feature=lab Gres=gpu:1 State=UNKNOWN"
            for name in self.nodes
        )
        conf = _CONF.format(
            login=self.login, address=address[self.login], nodes=nodes, wait=KILL_WAIT,
            patience=self.patience,
        )  # fmt: skip
        for host in self.lab.hosts:
            self.console(
                host,
                "mount -t tmpfs tmpfs /etc/slurm\n"
                f"cat >/etc/slurm/slurm.conf <<'END'\n{conf}END\n"
                "echo 'Name=gpu File=/dev/zero' >/etc/slurm/gres.conf\n"
                "mkdir -p /run/munge /run/slurm/state /run/slurm/spool\n"
                f"(umask 077; printf %s {key} >/run/munge/key)\n"
                "munged --force --key-file=/run/munge/key --socket=/run/munge/munge.socket.2 "
                "--pid-file=/run/munge/pid --log-file=/run/munge/log --seed-file=/run/munge/seed",
            )
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        wait_for(lambda: self.idle() == len(self.nodes), 30, "the nodes do not become idle")

    def start_controller(self) -> None:
        self.console(self.login, "slurmctld </dev/null >/dev/null 2>&1")

    def stop_controller(self) -> None:
        """Kill slurmctld, as a crash would."""
        self.console(self.login, "kill -9 $(cat /run/slurm/slurmctld.pid)")

    def await_saved(self, job: str) -> None:
        """Wait until slurmctld has written down that a job runs, which takes it some seconds."""
        began = f"scontrol -o show job {job} | grep -o 'StartTime=[^ ]*' | cut -d= -f2"
        script = f"[ $(stat -c %Y /run/slurm/state/job_state) -gt $(date -d $({began}) +%s) ]"
        words = ("sh", "-c", script)
        wait_for(lambda: self.lab.exec(self.login, *words).returncode == 0, 60, "nothing saved")

    def start_node(self, node: str) -> None:
        self.console(node, f"slurmd -N {node} </dev/null >/dev/null 2>&1")

    def idle(self) -> int:
        done = self.lab.exec(self.login, "sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D")
        return int(done.stdout.strip() or 0)

    def console(self, host: str, script: str) -> str:
        """What a script of sh writes on the host's console; it has to succeed."""
        done = self.lab.exec(host, "sh", "-euc", script)
        assert done.returncode == 0, f"{host}: {script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def slurm(self, *words: str) -> str:
        """What one of Slurm's tools writes on the login node."""
        return self.console(self.login, shlex.join(words)).strip()

    def jobs(self) -> list[str]:
        """The jobs that are not over."""
        return self.slurm("squeue", "-h", "-o", "%i|%T|%j").splitlines()

    def clear(self) -> None:
        """End all jobs; every node is idle afterwards."""
        self.slurm("scancel", "-u", "root")
        wait_for(lambda: not self.jobs(), 30, "jobs do not end")
        wait_for(lambda: self.idle() == len(self.nodes), 30, "nodes do not become idle")


@contextmanager
def cluster_in(folder: Path, stores: Path, name: str = "lab") -> Iterator[Cluster]:
    """A login node and three nodes that are up, to the end of the block."""
    skip_without_slurm()
    with lab_in(folder, 4, "--shared-home", "--name", name, stores=stores) as lab:
        found = Cluster(lab)
        found.up()
        yield found


@dataclass
class SlurmSite(Site):
    """A laptop, and the cluster to which its runs go."""

    cluster: Cluster = field(kw_only=True)

    @property
    def on(self) -> tuple[str, ...]:
        return ("run", "--on", f"slurm:{self.cluster.login}")

    @property
    def home(self) -> Path:
        """The home that all nodes have, as it is seen from outside."""
        return self.lab.home(self.cluster.login)

    def described(self, run: RunDir) -> dict[str, Any]:
        import json

        done = self("ps", "--all", "--json")
        assert done.returncode == 0, done.stderr
        runs = [json.loads(line) for line in done.stdout.splitlines()]
        (found,) = [one for one in runs if one["id"] == run.id]
        return found

    def await_state(self, run: RunDir, *states: str, patience: float = 60) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def there() -> bool:
            found.update(self.described(run))
            return found["state"] in states or found["ended"] is not None

        wait_for(there, patience, f"neither {states} nor ended")
        assert found["state"] in states, found
        return found

    def submit(self, *words: str) -> RunDir:
        done = self(*self.on, "-d", *words)
        assert done.returncode == 0, done.stderr
        return RunDir(self.lab.shanty.home / "runs" / done.stdout.strip())

    def typed(self, host: str, line: str) -> subprocess.CompletedProcess[str]:
        """A line that is typed on a host, in ~/work there, where `shanty` is this one."""
        shanty = f'shanty() {{ {sys.executable} -m shanty "$@"; }}'
        return self.lab.ssh(host, f"cd ~/work; {shanty}; {line}", timeout=120)

    def job(self, run: RunDir) -> str:
        """The number of a run's job."""
        return str((read_json(run.site) or {})["name"])

    def left(self, run: RunDir) -> list[str]:
        """What is left of a run anywhere: processes, files in /tmp and /dev/shm, its folders."""
        found = [f"process {each.pid}" for each in platform.marked("SHANTY_RUN_ID", run.id)]
        for path in Path("/proc").iterdir():
            if path.name.isdecimal():
                try:
                    words = (path / "cmdline").read_bytes()
                except OSError:
                    continue
                if run.id.encode() in words and b"pytest" not in words:
                    found.append(f"process {path.name} {words[:200]!r}")
        for host in self.cluster.lab.hosts:
            scratch = f"shanty-{run.id[-11:]}"
            done = self.lab.exec(host, "sh", "-c", f"ls -d /tmp/{scratch} /dev/shm/{scratch}")
            found += [f"{host} {line}" for line in done.stdout.split()]
        return found


def skip_without_slurm() -> None:
    """Skip where this machine cannot have a cluster, with the reason."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        pytest.skip(f"Slurm is not installed here: no {', '.join(missing)}")
    if os.getuid():
        pytest.skip("slurmctld, slurmd and munged are started as root")


@contextmanager
def site_in(cluster: Cluster, folder: Path) -> Iterator[SlurmSite]:
    """A laptop with that workspace; afterwards nothing is left of the runs that it has begun."""
    site = SlurmSite(cluster.lab, folder, cluster=cluster)
    runs = cluster.lab.shanty.home / "runs"
    before = {*runs.glob("*")}
    yield site
    cluster.clear()
    for path in {*runs.glob("*")} - before:
        run = RunDir(path)
        wait_for(lambda run=run: not site.left(run), 15, f"left: {site.left(run)}")
