"""Mistakes in scripts by which ranks hang: the run ends, and names the rank and the mistake."""

from __future__ import annotations

import re

import pytest

import environments
from script_faults import SCRIPTS, ScriptFault
from shanty.runtime.errors import STALL_EXIT

pytestmark = pytest.mark.sampled(10)


@pytest.mark.parametrize("fault", SCRIPTS, ids=lambda fault: fault.title)
def test_what_is_reported(shanty, flavour, fault: ScriptFault):
    for package in ("torch", "xgboost"):
        if f"import {package}" in fault.script or f"from {package}" in fault.script:
            pytest.importorskip(package)
    words = ["--python", environments.tensorflow()] if fault.tensorflow else []
    done = shanty(
        *("run", "--mpi", fault.mpi or flavour, "-n", 2, *words),
        *("--stall-after", 2, "--on-stall", "stop", shanty.script(fault.script)),
        timeout=90,
    )
    assert re.search(fault.says, done.stderr), done.stderr
    assert (done.returncode == STALL_EXIT) == fault.stalls, done.stderr
    assert "\n  fix: " in done.stderr
