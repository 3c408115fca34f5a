"""Says what a container gets of the host on which its command is started.

It is not known before: on Slurm a container is prepared on a login node, and started on others.
"""

from __future__ import annotations

import os

from shanty.runtime import foreign, platform
from shanty.runtime.containers.container import ANY_GPUS, ARTIFACTS, Container, Mount
from shanty.runtime.containers.engines import RDMA
from shanty.runtime.gpus import gpus

# What a queue tells the agents, and which GPUs it gave.
_HANDED_ON = (
    "SHANTY_SLURM", "SHANTY_WARNING", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
    "ROCR_VISIBLE_DEVICES",
)  # fmt: skip
_FUSE = "/dev/fuse"


def with_this_host(container: Container) -> Container:
    """The container with this host's memory, GPUs, networks, folders, and a queue's variables."""
    here = [*foreign.of_allocation(os.environ), *(n for n in _HANDED_ON if n in os.environ)]
    wanted = container.gpus
    if wanted == ANY_GPUS:
        wanted = "all" if gpus() else ""
    return container._replace(
        mounts=tuple(_of_the_run(mount, container.run) for mount in container.mounts),
        shared_memory=platform.usable_memory() // 2,  # as a machine's own /dev/shm
        gpus=wanted,
        rdma=os.path.isdir(RDMA),
        unpack=has_to_unpack(container.engine),
        variables=tuple(dict.fromkeys((*container.variables, *here))),
    )


def _of_the_run(mount: Mount, run: str) -> Mount:
    """The mount with a folder of this host for its source, which is made if it is the run's."""
    if mount.source != ARTIFACTS:
        return mount
    folder = os.path.join(run, "artifacts")
    os.makedirs(folder, exist_ok=True)
    return mount._replace(source=folder)


def has_to_unpack(engine: str) -> bool:
    """True where this user may not mount an image file, so that it is unpacked at each start."""
    if engine != "apptainer" or os.getuid() == 0:
        return False
    try:
        os.close(os.open(_FUSE, os.O_RDWR))
    except OSError:
        return True
    return False
