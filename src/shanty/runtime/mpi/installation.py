"""Describes an MPI on a machine: which flavour it is and where its parts lie."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Installation:
    """One MPI found on a machine."""

    flavour: str  # a key of `flavours.FLAVOURS`
    version: str
    prefix: str  # holds bin/ and lib/
    launcher: str  # the absolute path of its mpirun
    library: str  # and of the libmpi that mpi4py has to load
    origin: str  # "wheel" (beside the interpreter), "shanty" (by `shanty mpi install`), "system"
