"""A group's answers to torch apart from communication: names, capabilities, time limit."""

# mypy: disable-error-code="override"

from __future__ import annotations

from datetime import timedelta
from operator import attrgetter
from types import CodeType

import torch
import torch.distributed as dist


class Identity(dist.ProcessGroup):
    """The answers of every group of the mpi backend.

    torch's C++ base class would look for them in a C++ backend, which such a group lacks.
    """

    def __init__(self, rank: int, size: int, limit: float) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._name = ""
        self._desc = "undefined"
        self._limit = limit
        self._operations = 0
        self.splits = 0  # calls of split_group, the same number on all ranks

    def __str__(self) -> str:
        return f"group {self._name or '?'}, rank {self.rank()} of {self.size()}"

    def name(self) -> str:
        """The backend's name."""
        return "mpi"

    getBackendName = _get_backend_name = name  # noqa: N815

    group_name = property(attrgetter("_name"), doc="torch's name of the group.")
    group_desc = property(attrgetter("_desc"), doc="torch's description of the group.")

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Return when all ranks have called it; raises an error that names those that did not."""
        raise NotImplementedError

    supports_splitting = supports_coalescing = supports_time_estimate = False
    supports_abort_hooks = supports_completion_hooks = False
    supports_reconfigure = supports_window = False

    def _has_hooks(self) -> bool:
        return False

    def _get_sequence_number_for_group(self) -> int:
        return self._operations

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to agree on: MPI keeps the order of each communicator."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long a wait without a limit of its own lasts, from the next operation on."""
        self._limit = timeout.total_seconds()

    _set_default_timeout = set_timeout


def skip_when_compiling(code: CodeType) -> None:
    """Keep torch.compile from tracing this function and what it calls, as it does any Python that
    compiled code comes upon. Without importing the compiler, which takes long.
    """
    frames = torch._C._dynamo.eval_frame
    strategy = getattr(frames, "_FrameExecStrategy", None)
    if strategy is not None:
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(code, strategy(skip, skip))
