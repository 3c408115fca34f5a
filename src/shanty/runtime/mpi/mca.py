"""Lists the MCA parameters that Open MPI 4 and 5 name differently, and what Hydra has instead.

A name of the other version is not an error to Open MPI: it is ignored without a word, and the
job runs on one host, or bound, or not as it was meant to.
"""

from __future__ import annotations

from typing import Tuple

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
}
OVERSUBSCRIBE = "rmaps_base_oversubscribe"
TRUE = frozenset(("1", "true", "yes", "on", "enabled"))

# Which interface the launcher and the ranks talk over.
LAUNCH_INTERFACES = frozenset(("oob_tcp_if_include", "prte_if_include"))
RANK_INTERFACES = frozenset(("btl_tcp_if_include",))
SSH_PROGRAM = frozenset(("plm_rsh_agent", "plm_ssh_agent", "orte_rsh_agent"))
SSH_ARGUMENTS = frozenset(("plm_rsh_args", "plm_ssh_args"))


def is_option(name: str) -> bool:
    """Returns True for a parameter that is translated as an option."""
    return name in AS_OPTIONS or name == OVERSUBSCRIBE


def framework(name: str) -> str:
    """Returns the part of a parameter's name before its first underscore."""
    return name.split("_", 1)[0]


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


def names_interfaces(value: str) -> Tuple[str, ...]:
    """Returns the interfaces of a comma-separated list; those given as networks are left out."""
    return tuple(part for part in value.split(",") if part and "/" not in part)
