"""Experiments on the hosts of a lab: the platforms' lines, on machines of two types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from lab_engines import containers_on, podman_on
from site_runs import Site

from engines import PYTHON
from launches import LONG
from platform_lines import CLUSTERONE, GRADIENT, LINE, WHERE, created, make_repository, repository
from runs import wait_for
from shanty.integrations.clusterone.job import everywhere
from shanty.runtime.rundir import RunDir, read_json

__all__ = ["repository"]

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(600)]


def ssh_types(site: Site) -> None:
    """Two types: one host with one slot for masters, two for workers."""
    first, second, third = site.lab.hosts
    for name, on in (("p2.xlarge", f"{first},{second}"), ("c3.large", third)):
        added = site("machines", "add", name, "--on", on, "--slots", "1")
        assert added.returncode == 0, added.stderr


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Site:
    site = Site(lab, tmp_path / "work")
    ssh_types(site)
    return site


def ended(site: Site, run: RunDir) -> dict[str, object]:
    def status() -> dict[str, object]:
        site("ps", "-q")
        return read_json(run.status) or {}

    wait_for(lambda: status().get("ended"), 120, f"an end of {run.id}")
    return status()


@LONG
def test_the_line_of_gradients_page(site: Site, repository: str, flavour: str) -> None:
    types = ("--workerMachineType", "p2.xlarge", "--masterMachineType", "c3.large")
    words = ("--mpi", flavour, "--workspace", repository, "--tag", "night")
    run = created(site(*GRADIENT, *types, *words), site.lab.shanty.home)
    assert ended(site, run)["state"] == "succeeded", site("logs", run.id).stdout
    out = site("experiments", "logs", "--id", "mpi-test").stdout
    for host in site.lab.hosts:
        assert f"on {host} 5" in out
    plan = read_json(run.plan) or {}
    assert plan["attempt"]["nodes"][0]["name"] == site.lab.hosts[2]  # the master's own type
    assert (run.artifacts / "model.txt").read_text() == "saved"
    metrics = site("experiments", "metrics", "get", run.id, "--metric", "loss", "--json").stdout
    assert metrics.count('"loss"') == 3
    again = site("experiments", "start", "--id", "mpi-test")
    assert "began by itself" in again.stderr
    again = site("experiments", "start", "--id", "mpi-test", "--logs", timeout=120)
    assert again.returncode == 0, again.stderr
    assert "rank 0 of 3" in again.stdout


@LONG
def test_the_line_of_clusterones_page(site: Site, flavour: str) -> None:
    site.write("openmpi/horovod/main.py", WHERE)
    types = ("--worker-type", "p2.xlarge", "--ps-type", "c3.large")
    run = created(site(*CLUSTERONE, *types, "--mpi", flavour), site.lab.shanty.home)
    assert "began by itself" in site("start", "job", "tutorials/horovod-job").stderr
    assert ended(site, run)["state"] == "succeeded", site("logs", run.id).stdout
    assert site("logs", run.id).stdout.count("of 3 on") == 3


@LONG
def test_dmlc_submit_on_machines(site: Site) -> None:
    site.write("x.py", WHERE)
    line = "/dmlc-core/tracker/dmlc-submit --cluster mpi --num-workers 3 python x.py"
    words = ("--worker-type", "p2.xlarge", "--ps-type", "c3.large", "--worker-replicas", "2")
    done = site("create", "job", "distributed", *words, "--command", line)
    run = created(done, site.lab.shanty.home)
    assert ended(site, run)["state"] == "succeeded", site("logs", run.id).stdout
    assert site("logs", run.id).stdout.count("of 3 on") == 3


def test_each_machine_is_a_rank_without_a_launcher(site: Site) -> None:
    site.write("main.py", WHERE)
    words = ("--worker-type", "p2.xlarge", "--ps-type", "c3.large")
    run = created(site("create", "job", "distributed", *words), site.lab.shanty.home)
    assert ended(site, run)["state"] == "succeeded", site("logs", run.id).stdout
    out = site("logs", run.id).stdout
    assert all(f"of 3 on {host}" in out for host in site.lab.hosts)


@LONG
def test_a_setup_is_run_once_on_each_machine(site: Site, flavour: str) -> None:
    """As it is in containers, without them: there a setup changes nothing that other runs have."""
    site.write("x.py", WHERE)
    line = f"({everywhere('echo set up on $(uname -n)', 3)}) || exit; mpirun -np 3 python x.py"
    done = site(
        *("experiments", "run", "multinode", "--workerMachineType", "p2.xlarge", "--mpi", flavour),
        *("--workerCount", "2", "--masterMachineType", "c3.large", "--masterCommand", line),
        *("--workspace", "."),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert all(done.stdout.count(f"set up on {host}") == 1 for host in site.lab.hosts)
    assert done.stdout.count("of 3 on") == 3


@LONG
def test_a_single_node_and_its_folder(site: Site, repository: str) -> None:
    done = site(
        *("experiments", "run", "singlenode", "--machineType", "c3.large"),
        *("--command", "pwd; ls; python where.py", "--workspace", repository),
        *("--workingDirectory", "/paperspace/examples", "--experimentEnv", '{"EPOCHS": 7}'),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "where.py" in done.stdout
    assert f"rank 0 of 1 on {site.lab.hosts[2]} 7" in done.stdout
    assert (site.last.artifacts / "model.txt").read_text() == "saved"
    done = site(
        *("experiments", "run", "singlenode", "--machineType", "c3.large"),
        *("--command", "exit 3", "--workspace", "none"),
        timeout=120,
    )
    assert done.returncode == 3


@pytest.fixture
def podman_site(site: Site) -> Iterator[Site]:
    with podman_on(site.lab):
        yield site


@LONG
def test_in_containers(podman_site: Site, tmp_path: Path) -> None:
    """Each machine has its container; what is saved at /artifacts comes back from all of them."""
    site = podman_site
    repository = make_repository(tmp_path / "own.git", '[run]\npackages = "none"\n')
    save = "echo $(uname -n) > /artifacts/$(uname -n)"
    line = f"mpirun -np 3 sh -c '{save}' && " + LINE.format(
        3, "/generated/hostfile", "examples/where.py /artifacts"
    )
    done = site(
        *("experiments", "create", "multinode", "--experimentType", "MPI", "--runtime", "podman"),
        *("--workerMachineType", "p2.xlarge", "--workerCount", "2", "--workerContainer", PYTHON),
        *("--masterMachineType", "c3.large", "--masterContainer", PYTHON),
        *("--masterCommand", line, "--workspace", repository),
    )
    run = created(done, site.lab.shanty.home)
    assert ended(site, run)["state"] == "succeeded", site("logs", run.id).stdout
    assert site("logs", run.id).stdout.count("of 3 on") == 3
    saved = {path.name for path in run.artifacts.rglob("*") if path.is_file()}
    assert saved == {"model.txt", *site.lab.hosts}
    assert not containers_on(site.lab)
