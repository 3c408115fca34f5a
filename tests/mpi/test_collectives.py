"""Collectives on numpy arrays, by ranks that have no framework."""

from __future__ import annotations

import os
from functools import cache

import pytest

pytest.importorskip("numpy")

from launches import SOURCE, WORKERS, alone, bare, checks, passed

SCRIPT = "collectives_numpy.py"
RUNS = cache(bare)
PACKAGE = SOURCE / "shanty" / "collectives"

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("check", checks(SCRIPT))
@pytest.mark.parametrize("ranks", [2, 3])
def test_without_a_framework(ranks: int, check: str) -> None:
    done = RUNS(ranks, SCRIPT)
    passed(done, check)
    assert done.returncode == 0, done.stderr


def test_every_module_loads_without_a_framework() -> None:
    """No import of one is left, not even where nobody has called it yet."""
    modules = sorted(path.stem for path in PACKAGE.glob("[a-z]*.py"))
    code = (
        "import no_frameworks, mpi4py; mpi4py.rc.initialize = False\n"
        f"from shanty.collectives import {', '.join(modules)}\n"
    )
    done = alone(code, PYTHONPATH=f"{SOURCE}{os.pathsep}{WORKERS}")
    assert done.returncode == 0, done.stderr
