"""Tasks whose ranks are in pods."""

from __future__ import annotations

import pytest
from kube_runs import UID, Kube

from runs import LONG
from sdk_runs import NAMES, check, passed

SHORT = ("value", "each", "exception_of_main", "cancel")
FITTING = [name for name in NAMES if name != "arrays"]  # the image has no NumPy


@pytest.mark.timeout(1300)
def test_tasks(kube: Kube) -> None:
    options = {"on": "k8s", "image": kube.image, "uid": UID, "environment": "none"}
    names = FITTING if LONG else SHORT
    environ = {**kube.shanty.environ, **kube.env}
    output = check(kube.shanty.folder, environ, options, names, 1200)
    for name in names:
        passed(output, name)
