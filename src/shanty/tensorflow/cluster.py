"""`TF_CONFIG`, by which a run tells TensorFlow's own distribution of the ranks."""

from __future__ import annotations

import json
import os

_NAME = "TF_CONFIG"


def forget() -> None:
    """Take it out of the environment, if it names workers only.

    Gradients go by MPI here. An Estimator would take each rank for a part of a cluster, and refuse
    one that has no chief.
    """
    try:
        cluster = json.loads(os.environ.get(_NAME, ""))["cluster"]
    except (ValueError, KeyError, TypeError):
        return
    if list(cluster) == ["worker"]:
        del os.environ[_NAME]
