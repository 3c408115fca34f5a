"""Reads what MPIs are told on a host beside a run: by files of parameters, and by a login."""

from __future__ import annotations

import contextlib
import glob
import os
from typing import Dict, FrozenSet, Iterator, Mapping, Tuple

from shanty.runtime.mpi.mca import LAUNCH_INTERFACES, RANK_INTERFACES, SSH_PROGRAM

# Where they read settings, besides their own prefix.
_PROJECTS = ("openmpi", "prte", "pmix")
_FILES = (
    *(f"~/.{name}/mca-params.conf" for name in _PROJECTS),
    *(f"/etc/{name}*/{name}-mca-params.conf" for name in _PROJECTS),
)
_MCA = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")  # before a parameter's name in a variable
_VARIABLES = (
    *(*_MCA, "I_MPI_", "HYDRA_", "MPIR_CVAR_", "MPICH_"),
    *("UCX_", "FI_", "NCCL_SOCKET_", "GLOO_SOCKET_"),
)
_LONGEST = 1 << 20  # bytes of a file of settings
# Beside the parameter on the left, wherever that is set and whatever it says, Open MPI refuses
# the variable on the right and does without TCP (opal's mca_base_var_check_exclusive).
_CLASHES: Mapping[str, str] = {"btl_tcp_if_exclude": "OMPI_MCA_btl_tcp_if_include"}

# What the settings say that can break a run, by their `plain` names.
MEANINGS: Mapping[str, str] = {
    **dict.fromkeys((*LAUNCH_INTERFACES, "ptl_tcp_if_include"), "launcher's interfaces"),
    **dict.fromkeys(("I_MPI_HYDRA_IFACE", "HYDRA_IFACE"), "launcher's interfaces"),
    **dict.fromkeys(RANK_INTERFACES, "ranks' interfaces"),
    **dict.fromkeys(("FI_TCP_IFACE", "GLOO_SOCKET_IFNAME"), "ranks' interfaces"),
    "NCCL_SOCKET_IFNAME": "NCCL's interfaces",
    "UCX_NET_DEVICES": "UCX's devices",
    "btl_tcp_if_exclude": "excluded interfaces",
    "btl": "Open MPI's transports",
    "I_MPI_FABRICS": "Intel MPI's transports",
    "FI_PROVIDER": "libfabric's provider",
    "I_MPI_OFI_PROVIDER": "libfabric's provider",
    "UCX_TLS": "UCX's transports",
    **dict.fromkeys(SSH_PROGRAM, "ssh program"),
    "plm": "launcher's way",
    "I_MPI_HYDRA_BOOTSTRAP": "launcher's way",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC": "ssh program",
    "HYDRA_LAUNCHER": "launcher's way",
    "HYDRA_LAUNCHER_EXEC": "ssh program",
}
# The flavours whose runs a harmful value breaks in spite of shanty's own settings.
BREAKS: Mapping[str, Tuple[str, ...]] = {
    **dict.fromkeys((*SSH_PROGRAM, "plm"), ("openmpi5", "openmpi4")),
    **dict.fromkeys(("I_MPI_HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP_EXEC"), ("intel",)),
    **dict.fromkeys(("HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC", "UCX_TLS"), ("mpich",)),
    **dict.fromkeys(("FI_PROVIDER", "I_MPI_OFI_PROVIDER"), ("intel",)),
}


def plain(name: str) -> str:
    """Returns a setting's name without what makes a variable of a parameter."""
    return next((name[len(mca) :] for mca in _MCA if name.startswith(mca)), name)


def settings(environ: Mapping[str, str]) -> Iterator[Tuple[str, str, str]]:
    """Yields name, value and place of each setting; the place is a file, or "" for `environ`."""
    for pattern in _FILES:
        for path in sorted(glob.glob(os.path.expanduser(pattern))):
            with contextlib.suppress(OSError), open(path, errors="replace") as file:
                for name, value in parameters(file.read(_LONGEST)):
                    yield name, value, path
    for name in sorted(environ):
        if name.startswith(_VARIABLES):
            yield name, environ[name], ""


def overruling(environ: Mapping[str, str]) -> FrozenSet[str]:
    """Returns the variables that must not be set on this host, because of what it sets itself."""
    names = {name.removeprefix("OMPI_MCA_") for name, _, _ in settings(environ)}
    return frozenset(ours for theirs, ours in _CLASHES.items() if theirs in names)


def parameters(text: str) -> Iterator[Tuple[str, str]]:
    """Yields name and value of each line of a file of MCA parameters.

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
