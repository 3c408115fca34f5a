"""Reads what a launcher tells a process of its place; light, as every rank imports it."""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes ten milliseconds to import
if TYPE_CHECKING:
    from typing import Mapping

# Open MPI's own come first: under it a nested Hydra would set PMI_* for its children anew,
# but Open MPI does not clear PMI_* that it inherits.
RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """Returns the first of the variables `names` that holds a number; None when none does."""
    for name in names:
        value = environ.get(name, "")
        if value.isdigit():
            return int(value)
    return None
