"""Finds the variables that a host had before a run and that do not belong to the run.

Login files and allocations leave variables that launchers obey: under SLURM_JOB_ID they take an
allocation's hosts and start their daemons by srun, whatever host file they are given. So launchers
do not see them; ranks do, since scripts may ask for them. Neither sees the place that an outer
launcher gave its own rank (PMI_RANK, PMIX_RANK). Settings of MPIs are left alone, as they may be
intended; they are named when a launch fails. Light, as every rank imports it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing itself takes ten milliseconds to import
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Mapping, MutableMapping

# Slurm, PBS, LSF, Grid Engine, Cobalt, OAR, LoadLeveler, Flux.
_ALLOCATION = ("SLURM_", "SLURMD_", "PBS_", "LSB_", "SGE_", "COBALT_", "OAR_", "LOADL_", "FLUX_")
_ALLOCATION_NAMES = ("PE_HOSTFILE", "JOB_ID", "ARC", "NSLOTS", "NHOSTS")
_OUTER = ("PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_", "HYDI_", "MPI_LOCAL")
_SETTINGS = (
    *("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "OPAL_", "PRTE_", "HYDRA_", "MPIEXEC_", "MPICH_"),
    *("MPIR_CVAR_", "I_MPI_", "UCX_", "FI_", "LD_PRELOAD", "PYTHON"),
)
PASSED = "SHANTY_ALLOCATION"  # hands an allocation's variables to ranks, past the launcher
_HARMLESS = ("PYTHON",)  # which keeps a Python from starting, but no launcher
_BETWEEN = "\x1f"  # between them
_MOST = 5  # settings that are named


def of_allocation(environ: Mapping[str, str]) -> Dict[str, str]:
    """Returns the variables of an allocation, which are for scripts only."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(_ALLOCATION) or name in _ALLOCATION_NAMES
    }


def for_launcher(environ: Mapping[str, str]) -> Dict[str, str]:
    """Returns the environment without what would mislead a launcher or its daemons."""
    taken = of_allocation(environ)
    return {
        name: value
        for name, value in environ.items()
        if name not in taken and (not name.startswith(_OUTER) or _is_setting(name))
    }


def pass_on(environ: Mapping[str, str]) -> Dict[str, str]:
    """Returns what a launcher hands to its ranks in place of an allocation's variables."""
    taken = of_allocation(environ)
    return {PASSED: _BETWEEN.join(f"{k}={v}" for k, v in taken.items())} if taken else {}


def take(environ: MutableMapping[str, str]) -> List[str]:
    """Sets for a rank what was passed on, and removes what leads nowhere; returns the libraries.

    They are those of LD_PRELOAD that do not exist.
    """
    passed = environ.pop(PASSED, "")
    for word in passed.split(_BETWEEN) if passed else ():
        name, _, value = word.partition("=")
        environ[name] = value
    home = environ.get("PYTHONHOME", "")
    if home and not os.path.isdir(home.partition(os.pathsep)[0]):
        del environ["PYTHONHOME"]  # no Python starts with it
    preload = environ.get("LD_PRELOAD", "")
    if preload:
        words = preload.replace(":", " ").split()
        there = [w for w in words if os.sep not in w or "$" in w or os.path.exists(w)]
        if len(there) < len(words):  # else every program complains; ld.so reads $LIB and the like
            environ["LD_PRELOAD"] = " ".join(there)
            return [word for word in words if word not in there]
    return []


def settings(environ: Mapping[str, str], ours: Iterable[str]) -> Dict[str, str]:
    """Returns the settings of MPIs and of Python in an environment, but for `ours`."""
    known = set(ours)
    return {
        name: value
        for name, value in sorted(environ.items())
        if _is_setting(name) and name not in known and value
    }


def _is_setting(name: str) -> bool:
    return name.startswith(_SETTINGS)


def told(found: Mapping[str, Mapping[str, str]]) -> str:
    """Describes what was set on hosts, by their names; "" where nothing was."""
    hosts: Dict[str, List[str]] = {}
    for host, values in sorted(found.items()):
        named = [
            f"{name}={value}"
            for name, value in values.items()
            if name == "PYTHONHOME" or not name.startswith(_HARMLESS)
        ]
        shown = named[:_MOST]
        more = f" and {len(named) - _MOST} more" if len(named) > _MOST else ""
        if shown:
            hosts.setdefault(", ".join(shown) + more, []).append(host)
    parts = [f"{words} on {', '.join(names)}" for words, names in hosts.items()]
    return f"set before the run, as by a login file: {'; '.join(parts)}" if parts else ""
