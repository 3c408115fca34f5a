"""Which launchers start programs of which MPI."""

from __future__ import annotations

from shanty.runtime.mpi.flavours import FLAVOURS


def starts(launcher: str, library: str) -> bool:
    """True when ranks that loaded the flavour `library` join one world under `launcher`'s.

    MPICH and Intel MPI share a wire-up (PMI) and an ABI, so each starts the other's programs.
    Open MPI 4.1's launcher starts programs of 5, since both speak PMIx; the other way round a
    program of 4.1 looks for its own daemon and fails.
    """
    if launcher not in FLAVOURS or library not in FLAVOURS:
        return False
    if launcher == library or (launcher, library) == ("openmpi4", "openmpi5"):
        return True
    return FLAVOURS[launcher].family == FLAVOURS[library].family == "hydra"
