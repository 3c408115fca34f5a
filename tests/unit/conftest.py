"""How Hypothesis looks for counterexamples: as long as it takes, for a busy machine is no error.

And no MPI is started: nothing here needs it, and Open MPI 5 leaves a segment of shared memory
behind for a process that no launcher started.
"""

from __future__ import annotations

from pathlib import Path

import mpi4py
import pytest
from hypothesis import HealthCheck, settings

mpi4py.rc.initialize = False

settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file is for one worker of pytest-xdist: its tests are short, and share what they import."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            name = item.path.relative_to(here).with_suffix("")
            item.add_marker(pytest.mark.xdist_group(f"unit {name}"))
