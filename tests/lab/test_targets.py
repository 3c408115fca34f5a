"""What every target does alike: this machine, hosts by ssh, Slurm, and two of the tests' own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import LabHome, LabHosts
from lab_engines import IMAGE_WORDS, containers_on, podman_on
from site_runs import UP, Site
from slurm_cluster import Cluster, SlurmSite, cluster_in, site_in

import toy_target
from engines import long_only
from rotation import today, variant
from runs import LONG, vanish, wait_for
from shanty.runtime import cleanup, platform
from shanty.runtime.plan import read_plan
from shanty.runtime.rundir import RunDir, read_json, write_json

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.sampled(2)]

LOST_AFTER = 3600.0  # seconds: longer than any run may be without agents
RANKS = 4
HELLO = """
import os
from mpi4py import MPI
print("of", MPI.COMM_WORLD.allreduce(1), os.uname().nodename)
"""


@dataclass
class Place:
    """A target under test: `words` lead to it, `hosts` are those that four ranks get there."""

    site: Site
    words: list[str]
    hosts: list[str]
    late: bool = False
    environ: dict[str, str] = field(default_factory=dict)
    reason: str = "waits for a host: all are taken"
    queue: str = "procs"  # the folder of the queue that gives hosts late

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.start(*words, done=True)

    def start(self, *words: str, done: bool = False) -> Any:
        process = self.site.start(*words, env={**self.site.lab.shanty.environ, **self.environ})
        if not done:
            return process
        out, err = process.communicate(timeout=90)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def submit(self, *command: str) -> RunDir:
        done = self("run", "-d", *self.words, *command)
        assert done.returncode == 0, done.stderr
        return RunDir(self.site.lab.shanty.home / "runs" / done.stdout.strip())

    def described(self, run: RunDir) -> dict[str, Any]:
        done = self("ps", "--all", "--json")
        assert done.returncode == 0, done.stderr
        runs = [json.loads(line) for line in done.stdout.splitlines()]
        (found,) = [one for one in runs if one["id"] == run.id]
        return found

    def grant(self, run: RunDir) -> None:
        """Let the run have its hosts."""
        if self.late:
            (self.entry(run) / "granted").touch()

    def entry(self, run: RunDir) -> Path:
        return self.site.lab.shanty.home / self.queue / run.id

    def is_queued(self, run: RunDir) -> bool:
        return self.entry(run).exists()

    def without_host(self, run: RunDir, host: str) -> AbstractContextManager[None]:
        """A host of the run is gone."""
        if not self.late:
            return self.cut(host)
        os.kill(int((self.entry(run) / f"{host}.pid").read_text()), signal.SIGKILL)
        return nullcontext()

    @contextmanager
    def cut(self, host: str) -> Iterator[None]:
        self.site.lab.do("cut", host)
        try:
            yield
        finally:
            self.site.lab.do("join", host)

    def kill_all(self, run: RunDir) -> None:
        """Kill everything of the run; what gave it its hosts has forgotten it."""
        if self.late:
            (self.entry(run) / "reason").unlink()
        platform.send(platform.with_argument(str(run.path)), signal.SIGKILL)
        platform.send(platform.marked("SHANTY_RUN_ID", run.id), signal.SIGKILL)

    def forget(self, run: RunDir) -> None:
        """End what nothing else ends; the run has left nothing on this machine."""
        plan = read_plan(run)
        assert plan is not None
        vanish({*cleanup.folders(plan.scratch)})
        for file in self.entry(run).glob("*.pid") if self.late else ():
            os.kill(int(file.read_text()), signal.SIGKILL)

    def await_state(self, run: RunDir, *states: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def there() -> bool:
            found.update(self.described(run))
            return found["state"] in states or found["ended"] is not None

        wait_for(there, 90, f"neither {states} nor ended")
        assert found["state"] in states, found["failure"]
        return found


@dataclass
class SlurmPlace(Place):
    """Slurm on a cluster of its own; a job of somebody else's has all nodes first."""

    reason: str = "it is next, and waits for nodes"

    def submit(self, *command: str) -> RunDir:
        self.cluster.slurm("sbatch", "-N3", "--exclusive", "--wrap", "sleep 300")
        return super().submit(*command)

    @property
    def cluster(self) -> Cluster:
        assert isinstance(self.site, SlurmSite)
        return self.site.cluster

    def grant(self, run: RunDir) -> None:
        self.cluster.slurm("scancel", "--name", "wrap")

    def is_queued(self, run: RunDir) -> bool:
        return run.id in self.cluster.slurm("squeue", "-h", "-o", "%k")

    def without_host(self, run: RunDir, host: str) -> AbstractContextManager[None]:
        return self.cut(host)

    def kill_all(self, run: RunDir) -> None:
        platform.send(platform.marked("SHANTY_RUN_ID", run.id), signal.SIGKILL)
        names = [f"/home/{self.site.lab.name}/.shanty/work/{run.id}.{n}" for n in range(2)]
        for name in names:
            platform.send(platform.with_argument(name), signal.SIGKILL)

    def forget(self, run: RunDir) -> None:
        self.cluster.clear()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, stores: Path) -> Iterator[Cluster]:
    with cluster_in(tmp_path_factory.mktemp("slurm"), stores, "batch") as found:
        yield found


