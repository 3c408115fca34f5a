"""Somebody's MPIJob, run on this machine in a container of its image."""

from __future__ import annotations

import os

import pytest

import mpijobs
from engines import INTEL, MPICH, OPENMPI, ContainedShanty, long_only


@long_only
@pytest.mark.parametrize(
    ("image", "implementation", "version"),
    [
        (OPENMPI, "OpenMPI", "v2beta1"),
        (OPENMPI, "OpenMPI", "v1"),
        (MPICH, "MPICH", "v2beta1"),
        (INTEL, "Intel", "v2beta1"),
    ],
)
def test_an_mpijob_here(
    shanty: ContainedShanty, image: str, implementation: str, version: str
) -> None:
    if shanty.engine.name == "apptainer":
        pytest.skip("its images are folders, and a manifest names one of a registry")
    shanty.engine.load(image)
    file = mpijobs.write(shanty.folder, implementation, image, version=version)
    done = shanty("run", "--runtime", shanty.engine.name, "-f", file)
    assert done.returncode == 0, done.stderr
    assert mpijobs.hosts_of(done.stdout) == [os.uname().nodename]
