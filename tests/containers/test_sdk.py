"""Tasks whose ranks are in a container on this machine."""

from __future__ import annotations

import pytest

from engines import ContainedShanty
from runs import LONG
from sdk_runs import NAMES, check, passed

SHORT = ("each", "exception_of_main")
# An image with Python only has no NumPy.
FITTING = [name for name in NAMES if name != "arrays"]


@pytest.mark.timeout(600)
def test_tasks(shanty: ContainedShanty) -> None:
    engine = shanty.engine
    options = {"image": engine.image, "runtime": engine.name, "packages": "none"}
    options["oversubscribe"] = True
    names = FITTING if LONG else SHORT
    output = check(shanty.folder, shanty.environ, options, names, 580)
    for name in names:
        passed(output, name)