@pytest.fixture(scope="module")
def podman_hosts(lab: LabHosts) -> Iterator[None]:
    """The lab's hosts can start containers."""
    with podman_on(lab):
        yield


@pytest.fixture(scope="module")
def podman_nodes(cluster: Cluster) -> Iterator[None]:
    """So can Slurm's."""
    with podman_on(cluster.lab):
        yield


class KubeSite(Site):
    """A workspace for a cluster, which is no lab."""

    def start(self, *words: str | Path, **options: Any) -> subprocess.Popen[str]:
        return super().start(*words, text=True, **options)


@dataclass
class KubePlace(Place):
    """A cluster of Kubernetes; its pods want a node that there is not before."""

    kube: Any = None
    reason: str = "its pods are being started; 0 of 2 run; no node for it"

    def submit(self, *command: str) -> RunDir:
        self._label(None)
        run = super().submit("--node-selector", "shanty-test=yes", *command)

        def said() -> bool:
            return str((read_json(run.status) or {}).get("reason")).startswith(self.reason)

        wait_for(said, 30, "the scheduler says nothing")
        return run

    def grant(self, run: RunDir) -> None:
        self._label("yes")

        def nodes() -> list[tuple[str, str]]:
            pods = self.kube.pods(run).values()
            return sorted((p["spec"].get("nodeName", ""), p["metadata"]["name"]) for p in pods)

        wait_for(lambda: len(nodes()) == 2 and all(node for node, _ in nodes()), 60, "no pods")
        self.hosts[:] = [name for _, name in nodes()]

    def _label(self, value: str | None) -> None:
        for node in self.kube.by_admin.call("GET", "/api/v1/nodes")["items"]:
            change = {"metadata": {"labels": {"shanty-test": value}}}
            path = f"/api/v1/nodes/{node['metadata']['name']}"
            self.kube.by_admin.call("PATCH", path, change, kind="application/merge-patch+json")

    def is_queued(self, run: RunDir) -> bool:
        return "jobs" in self.kube.left(run)

    def without_host(self, run: RunDir, host: str) -> AbstractContextManager[None]:
        self.kube.take_away(host)
        return nullcontext()

    def kill_all(self, run: RunDir) -> None:
        watcher = (read_json(run.path / "watcher.json") or {})["watcher"]["pid"]
        os.kill(watcher, signal.SIGKILL)
        path = self.kube.by_admin.path("jobs", f"shanty-{run.id}", "apis/batch/v1")
        self.kube.by_admin.call("DELETE", path, {"propagationPolicy": "Background"})
        wait_for(lambda: not self.kube.left(run), 90, "the run is still there")

    def forget(self, run: RunDir) -> None:
        """Nobody else has anything of it."""


