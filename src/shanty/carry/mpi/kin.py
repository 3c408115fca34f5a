"""Which launchers start programs of which MPI."""

from __future__ import annotations

from shanty.carry.mpi.flavours import FLAVOURS


def starts(launcher: str, library: str) -> bool:
    """True when ranks that loaded the flavour `library` join one world under `launcher`'s.

    MPICH and Intel MPI share a wire-up (PMI) and an ABI, so each starts the other's programs;
    Open MPI's versions have runtimes of their own.
    """
    if launcher not in FLAVOURS or library not in FLAVOURS:
        return False
    family = FLAVOURS[launcher].family
    return launcher == library or (family == "hydra" and FLAVOURS[library].family == family)
