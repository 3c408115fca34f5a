"""Lists the MPIs that shanty knows, one value each; nothing outside `runtime.mpi` tells them apart.

A flavour says how its host file and command line are written, which environment it wants, in
which variables its ranks find their place, and what a killed job leaves behind: see `flavour`
for the interface, `openmpi` and `hydra` for the values.
"""

from __future__ import annotations

import re
from typing import Mapping, Optional, Tuple

from shanty.runtime.errors import UsageError
from shanty.runtime.mpi.flavour import Flavour
from shanty.runtime.mpi.hydra import Intel, Mpich
from shanty.runtime.mpi.openmpi import OpenMPI4, OpenMPI5
from shanty.runtime.suggestions import nearest

# The preferred one first.
FLAVOURS: Mapping[str, Flavour] = {
    each.name: each for each in (OpenMPI5(), OpenMPI4(), Mpich(), Intel())
}

# Without dashes, underscores, dots and blanks; a name without a version means the newest.
_ALIASES = {
    "openmpi5": ("openmpi", "ompi", "ompi5"),
    "openmpi4": ("openmpi41", "ompi4"),
    "mpich": ("mpich5", "mpich4", "hydra"),
    "intel": ("impi", "impirt", "intelmpi", "oneapi"),
}

_VERSIONS = (
    ("intel", re.compile(r"Intel\(R\) MPI Library (\d[\w.]*)")),
    ("mpich", re.compile(r"MPICH Version:\s*(\d[\w.]*)")),
    ("openmpi", re.compile(r"Open MPI v(\d[\w.]*)")),
)


def flavour(name: str) -> Flavour:
    """Returns the flavour of that name, in whichever way people write it ("open-mpi", "impi").

    Raises UsageError, which names the known ones, for any other name.
    """
    key = re.sub(r"[-_. ]", "", name.lower())
    for one in FLAVOURS.values():
        if key in (one.name, *_ALIASES[one.name]):
            return one
    known = ", ".join(f"{one.name} ({one.title})" for one in FLAVOURS.values())
    fix = nearest(key, FLAVOURS, "use one of these names")
    raise UsageError(f"no MPI is called {name!r}", why=f"shanty knows {known}", fix=fix)


def identify_library(version_string: str) -> Optional[Tuple[str, str]]:
    """Returns the flavour's name and the version, from what MPI_Get_library_version() returns.

    None for an MPI that shanty does not know. Open MPI 3 counts as 4, whose runtime and
    dialect it shares, and everything after 5 as 5.
    """
    for name, pattern in _VERSIONS:
        match = pattern.search(version_string)
        if match and name == "openmpi":
            name = "openmpi4" if int(match[1].split(".")[0]) < 5 else "openmpi5"
        if match:
            return name, match[1]
    return None


def starts(launcher: str, library: str) -> bool:
    """Returns True when ranks that loaded the flavour `library` join one world under `launcher`'s.

    MPICH and Intel MPI share a wire-up (PMI) and an ABI, so each starts the other's programs.
    Open MPI 4.1's launcher starts programs of 5, since both speak PMIx; the other way round a
    program of 4.1 looks for its own daemon and fails.
    """
    if launcher not in FLAVOURS or library not in FLAVOURS:
        return False
    if launcher == library or (launcher, library) == ("openmpi4", "openmpi5"):
        return True
    return FLAVOURS[launcher].family == FLAVOURS[library].family == "hydra"
