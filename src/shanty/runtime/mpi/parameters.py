"""Knows the settings of MPIs: MCA parameters of Open MPI, and what a host sets beside a run.

Open MPI 4 and 5 name some parameters differently. A name of the other version is not an error to
them: it is silently ignored, and the job runs on one host, or bound, or otherwise not as intended.
"""

from __future__ import annotations

import contextlib
import glob
import os
from typing import Dict, FrozenSet, Iterator, Mapping, Tuple

# Frameworks of the runtime, which in Open MPI 5 is PRRTE and wants --prtemca; and of PMIx.
RUNTIME_FRAMEWORKS = frozenset((
    "dfs", "errmgr", "ess", "filem", "grpcomm", "iof", "odls", "oob", "orte", "plm", "prte",
    "propagate", "ras", "rmaps", "rml", "routed", "rtc", "schizo", "snapc", "state",
))  # fmt: skip
PMIX_FRAMEWORKS = frozenset((
    "bfrops", "gds", "pcompress", "pfexec", "pif", "pinstalldirs", "plog", "pmdl", "pnet", "preg",
    "prm", "psec", "psensor", "psquash", "pstat", "pstrg", "ptl",
))  # fmt: skip

# The names of Open MPI 4 and 5 for the same thing; the runtime's prefix apart.
_OF_SSH = ("agent", "args", "no_tree_spawn", "num_concurrent", "pass_environ_mca_params",
           "pass_path", "pass_libpath")  # fmt: skip
_PAIRS = (
    *((f"plm_rsh_{name}", f"plm_ssh_{name}") for name in _OF_SSH),
    ("oob_tcp_if_exclude", "prte_if_exclude"),
    ("btl_vader_backing_directory", "btl_sm_backing_directory"),
)
_TO_5 = dict(_PAIRS)
_TO_4 = {new: old for old, new in _PAIRS}

# Parameters that say what an option says: translated as that option.
AS_OPTIONS = {
    "orte_default_hostfile": "hostfile",
    "prte_default_hostfile": "hostfile",
    "rmaps_base_mapping_policy": "map-by",
    "rmaps_default_mapping_policy": "map-by",
    "rmaps_base_ranking_policy": "rank-by",
    "rmaps_default_ranking_policy": "rank-by",
    "hwloc_base_binding_policy": "bind-to",
    "hwloc_default_binding_policy": "bind-to",
    "rmaps_base_oversubscribe": "oversubscribe",
}
TRUE = frozenset(("1", "true", "yes", "on", "enabled"))

# Which interface the launcher and the ranks talk over.
LAUNCH_INTERFACES = frozenset(("oob_tcp_if_include", "prte_if_include"))
RANK_INTERFACES = frozenset(("btl_tcp_if_include",))
SSH_PROGRAM = frozenset(("plm_rsh_agent", "plm_ssh_agent", "orte_rsh_agent"))
SSH_ARGUMENTS = frozenset(("plm_rsh_args", "plm_ssh_args"))

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


def renamed(name: str, runtime: str) -> str:
    """Returns a parameter's name for the runtime "orte" (Open MPI 4) or "prte" (Open MPI 5)."""
    name = (_TO_5 if runtime == "prte" else _TO_4).get(name, name)
    other = "orte_" if runtime == "prte" else "prte_"
    return f"{runtime}_{name[len(other) :]}" if name.startswith(other) else name


def value_for(name: str, value: str, runtime: str) -> str:
    """Returns a parameter's value there: shared memory is `vader` in Open MPI 4 and `sm` in 5.

    Open MPI 5 still takes the old name; 4.1 fails at the new one.
    """
    if name != "btl" or runtime != "orte":
        return value
    inverted = "^" if value.startswith("^") else ""
    parts = ["vader" if part == "sm" else part for part in value.lstrip("^").split(",")]
    return inverted + ",".join(parts)


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
