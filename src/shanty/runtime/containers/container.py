"""The container of a run on a host; plain values, as the plan keeps them.

What it gets of the host where it starts is not known before: on Slurm a container is prepared on a
login node, and started on others.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from pathlib import Path
from typing import Any, Dict, Mapping, NamedTuple, Tuple

from shanty.runtime import foreign_variables, platform
from shanty.runtime.gpus import gpus

READ_WRITE, READ_ONLY = "rw", "ro"
ANY_GPUS = "any"  # all that the host has, if any
ARTIFACTS = "run:artifacts"  # a source: the folder of what the run saves, on each host
RDMA = "/dev/infiniband"
# What the agents get from a queue, and the GPUs that it gave.
_HANDED_ON = (
    "SHANTY_SLURM", "SHANTY_WARNING", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
    "ROCR_VISIBLE_DEVICES",
)  # fmt: skip
_FUSE = "/dev/fuse"


class Mount(NamedTuple):
    """A file or folder of the host, and where a container has it; `mode` is "rw" or "ro"."""

    source: str
    target: str
    mode: str = READ_WRITE


class Container(NamedTuple):
    """A container on a host: one command of the engine starts it, and it ends with its command.

    `engine` is a key of `engines.ENGINES`, `program` the path of its command on the host. `image`
    is what the engine calls the image: an id, or the path of a file or folder. `name` is unique on
    the host, `run` the run's folder there. `user` is UID:GID inside, "" where the engine has the
    caller's; `groups` are its further groups. `shared_memory` is the size of /dev/shm in bytes, 0
    for what the engine gives. `gpus` is "all", or the numbers of some, "" for none; `rdma` adds the
    devices of such networks. `unpack` is true where an image file cannot be mounted. `variables`
    are those of the host's environment that are handed on, `environment` is set.

    What depends on the host where the command is started is settled there, by `with_this_host`;
    until then `gpus` may be ANY_GPUS, and the source of a mount ARTIFACTS.
    """

    engine: str
    program: str
    image: str
    name: str
    run: str
    user: str = ""
    groups: Tuple[int, ...] = ()
    mounts: Tuple[Mount, ...] = ()
    shared_memory: int = 0
    gpus: str = ""
    rdma: bool = False
    unpack: bool = False
    variables: Tuple[str, ...] = ()
    environment: Dict[str, str] = {}  # noqa: RUF012  never changed

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Container:
        """The container of what `_asdict` gave, from JSON; KeyError, TypeError for damage."""
        mounts = tuple(Mount(*mount) for mount in values["mounts"])
        tuples = {name: tuple(values[name]) for name in ("groups", "variables")}
        return cls(**{**values, **tuples, "mounts": mounts})

    def packed(self) -> str:
        """All of it as one word of a command line."""
        data = json.dumps(self._asdict()).encode()
        return base64.urlsafe_b64encode(zlib.compress(data, 9)).decode("ascii")

    @classmethod
    def unpacked(cls, word: str) -> Container:
        """The container of what `packed` made."""
        return cls.from_json(json.loads(zlib.decompress(base64.urlsafe_b64decode(word))))


def container_name(run_dir: Path) -> str:
    """The name of the container that has the node agent of a host's part of a run."""
    return f"shanty-{run_dir.name}"


def with_this_host(container: Container) -> Container:
    """The container with this host's memory, GPUs, networks, folders, and a queue's variables."""
    here = [
        *foreign_variables.of_allocation(os.environ),
        *(n for n in _HANDED_ON if n in os.environ),
    ]
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
        environment={**container.environment, **_cores(), platform.UMASK: f"{platform.umask():o}"},
    )


def _cores() -> Dict[str, str]:
    """The variable that keeps a container to the cores of this process, if these are not all.

    An engine's server starts containers, so they do not inherit them.
    """
    numbers = platform.cpu_numbers()
    few = numbers and numbers.count(",") + 1 < (os.cpu_count() or 1)
    return {platform.PROCESSORS: numbers} if few else {}


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
