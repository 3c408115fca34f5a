"""Makes `init_process_group("mpi")` work in a script that does not import shanty.torch.

Loaded by path, as all that is in a rank, once the script has imported torch.distributed. It costs
nothing more until a group asks for the backend; then shanty.torch is imported, and does the rest.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BACKEND = 3  # which of the arguments of `_new_process_group_helper` it is


def offer(c10d: Any, *_: object) -> None:
    """Make `mpi` an available backend; a PyTorch that was built with MPI keeps its own."""
    helper = getattr(c10d, "_new_process_group_helper", None)
    if getattr(c10d, "_MPI_AVAILABLE", True) or helper is None:
        return

    def with_mpi(*args: Any, **kwargs: Any) -> Any:
        backend = kwargs.get("backend", args[_BACKEND] if len(args) > _BACKEND else "")
        if "mpi" in str(backend) and "shanty.torch" not in sys.modules:
            importlib.import_module("shanty.torch")
            return c10d._new_process_group_helper(*args, **kwargs)  # which it has replaced
        return helper(*args, **kwargs)

    c10d._new_process_group_helper = with_mpi
    c10d._MPI_AVAILABLE = True
