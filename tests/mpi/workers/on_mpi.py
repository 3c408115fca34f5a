"""No framework but MPI, which XGBoost and LightGBM start by themselves. See run_checks.py."""

from __future__ import annotations

from mpi4py import MPI

BOUND = 120.0
barrier = MPI.COMM_WORLD.Barrier


def begin() -> None:
    assert MPI.Is_initialized()  # before the ranks of XGBoost come together


def end() -> None:
    """What the script leaves open is closed by itself."""
