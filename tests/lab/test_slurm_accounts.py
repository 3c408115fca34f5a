"""A Slurm that knows who may charge what: slurmdbd and its database on the login node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import Cluster, SlurmSite, cluster_in, site_in

from torch_runs import LONG

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300), LONG]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in(tmp_path_factory.mktemp("slurm"), accounting=True) as found:
        yield found


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[SlurmSite]:
    with site_in(cluster, tmp_path / "work") as here:
        here.write("hello.py", "from mpi4py import MPI\nprint('of', MPI.COMM_WORLD.allreduce(1))\n")
        yield here


def test_a_run_is_charged_to_the_account_that_was_asked_for(site: SlurmSite) -> None:
    words = ("--account", "physics", "--qos", "night", "-n", "3", "--nodes", "3")
    done = site(*site.on, *words, "hello.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of 3") == 3
    job = site.cluster.slurm("scontrol", "-o", "show", "job", site.job(site.last))
    assert "Account=physics" in job
    assert "QOS=night" in job


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--account", "phisics"), ("cannot use the account 'phisics'", "did you mean physics?")),
        (("--account", "poetry"), ("poetry", "physics")),
        (("--qos", "nihgt"), ("nihgt", "did you mean night?")),
    ],
    ids=["no such account", "another's account", "no such QOS"],
)
def test_what_nobody_may_charge_is_said_before_the_queue(
    site: SlurmSite, words: tuple[str, ...], said: tuple[str, ...]
) -> None:
    done = site(*site.on, *words, "hello.py", timeout=30)
    assert done.returncode in (2, 69), done.stderr
    for each in said:
        assert each in done.stderr
    assert site.cluster.jobs() == []
