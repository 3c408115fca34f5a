"""Puts the MPI of a run onto every host, once: named by its content, so the next run sends none."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shanty.launch.cluster import content_store
from shanty.launch.cluster.content_store import Package, put_tree
from shanty.launch.cluster.parallel import Progress, side_by_side
from shanty.launch.cluster.platforms import own_tag, wheel_tags
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.runtime.errors import PrepareError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.rpc.store import machine


def place_mpi(
    clients: Sequence[RpcClient], installation: Installation, home: Path, progress: Progress
) -> dict[str, Installation]:
    """The MPI of this machine on every host: where it lies there, by the host's name.

    What shanty or pip installed is sent where it is missing; the system's own has to be there
    in the same version. `home` is shanty's folder here. Raises PrepareError, with the host.
    """
    if installation.origin == "system":
        return side_by_side(clients, lambda client: _find(client, installation))
    found = _mpi_package(installation, home)

    def place(client: RpcClient) -> Installation:
        path = put_tree(client, "mpi", found, progress)
        launcher, library = (
            str(Path(path, os.path.relpath(one, installation.prefix)))
            for one in (installation.launcher, installation.library)
        )
        moved = {"prefix": path, "launcher": launcher, "library": library, "origin": "shanty"}
        return replace(installation, **moved)

    return side_by_side(clients, place)


def look_for(client: RpcClient, installation: Installation) -> dict[str, Any]:
    """A host's own installations of an MPI that is not brought, as the verb `mpi-find` tells it."""
    names = ("launcher", "flavour", "version")
    return client.ask("mpi-find", **{name: getattr(installation, name) for name in names}).values


def _find(client: RpcClient, installation: Installation) -> Installation:
    answer = look_for(client, installation)
    if answer["found"]:
        return Installation(**answer["found"])
    title = FLAVOURS[installation.flavour].title
    there = [f"{FLAVOURS[x['flavour']].title} {x['version']}" for x in answer["there"]]
    raise PrepareError(
        f"{client.host.name} does not have {title} {installation.version}",
        f"it is a package of the system here ({installation.prefix}), so shanty does not send it; "
        f"{client.host.name} has {' and '.join(there) or 'no MPI'}",
        f"--mpi openmpi takes the one that shanty brings along, or install {title} "
        f"{installation.version} on {client.host.name}",
    )


def tags_of(installation: Installation) -> tuple[str, ...]:
    """The platform tags of an MPI: where it runs when it is brought there."""
    info = _dist_info(installation)
    return (own_tag(machine()),) if info is None else wheel_tags(info)


def _mpi_package(installation: Installation, home: Path) -> Package:
    """The files of an MPI that pip installed, alone in its prefix or beside an interpreter."""
    root = Path(installation.prefix)
    title = f"{FLAVOURS[installation.flavour].title} {installation.version}"
    info = _dist_info(installation)
    files = content_store.all_files(root) if info is None else content_store.recorded(root, info)
    if not files:
        raise PrepareError(f"{title} at {root} has no files", fix="shanty mpi install again")
    return replace(content_store.package(title, root, files, home), tags=tags_of(installation))


def _dist_info(installation: Installation) -> Path | None:
    requirement = FLAVOURS[installation.flavour].requirement
    name = re.split(r"[^\w-]", requirement)[0].replace("-", "_")
    for kind in ("site-packages", "dist-packages"):
        for info in Path(installation.prefix).glob(f"lib*/python3*/{kind}/{name}-*.dist-info"):
            if (info / "RECORD").is_file():
                return info
    return None
