"""PyTorch over MPI: the `mpi` backend of torch.distributed, and Horovod's API.

Importing this package gives the stock wheel the backend: `init_process_group("mpi")` works by that
name, with no MASTER_ADDR and no rank to pass. `backend` registers it; `group` holds the
collectives' public face; `shanty.collectives` runs them on MPI.

`import shanty.torch as hvd` is Horovod's API, all of it, which is in `hvd`. MPI starts with
`init_process_group` or with `hvd.init`, not with the import.
"""

import atexit
import gc
from typing import TYPE_CHECKING, Any

import torch

from shanty.collectives import call_sites
from shanty.torch import backend, ddp
from shanty.torch.work import CommunicationError as CommunicationError
from shanty.torch.work import CommunicationTimeoutError as CommunicationTimeoutError
from shanty.torch.work import MismatchError as MismatchError
from shanty.torch.work import MPIWork as MPIWork

if TYPE_CHECKING:
    from shanty.torch.hvd.api import *  # noqa: F403

_OWN = ("CommunicationError", "CommunicationTimeoutError", "MPIWork", "MismatchError")

backend.register()
ddp.register()
call_sites.hide(torch.__file__, __file__)


def __getattr__(name: str) -> Any:
    """Horovod's names, loaded when one is first used: for the backend alone none is needed."""
    if name == "elastic":  # takes as long to load as all the others
        import shanty.torch.elastic  # where `from` would ask this function again

        return shanty.torch.elastic
    if name != "__all__" and name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shanty.torch.hvd import api

    globals().update({each: getattr(api, each) for each in api.__all__})
    globals()["__all__"] = [*_OWN, *api.__all__, "elastic"]
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


# What PyTorch made when it was imported stays until the end: the collector need not look at it
# again. That takes a third of a second off the end of a rank, and something off every collection.
gc.freeze()


@atexit.register
def _thaw() -> None:
    """Let the last collection have all where nanobind is loaded, as it is with Triton.

    It prints a line for each of its objects that is left after that.
    """
    if any(each.__module__ == "nanobind" for each in type.__subclasses__(type)):
        gc.unfreeze()
