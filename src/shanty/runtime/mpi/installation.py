"""Describes an MPI on a machine: which flavour it is and where its parts lie."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Installation:
    """One MPI found on a machine.

    `flavour` is a key of `flavours.FLAVOURS`; `prefix` holds bin/ and lib/; `launcher` is the
    absolute path of its mpirun, `library` that of the libmpi that mpi4py has to load;
    `origin` says how it came here: "wheel" (beside the interpreter, from PyPI), "shanty"
    (installed by `shanty mpi install`) or "system".
    """

    flavour: str
    version: str
    prefix: str
    launcher: str
    library: str
    origin: str
