"""`TF_CONFIG`, with which a run describes the ranks to TensorFlow's own distribution."""

from __future__ import annotations

import json
import os

_NAME = "TF_CONFIG"


def forget() -> None:
    """Remove it from the environment if it names workers only.

    Gradients are sent over MPI here. An Estimator would take each rank for a part of a cluster, and
    refuse a cluster without a chief.
    """
    try:
        cluster = json.loads(os.environ.get(_NAME, ""))["cluster"]
    except (ValueError, KeyError, TypeError):
        return
    if list(cluster) == ["worker"]:
        del os.environ[_NAME]
