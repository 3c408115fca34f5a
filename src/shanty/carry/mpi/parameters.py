"""What MPIs are told on a host beside a run: by files of parameters, and by what a login sets."""

from __future__ import annotations

import contextlib
import glob
import os
from typing import Dict, FrozenSet, Iterator, Mapping, Tuple

# Where they read settings, besides their own prefix.
_FILES = (
    "~/.openmpi/mca-params.conf",
    "~/.prte/mca-params.conf",
    "~/.pmix/mca-params.conf",
    "/etc/openmpi*/openmpi-mca-params.conf",
    "/etc/prte*/prte-mca-params.conf",
    "/etc/pmix*/pmix-mca-params.conf",
)
_VARIABLES = (
    *("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "I_MPI_", "HYDRA_", "MPIR_CVAR_", "MPICH_"),
    *("UCX_", "FI_", "NCCL_SOCKET_", "GLOO_SOCKET_"),
)
_LONGEST = 1 << 20  # bytes of a file of settings
# Beside the parameter on the left, wherever that is set and whatever it says, Open MPI refuses
# the variable on the right and does without TCP (opal's mca_base_var_check_exclusive).
_CLASHES: Mapping[str, str] = {"btl_tcp_if_exclude": "OMPI_MCA_btl_tcp_if_include"}


def settings(environ: Mapping[str, str]) -> Iterator[Tuple[str, str, str]]:
    """Name, value and place of each setting; the place is a file, or "" for `environ`."""
    for pattern in _FILES:
        for path in sorted(glob.glob(os.path.expanduser(pattern))):
            with contextlib.suppress(OSError), open(path, errors="replace") as file:
                for name, value in parameters(file.read(_LONGEST)):
                    yield name, value, path
    for name in sorted(environ):
        if name.startswith(_VARIABLES):
            yield name, environ[name], ""


def overruling(environ: Mapping[str, str]) -> FrozenSet[str]:
    """The variables that must not be set on this host, because of what it sets itself."""
    names = {name.removeprefix("OMPI_MCA_") for name, _, _ in settings(environ)}
    return frozenset(ours for theirs, ours in _CLASHES.items() if theirs in names)


def parameters(text: str) -> Iterator[Tuple[str, str]]:
    """Name and value of each line of a file of MCA parameters.

    As Open MPI's own reader takes them: `name = value`, where blanks around either do not count,
    and `#` or `//` at the start of a line begins a comment; behind a value it is part of that.
    Quotes around a value are not. Of a name that comes twice the last value counts.
    """
    found: Dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = (part.strip() for part in line.partition("="))
        if equals and name and " " not in name and not name.startswith(("#", "//")):
            found.pop(name, None)
            quoted = len(value) > 1 and value[0] == value[-1] == '"'
            found[name] = value[1:-1] if quoted else value
    yield from found.items()
