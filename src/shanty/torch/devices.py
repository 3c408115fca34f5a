"""Tensors on GPUs: through NCCL, by a CUDA-aware MPI, or by way of pinned host memory.

The first of the three that all ranks can take is chosen when the first group is formed, and rank 0
prints it; SHANTY_CUDA=nccl, aware or staged asks for one. Importing this module starts MPI.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import Enum
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed import distributed_c10d as c10d

from shanty.torch.kernels import KERNELS
from shanty.torch.messages import Message
from shanty.torch.store import serve
from shanty.torch.work import Body

P = ParamSpec("P")


class Way(Enum):
    """The ways for CUDA tensors."""

    NCCL = "nccl"
    AWARE = "aware"
    STAGED = "staged"


SAID = {
    Way.NCCL: "through NCCL, which MPI's ranks bring together",
    Way.AWARE: "by MPI itself, which is CUDA-aware",
    Way.STAGED: "by MPI, by way of pinned host memory",
}


class Gpus:
    """The agreement of a communicator's ranks on their GPUs. Collective to make.

    way: None where no rank has a GPU. store: for NCCL's ranks to find each other.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        facts = comm.allgather(_facts())
        self.way = choose(facts, os.environ.get("SHANTY_CUDA", ""))
        self.store = serve(comm) if self.way is Way.NCCL else None
        KERNELS.aware = self.way is Way.AWARE
        if self.way is not None and comm.rank == 0:
            print(f"shanty.torch: CUDA tensors go {SAID[self.way]}.", file=sys.stderr, flush=True)

    def nccl(
        self, name: str, identity: Sequence[int], rank: int, size: int, limit: float
    ) -> dist.ProcessGroup:
        """Make a group of NCCL for the ranks of a group; `identity` is the same on all, and no
        other's ever, unlike its name.
        """
        assert self.store is not None
        prefix = "-".join(map(str, identity))
        store = c10d.PrefixStore(f"nccl/{prefix}/", self.store)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=limit)
        backend = dist.ProcessGroupNCCL(store, rank, size, options)
        group = dist.ProcessGroup(store, rank, size)
        group._set_default_backend(dist.ProcessGroup.BackendType.NCCL)
        group._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, backend)
        group._set_group_name(name)  # type: ignore[arg-type]  # 2.7 lacks GroupName
        return group


Facts = tuple[str, frozenset[str], bool, bool]
"""Of a rank: its host, the GPUs it may use, whether it has NCCL, whether its MPI is CUDA-aware."""


def choose(facts: Sequence[Facts], asked: str) -> Way | None:
    """Choose the way for ranks with these facts: NCCL needs a GPU for each rank of a host.

    Raises ValueError when `asked` names none of the ways.
    """
    if not any(gpus for _, gpus, _, _ in facts):
        return None
    if asked:
        if asked not in {way.value for way in Way}:
            raise ValueError(f"SHANTY_CUDA={asked}: must be one of nccl, aware, staged.")
        return Way(asked)
    enough = True
    for host in {host for host, *_ in facts}:
        here = [gpus for name, gpus, _, _ in facts if name == host]
        enough = enough and all(here) and len(frozenset().union(*here)) >= len(here)
    if enough and all(nccl for _, _, nccl, _ in facts):
        return Way.NCCL
    return Way.AWARE if all(aware for *_, aware in facts) else Way.STAGED


def routed(
    method: Callable[Concatenate[Any, P], dist.Work], name: str
) -> Callable[Concatenate[Any, P], dist.Work]:
    """Return the method of this name, which leaves CUDA tensors to NCCL where that is the way."""

    @wraps(method)
    def call(group: Any, *args: P.args, **kwargs: P.kwargs) -> dist.Work:
        if any(map(_on_gpu, args)):
            nccl = group.nccl()
            if nccl is not None:
                done: dist.Work = getattr(nccl, name)(*args, **kwargs)
                return done
        return method(group, *args, **kwargs)

    return call  # type: ignore[return-value]


def ordered(body: Body, tensors: Sequence[torch.Tensor]) -> tuple[Body, Callable[[], None] | None]:
    """Return `body`, complete only when the GPU is done with it; and what returns when the caller's
    stream has come so far that it may be run, to be called before others are kept waiting.

    For tensors in host memory it is `body` itself and None.
    """
    device = next((each.device for each in tensors if each.is_cuda), None)
    if device is None:
        return body, None
    before = torch.cuda.current_stream(device).record_event()

    def run() -> Message | None:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            message = body()
            stream.synchronize()
        if message is not None:
            complete = message.complete

            def settled(statuses: Sequence[MPI.Status]) -> int:
                with torch.cuda.stream(stream):
                    source = complete(statuses)
                    stream.synchronize()
                return source

            message.complete = settled
        return message

    return run, before.synchronize


def _on_gpu(argument: object) -> bool:
    while isinstance(argument, (list, tuple)):
        if not argument:
            return False
        argument = argument[0]
    return isinstance(argument, torch.Tensor) and argument.is_cuda


def _facts() -> Facts:
    gpus: frozenset[str] = frozenset()
    if torch.version.cuda and torch.cuda.is_available():
        devices = range(torch.cuda.device_count())
        gpus = frozenset(str(torch.cuda.get_device_properties(each).uuid) for each in devices)
    return os.uname().nodename, gpus, bool(gpus) and dist.is_nccl_available(), _is_aware()


def _is_aware() -> bool:
    if os.environ.get("I_MPI_OFFLOAD", "0") not in ("", "0"):  # Intel MPI has no call to ask
        return True
    library = ctypes.CDLL(None)
    ask = getattr(library, "MPIX_Query_cuda_support", None)  # Open MPI
    if ask is not None:
        return bool(ask())
    ask = getattr(library, "MPIX_GPU_query_support", None)  # MPICH
    if ask is None:
        return False
    cuda, answer = 0, ctypes.c_int()  # MPIX_GPU_SUPPORT_CUDA
    return ask(cuda, ctypes.byref(answer)) == 0 and bool(answer.value)
