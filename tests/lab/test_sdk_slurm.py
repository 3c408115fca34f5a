"""Tasks whose ranks Slurm gives their nodes: all checks, and another attempt after a preemption."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import Cluster, SlurmSite, site_in

from launches import LONG
from runs import wait_for
from sdk_runs import NAMES, check, out, passed, selected, started, up

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]

SHORT = ("each",)


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[SlurmSite]:
    with site_in(cluster, tmp_path / "work") as here:
        yield here


def options(cluster: Cluster) -> dict[str, Any]:
    return {"on": f"slurm:{cluster.login}", "nodes": 2, "ranks_per_host": 1}


@pytest.fixture(scope="module")
def launches(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Any:
    """The output of all checks, done once."""
    folder = tmp_path_factory.mktemp("sdk") / "work"

    @cache
    def output() -> str:
        with site_in(cluster, folder) as where:
            names = selected(request)
            return check(where.folder, where.lab.shanty.environ, options(cluster), names, 1200)

    return output


def test_in_short(site: SlurmSite) -> None:
    output = check(site.folder, site.lab.shanty.environ, options(site.cluster), SHORT)
    for name in SHORT:
        passed(output, name)


@LONG
@pytest.mark.timeout(1250)
@pytest.mark.parametrize("name", NAMES)
def test_on_slurm(launches: Any, name: str) -> None:
    passed(launches(), name)


PREEMPTED = """
import pathlib, sys, time
import shanty

@shanty.task(on=sys.argv[1], partition="low", ranks=3, nodes=3, retries=int(sys.argv[2]))
def work():
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    file = pathlib.Path.home() / "begun-preempted"
    first = world.bcast(not file.exists() if world.rank == 0 else None)
    world.barrier()
    file.touch()
    print("up", world.rank, flush=True)
    while first:
        barrier = world.Ibarrier()
        while not barrier.Test():
            time.sleep(0.02)
        time.sleep(0.02)
    return world.size

if __name__ == "__main__":
    try:
        print("value", work(), len(shanty.runs()))
    except shanty.RunError as error:
        print("error", error.cause, error)
"""


@LONG
@pytest.mark.parametrize("retries", [1, 0])
def test_preempted(site: SlurmSite, retries: int) -> None:
    site.write("script.py", PREEMPTED)
    (site.home / "begun-preempted").unlink(missing_ok=True)
    folder = site.lab.shanty.home / "runs"
    before = set(folder.glob("*"))
    words = ("script.py", f"slurm:{site.cluster.login}", retries)
    process = started(site.folder, site.lab.shanty.environ, *words)

    def all_up() -> bool:
        return up(set(folder.glob("*")) - before) == 3 or process.poll() is not None

    wait_for(all_up, 120, "it does not start")
    site.cluster.slurm("sbatch", "-p", "main", "-N3", "--exclusive", "--wrap", "sleep 4")
    said, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    if retries:
        assert f"value 3 {len(before) + 2}" in said, said + err
        assert "another attempt (1 of 1)" in err
    else:
        assert "error preempted" in said, said + err


CALL = """
import sys, time
import shanty

@shanty.task(on=sys.argv[1], ranks=2, nodes=2)
def work(seconds):
    print("up", flush=True)
    time.sleep(seconds)
    return "value"

if __name__ == "__main__":
    print(shanty.find().value() if sys.argv[2:] else work(5))
"""


@LONG
def test_the_caller_is_killed(site: SlurmSite) -> None:
    """The run goes on, and whoever asks gets its value."""
    site.write("script.py", CALL)
    words = ("script.py", f"slurm:{site.cluster.login}")
    folder = site.lab.shanty.home / "runs"
    before = set(folder.glob("*"))
    process = started(site.folder, site.lab.shanty.environ, *words)
    try:
        wait_for(lambda: up(set(folder.glob("*")) - before) == 2, 120, "it does not start")
    finally:
        process.kill()
        process.communicate()
    asked = started(site.folder, site.lab.shanty.environ, *words, "value")
    assert out(asked, 100) == "value\n"