# A worker of pytest-xdist has those that share a lab, so that the labs are up at the same time.
LABS = {"local": "here", "procs": "here", "toy": "here", "k8s": "k8s", "ssh": "ssh",
        "ssh-image": "ssh", "slurm": "slurm", "slurm-image": "slurm"}  # fmt: skip
# Of each of these, the short form has one target on two days in a row, each with half of the tests.
TURNS = (("local", "procs", "toy"), ("ssh", "slurm", "ssh-image", "slurm-image"), ("k8s",))


def _places() -> list[Any]:
    """The targets that have their turn."""
    return [
        pytest.param(name, marks=pytest.mark.xdist_group(LABS[name]))
        for names in TURNS
        for name in (names if LONG else [variant("targets", names, 2, today())])
    ]


@pytest.fixture(params=_places())
def place(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """Each target; afterwards nothing of its runs is there."""
    if request.param == "k8s":
        yield from _on_kubernetes(tmp_path)
        return
    if request.param.startswith("slurm"):
        more = []
        if request.param == "slurm-image":
            request.getfixturevalue("podman_nodes")
            more = [*IMAGE_WORDS]
        yield from _on_slurm(request.getfixturevalue("cluster"), tmp_path, more)
        return
    if request.param.startswith("ssh"):
        lab: LabHosts = request.getfixturevalue("lab")
    else:  # a home is enough; its path is short, for sockets
        lab = LabHosts(LabHome(tmp_path_factory.mktemp("here")), "none")
    site = Site(lab, tmp_path / "work")
    site.write("up.py", UP)
    if request.param == "local":
        here = Place(site, ["-n", str(RANKS), "--oversubscribe"], [os.uname().nodename])
    elif request.param.startswith("ssh"):
        words = ["--on", "lab", "-n", str(RANKS), "--ranks-per-host", "2"]
        if request.param == "ssh-image":
            request.getfixturevalue("podman_hosts")
            words += IMAGE_WORDS
        here = Place(site, words, ["lab1", "lab2", "lab3"])
    elif request.param == "toy":
        path = os.pathsep.join(toy_target.package(tmp_path / "package"))
        words = ["--on", "toy", "--toy-colour", "red", "--toy-room", str(RANKS), "-n", str(RANKS)]
        reason = "waits for a host: red ones are taken"
        hosts = [os.uname().nodename]
        here = Place(site, words, hosts, True, {"PYTHONPATH": path}, reason, "toy")
    else:
        info = tmp_path / "package" / "procs-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: procs\nVersion: 1\n")
        (info / "entry_points.txt").write_text(
            "[shanty.targets]\nprocs = process_hosts:make_target\n"
        )
        path = os.pathsep.join([str(info.parent), str(Path(__file__).parent)])
        words = ["--on", "procs", "-n", str(RANKS), "--mpi", "mpich", "-e", "UCX_TLS=self,tcp"]
        here = Place(site, words, ["proc0", "proc1"], True, {"PYTHONPATH": path})
    yield here
    for run in (lab.shanty.home / "runs").glob("*"):
        wait_for(lambda run=run: not site.remains(run.name), 15, f"left: {site.remains(run.name)}")


def _on_kubernetes(tmp_path: Path) -> Iterator[Place]:
    from kube_runs import end, kube_in

    kube = kube_in(tmp_path)
    site = KubeSite(SimpleNamespace(shanty=kube.shanty), kube.shanty.folder)  # type: ignore[arg-type]
    site.write("up.py", UP)
    words = [*kube.words, "-n", str(RANKS), "--nodes", "2", "--ranks-per-host", "2"]
    place = KubePlace(site, words, ["", ""], True, kube.env, kube=kube)
    yield place
    place._label(None)
    for run in kube.runs:
        end(kube, run)


