"""Workflows of the real flytekit, whose MPI tasks run on two virtual hosts."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

from flyte_runs import TASKS, Done, flyte, served, value
from launches import LONG
from runs import WORKERS

pytestmark = [pytest.mark.mpi, pytest.mark.slow, LONG, pytest.mark.timeout(600)]


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    yield Site(lab, tmp_path / "work")


def run(site: Site, *words: str | Path) -> Done:
    on = ",".join(site.lab.hosts[:2])
    return flyte(site.lab.shanty.home, site.folder, "--on", on, *words, timeout=300)


def test_from_a_file(site: Site) -> None:
    """Tasks, files and outputs go to the hosts and come back."""
    shutil.copy(WORKERS / TASKS, site.folder)
    done = run(site, TASKS, "sums", "--count", "11")
    assert value(done) == "55.0"
    hosts = re.findall(r"rank \d of 2 on (\S+) bar", done.stdout)
    assert len(set(hosts)) == 2
    (site.folder / "text.txt").write_text("hello")
    done = run(site, TASKS, "files", "--text", "text.txt")
    assert value(done) == "hello 2, HELLO"


def test_from_a_url(site: Site) -> None:
    with served(WORKERS) as url:
        done = run(site, f"{url}/{TASKS}", "horovod_training_wf")
    assert re.fullmatch(r"loss 0\.\d+, 4 weights", value(done))
    assert "rank 1 of 2: loss" in done.stdout


def test_a_shortfall_names_the_host(site: Site) -> None:
    shutil.copy(WORKERS / TASKS, site.folder)
    done = run(site, TASKS, "much_memory")
    assert done.returncode != 0
    assert "1 rank with 900 TiB" in done.stderr, done.stderr
    assert site.lab.hosts[0] in done.stderr and "Traceback" not in done.stderr
