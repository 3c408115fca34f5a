"""Makes images and environments that most runs of the suite need, before a test asks for them.

CI runs this (`./dev prepare`) beside the static checks. What cannot be had here is left to the
tests, which skip with the reason.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import engines
import environments
from environments import environment

_OWN = sys.executable


def compile_modules() -> None:
    """Compile the sources and the tests, which each worker of pytest-xdist would do by itself."""
    root = Path(__file__).parents[1]
    for words in (["compileall", "-q", "src"], ["pytest", "--collect-only", "-q", "tests"]):
        done = subprocess.run([_OWN, "-m", *words], cwd=root, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


TASKS: dict[str, Callable[[], object]] = {  # those that take longest first
    "image: Debian with Python": lambda: engines.archive_of(engines.PYTHON),
    "TensorFlow": environments.tensorflow,
    "compiled modules": compile_modules,
    "image: Debian's Open MPI": lambda: engines.archive_of(engines.OPENMPI),
    "image: a shell": lambda: engines.archive_of(engines.SHELL),
    "TensorFlow 2.15": environments.tensorflow_2_15,
    "JAX": lambda: environment("jax", environments.JAX),
    "ChainerMN": lambda: environment("chainer", environments.CHAINER),
    "MLX": lambda: environment("mlx", environments.MLX),
    "pools": lambda: environment("pools", environments.POOLS, beside=_OWN),
    "LightGBM alone": lambda: environment("alone", environments.ALONE, beside=_OWN),
    "notebook": lambda: environment("notebook", environments.NOTEBOOK, beside=_OWN),
    "nanobind": lambda: environment("nanobind", environments.NANOBIND, beside=_OWN),
}


def make(name: str) -> str:
    """Make one of them; a line that says how long it took, or why it is not there."""
    began = time.monotonic()
    try:
        TASKS[name]()
    except (pytest.skip.Exception, AssertionError, OSError) as error:
        return f"prepare: {name}: {str(error).strip().splitlines()[-1]}"
    return f"prepare: {name} ({time.monotonic() - began:.0f} s)"


if __name__ == "__main__":
    with ThreadPoolExecutor(2) as pool:
        for line in pool.map(make, TASKS):
            print(line, flush=True)
