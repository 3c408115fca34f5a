"""Workflows of the real flytekit, whose MPI tasks are jobs of Slurm."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import Cluster, SlurmSite, site_in

from flyte_runs import TASKS, Done, flyte, value
from launches import LONG
from runs import WORKERS
from shanty.runtime.rundir import RunDir, read_json

pytestmark = [pytest.mark.mpi, pytest.mark.slow, LONG, pytest.mark.timeout(600)]


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[SlurmSite]:
    with site_in(cluster, tmp_path / "work") as here:
        yield here


def run(site: SlurmSite, *words: str | Path) -> Done:
    on = f"slurm:{site.cluster.login}"
    return flyte(site.lab.shanty.home, site.folder, "--on", on, *words, timeout=300)


def test_each_worker_is_a_node(site: SlurmSite) -> None:
    """A value, and files there and back."""
    shutil.copy(WORKERS / TASKS, site.folder)
    done = run(site, TASKS, "sums", "--count", "11")
    assert value(done) == "55.0"
    hosts = re.findall(r"rank \d of 2 on (\S+) bar", done.stdout)
    assert len(set(hosts)) == 2 and set(hosts) <= set(site.cluster.nodes)
    assert (read_json(site.last.site) or {})["name"].isdecimal()  # the number of its job
    (site.folder / "text.txt").write_text("hello")
    assert value(run(site, TASKS, "files", "--text", "text.txt")) == "hello 2, HELLO"


def test_a_task_that_is_tried_again(site: SlurmSite) -> None:
    """Each time is a job of its own."""
    shutil.copy(WORKERS / TASKS, site.folder)
    before = set((site.lab.shanty.home / "runs").glob("*"))
    log = f"/home/{site.cluster.lab.name}/recovers"  # in the home of all nodes
    done = run(site, TASKS, "recovers", "--log", log)
    assert value(done) == "3"
    assert (site.home / "recovers").read_text() == "begun\n" * 3
    assert "is tried again" in done.stderr and "attempt 1 is none" in done.stderr
    jobs = set((site.lab.shanty.home / "runs").glob("*")) - before
    assert len({site.job(RunDir(path)) for path in jobs}) == 3
