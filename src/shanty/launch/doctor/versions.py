"""Finds the versions of the software that a run on this machine uses, without importing it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shanty._version import __version__
from shanty.launch import interpreter, mpis
from shanty.runtime.errors import NotFoundError, PrepareError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.rpc.python_environment import described
from shanty.runtime.spec import JobSpec

# The distributions that scripts are written with.
_FRAMEWORKS = (
    "mpi4py", "torch", "tensorflow", "tensorflow-cpu", "jax", "keras", "mlx", "chainer", "xgboost",
    "xgboost-cpu", "lightgbm", "horovod", "deepspeed", "scikit-learn", "numpy",
)  # fmt: skip


def versions(job: JobSpec, home: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return `shanty`, `python` (path, version, packages), and `mpis`, each with `taken`.

    PrepareError where the Python of a run cannot be asked.
    """
    path = interpreter.choose(job.python, Path(job.workdir), environ)
    python = described(path)
    there = {each["name"]: each["version"] for each in python["distributions"]}
    try:
        taken = mpis.select(job.mpi, home, environ).prefix
    except (NotFoundError, PrepareError):
        taken = ""  # a finding says why
    return {
        "shanty": __version__,
        "python": {
            "path": path,
            "version": python["version"],
            "packages": {name: there[name] for name in _FRAMEWORKS if name in there},
        },
        "mpis": [
            {
                "title": FLAVOURS[each.flavour].title.rstrip(" .0123456789"),
                "flavour": each.flavour,
                "version": each.version,
                "prefix": each.prefix,
                "taken": each.prefix == taken,
            }
            for each in mpis.installed(home, environ)
        ],
    }
