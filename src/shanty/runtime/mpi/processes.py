"""Knows the processes of launchers: daemons by their names, and ranks by their variables.

Light, as every rank and what stands in for ssh import it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes ten milliseconds to import
if TYPE_CHECKING:
    from typing import Mapping, MutableMapping

# What a launcher has started on other hosts, through ssh.
DAEMONS = ("prted", "orted", "hydra_pmi_proxy", "hydra_bstrap_proxy")
_OWN = ("prte", "orte", "hydra_", "mpi")

# The variables that hold a rank's place. Open MPI's own come first: under it a nested Hydra
# would set PMI_* again for its children, but Open MPI does not clear the PMI_* that it inherits.
# Those of the user's own srun come before all of them: other variables may be of a run around it.
STEP_PLACE = ("SHANTY_STEP_RANK", "SHANTY_STEP_SIZE", "SHANTY_STEP_LOCAL", "SHANTY_STEP_LOCALS")
RANK = ("SHANTY_STEP_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
SIZE = ("SHANTY_STEP_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_RANK = ("SHANTY_STEP_LOCAL", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
LOCAL_SIZE = ("SHANTY_STEP_LOCALS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
# What ranks find under every MPI, since scripts that were written for another one ask for it. Not
# PMIX_RANK, which keeps MPICH's singletons from starting, nor SLURM_PROCID, by which frameworks
# assume a job of Slurm.
_EVERYWHERE = (RANK[1:3], SIZE[1:], LOCAL_RANK[1:], LOCAL_SIZE[1:])

# What leads a program to its launcher: without it MPI_Init makes a world of one process. What says
# the place of a rank is not among it. Open MPI 4.1 would start a daemon then, unless a variable
# forbids it; Intel MPI 2021.18 alone with the settings of its ranks damages Python's memory.
_CONNECTION = (
    *("PMIX_", "PMI_", "HYDI_", "OMPI_MCA_orte_", "OMPI_MCA_ess", "OMPI_MCA_pmix"),
    *("OMPI_MCA_prte_", "PRTE_MCA_", "I_MPI_PIN", "I_MPI_FABRICS"),
)
_ALONE = {"OMPI_MCA_ess_singleton_isolated": "1"}
# Where a launcher's line has the output of ranks written besides: the folder for a file of each, or
# the one file for all. `rank/redirect.py` reads them.
OUTPUT_FILES, OUTPUT_LINES = "SHANTY_OUTPUT_FILES", "SHANTY_OUTPUT_LINES"
_SESSIONS = "PMIX_SERVER_TMPDIR"  # of the launcher; removed with the run


def of_step(words: list[str]) -> dict[str, str]:
    """Returns a rank's place in the names of RANK and the like.

    `words` are what srun sets: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NODEID and
    SLURM_STEP_TASKS_PER_NODE (`2(x3),1`).
    """
    rank, size, local, node, tasks = words[:5]
    counts: list[int] = []
    for part in tasks.split(","):
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    local_size = counts[int(node)] if int(node) < len(counts) else 1
    return dict(zip(STEP_PLACE, (rank, size, local, str(local_size))))


def place_everywhere(rank: int, size: int, local: int, local_size: int) -> dict[str, str]:
    """Returns a rank's place in the names that the launchers of all MPIs use."""
    values = (rank, size, local, local_size)
    return {name: str(value) for names, value in zip(_EVERYWHERE, values) for name in names}


def leave_launcher(environ: MutableMapping[str, str]) -> dict[str, str]:
    """Changes an environment such that MPI_Init makes a world of one process, a singleton.

    Returns what is to be set while that goes on: Open MPI 5 leaves a singleton's session folder
    behind, in TMPDIR.
    """
    during = {"TMPDIR": environ[_SESSIONS]} if _SESSIONS in environ else {}
    for name in [name for name in environ if name.startswith(_CONNECTION)]:
        del environ[name]
    if "OMPI_COMM_WORLD_RANK" in environ:
        environ.update(_ALONE)
    return during


def singleton_settings(environ: Mapping[str, str], folder: str) -> dict[str, str]:
    """Returns what is to be set while MPI_Init makes a singleton without a clean-up afterwards.

    Open MPI 5 leaves its session folder in TMPDIR, here `folder`, and its shared memory in /dev/shm
    (https://github.com/open-mpi/ompi/issues/13261); a singleton needs none of it.
    """
    return {"TMPDIR": folder, "OMPI_MCA_btl": environ.get("OMPI_MCA_btl", "^sm")}


def is_launchers(name: str) -> bool:
    """Returns True for the file name of a launcher or of one of its daemons."""
    return name.startswith(_OWN)


def number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """Returns the first of the variables `names` that holds a number; None when none does."""
    for name in names:
        value = environ.get(name, "")
        if value.isdigit():
            return int(value)
    return None
