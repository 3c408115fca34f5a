"""A cluster for the tests of this folder (see `kube_runs`), and what is left of it after each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_runs import Kube, end, kube_in

from rotation import thin
from runs import flavour
from shanty.runtime.rundir import read_json

__all__ = ["flavour"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.mpi)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group("kubernetes"))
            item.add_marker(pytest.mark.timeout(300))
    thin(items, Path(__file__).parent)


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[Kube]:
    """A cluster; afterwards nothing of the test's runs is in it, and nobody watches them."""
    found = kube_in(tmp_path)
    yield found
    for run in found.runs:
        if not (read_json(run.job) or {}).get("keep"):
            end(found, run)
