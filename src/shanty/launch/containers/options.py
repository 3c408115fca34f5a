"""Reads what the options of containers say, and whether they may be given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from shanty.launch.user_path import user_path
from shanty.runtime.errors import PrepareError, UsageError
from shanty.runtime.spec import JobSpec, Module, Script

IMAGE_MPI = "image"  # the value of --mpi that takes the image's own


def image(text: str, folder: Path) -> str:
    """Read the name of an image, or the path of an image file, below `folder` if relative."""
    from shanty.runtime.containers.engines import is_image_file  # most runs have no image

    return _absolute(text, folder) if is_image_file(text) else text


def mount(text: str, folder: Path) -> tuple[str, str, str]:
    """Read SRC:DST or SRC:DST:ro, with SRC below `folder` where it is relative.

    SRC may be pvc:NAME, a claim of volumes in Kubernetes, or run:artifacts, the run's own folder.
    """
    parts = text.split(":")
    mode = parts.pop() if len(parts) > 2 and parts[-1] in ("ro", "rw") else "rw"
    kind = parts.pop(0) if parts[0] in ("pvc", "run") and len(parts) == 3 else ""
    own = kind == "run" and parts[0] != "artifacts"
    if len(parts) != 2 or not all(parts) or own:
        raise UsageError(f"invalid mount {text!r}", fix="write --mount SRC:DST or SRC:DST:ro")
    source, target = parts
    if not target.startswith("/"):
        raise UsageError(
            f"--mount {text}: {target} is not absolute", fix="a container has no folder to start at"
        )
    source = f"{kind}:{source}" if kind else _absolute(source, folder)
    return source, os.path.normpath(target), mode


def _absolute(path: str, folder: Path) -> str:
    return os.path.normpath(folder / user_path(path))


def refuse_outside(job: JobSpec, *, pods: bool = False) -> None:
    """UsageError where options of a container are given, and no image; or claims, without pods."""
    claims = [source for source, _, _ in job.mounts if source.startswith("pvc:")]
    if claims and not pods:
        raise UsageError(
            f"--mount {claims[0]} is for Kubernetes", fix="add --on k8s, or mount a folder: SRC:DST"
        )
    if job.image is not None:
        return
    given = {
        "--runtime": job.runtime, "--mount": job.mounts, "--gpus": job.gpus,
        "--master-image": job.master_image, "--registry-user": job.registry_user,
        "--registry-password": job.registry_password,
    }  # fmt: skip
    named = [name for name, value in given.items() if value]
    if named:
        raise UsageError(
            f"{named[0]} is for containers, and --image is not given",
            fix=f"add --image IMAGE, or leave {named[0]} out",
        )
    if job.mpi == IMAGE_MPI:
        raise UsageError(f"--mpi {IMAGE_MPI} takes the MPI of an image, and --image is not given")


def refuse_without_python(job: JobSpec, pythons: Sequence[str]) -> None:
    """PrepareError where a Python script is to run in an image without Python ("")."""
    if not all(pythons) and isinstance(job.command, (Script, Module)):
        raise PrepareError(
            f"the image {job.image} has no Python of version 3.9 or newer",
            "a Python script needs one; compiled programs do not",
            "take an image that has it, as python:3.12-slim",
        )