def _on_slurm(cluster: Cluster, tmp_path: Path, more: list[str]) -> Iterator[Place]:
    with site_in(cluster, tmp_path / "work") as site:
        site.write("up.py", UP)
        words = [*site.on[1:], "-n", str(RANKS), "--nodes", "2", "--mpi", "mpich", *more]
        yield SlurmPlace(site, words, cluster.nodes[:2], True)


def test_a_run_is_tried_waits_runs_and_is_stopped(place: Place) -> None:
    before = set(place.site.lab.shanty.home.glob("runs/*"))
    done = place("run", "--dry-run", *place.words, "up.py")
    assert done.returncode == 0, done.stderr
    assert "up.py" in done.stdout
    assert set(place.site.lab.shanty.home.glob("runs/*")) == before
    run = place.submit("up.py")
    if place.late:
        status = read_json(run.status) or {}
        write_json(run.status, {**status, "created": status["created"] - LOST_AFTER})
        found = place.described(run)
        assert found["state"] == "pending"
        assert found["reason"].startswith(place.reason)
        assert place("stacks", run.id).returncode != 0
        place.grant(run)
    found = place.await_state(run, "running")
    assert found["joined"] == RANKS
    nodes = (read_json(run.plan) or {})["attempt"]["nodes"]
    assert [node["name"] for node in nodes] == place.hosts
    assert place("stacks", run.id).returncode == 0
    assert place("stop", run.id).returncode == 0
    assert place.await_state(run, "stopped", "failed")["state"] == "stopped"


def test_output_and_exit_code_come_back(place: Place) -> None:
    place.site.write("end.py", "from mpi4py import MPI\nprint('said', MPI.COMM_WORLD.rank)\n")
    run = place.submit("end.py")
    place.grant(run)
    done = place("logs", "-f", run.id)
    assert done.returncode == 0, done.stderr
    said = sorted(line.split()[-1] for line in done.stdout.splitlines())
    assert said == [str(rank) for rank in range(RANKS)]
    assert place.await_state(run, "succeeded", "failed")["state"] == "succeeded"


def test_a_host_is_taken_back(place: Place) -> None:
    if len(place.hosts) == 1:
        pytest.skip("this machine has no other host")
    run = place.submit("up.py")
    place.grant(run)
    place.await_state(run, "running")
    with place.without_host(run, place.hosts[1]):
        found = place.await_state(run, "failed", "lost")
    assert found["state"] == "failed"
    assert place.hosts[1] in str(found["failure"])


def test_a_run_that_waits_is_taken_out(place: Place) -> None:
    if not place.late:
        pytest.skip("nothing waits there")
    run = place.submit("up.py")
    assert place("stop", run.id).returncode == 0
    assert place.described(run)["state"] == "stopped"
    assert not place.is_queued(run)


def test_what_nobody_knows_of_is_lost(place: Place) -> None:
    if "lab" in place.words:
        pytest.skip("the lead host is asked there: tests/lab/test_failures.py")
    run = place.submit("up.py")
    place.grant(run)
    place.await_state(run, "running")
    place.kill_all(run)
    found = place.await_state(run, "failed", "lost")
    assert found["failure"]["what"]
    place.forget(run)


@long_only
@pytest.mark.xdist_group("slurm")
def test_an_image_in_a_job_of_ones_own(
    cluster: Cluster, podman_nodes: None, tmp_path: Path
) -> None:
    """The nodes of salloc's job start their containers, one of them alone too."""
    site = SlurmSite(cluster.lab, tmp_path / "work", cluster=cluster)
    (site.home / "work").mkdir(exist_ok=True)
    (site.home / "work/hello.py").write_text(HELLO)
    shanty = shlex.join([sys.executable, "-m", "shanty", "run", *IMAGE_WORDS])
    for nodes in (2, 1):
        line = f"salloc -Q -N{nodes} -n2 {shanty} hello.py"
        done = site.typed(cluster.login, line)
        assert done.returncode == 0, done.stderr
        assert sum(f"of 2 {node}" in done.stdout for node in cluster.nodes) == nodes
    wait_for(lambda: not containers_on(cluster.lab), 15, "containers are left")
    cluster.clear()
