"""Faults of a host itself: its disks, limits, clock, settings, and what was asked of it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from faults_case import Fault, table
from faults_world import OWN, World

HOSTS: list[Fault] = []
fault = table(HOSTS)

# A lab has the clock of the machine, so a library gives programs another time. It is compiled on
# the machine of the tests.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
#define AHEAD 3000
int clock_gettime(clockid_t which, struct timespec *found) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(which, found);
    if (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE) found->tv_sec += AHEAD;
    return code;
}
int gettimeofday(struct timeval *found, void *zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(found, zone);
    found->tv_sec += AHEAD;
    return code;
}
time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""


def _place(world: World, host: str) -> str:
    """The home of a host, as the host knows it."""
    return world.member(host).home


@fault("its home is mounted read-only", "home-readonly", "lab2")
def read_only_home(world: World) -> Iterator[None]:
    home = _place(world, "lab2")
    with world.console_pair(
        "lab2", f"mount -o remount,bind,ro {home}", f"mount -o remount,bind,rw {home}"
    ):
        yield


@fault("its home does not exist", "home-readonly", "lab2", runs=True)
def no_home(world: World) -> Iterator[None]:
    keys = "AuthorizedKeysFile /srv/lab2/home/.ssh/authorized_keys"
    gone = ("/srv/lab2/home:", "/nowhere/home:")
    with (
        world.text(world.own("lab2", "etc/passwd"), lambda text: text.replace(*gone, 1)),
        world.sshd("lab2", keys),
    ):
        yield
        assert world.console("lab2", "ls -d /nowhere 2>/dev/null || echo none") == "none\n"


@fault("the disk of its home is full", "disk-full", "lab2", runs=True)
def full_disk(world: World) -> Iterator[None]:
    fill = "dd if=/dev/zero of=filler bs=64k 2>/dev/null || true"
    with world.memory_disk("lab2", _place(world, "lab2"), "size=2m,mode=700", fill):
        yield


@fault("its home is mounted noexec", "home-noexec", "lab2", runs=True)
def noexec_home(world: World) -> Iterator[None]:
    with world.memory_disk("lab2", _place(world, "lab2"), "noexec,mode=700"):
        yield


def _spoilt(world: World, spoil: str) -> AbstractContextManager[None]:
    """A file of the MPI that shanty has put on lab2, changed by a script of sh."""
    files = f"{_place(world, 'lab2')}/.shanty/store/mpi/*/bin/prted"
    do = f"cp -a {files} /run/whole; set -- {files}; {spoil}"
    return world.console_pair("lab2", do, f"set -- {files}; cp -a /run/whole $1; rm /run/whole")


_NO_STORE = "brings nothing to a host"


@fault(
    "a file that shanty installed there is empty",
    "store-damaged", "lab2", level="warning", bare=_NO_STORE,
)  # fmt: skip
def emptied_file(world: World) -> Iterator[None]:
    with _spoilt(world, ": >$1"):
        yield


@fault(
    "bits of a file that shanty installed there have flipped",
    "store-damaged", "lab2", level="warning", bare=_NO_STORE,
)  # fmt: skip
def flipped_bits(world: World) -> Iterator[None]:
    with _spoilt(world, "printf damaged | dd of=$1 bs=1 seek=4096 conv=notrunc 2>/dev/null"):
        yield


@fault("the disk of its home has no inodes left", "inodes-full", "lab2")
def no_inodes(world: World) -> Iterator[None]:
    fill = "mkdir many; for i in $(seq 100); do touch many/$i 2>/dev/null || break; done"
    with world.memory_disk("lab2", _place(world, "lab2"), "nr_inodes=64,mode=700", fill):
        yield


@fault("everybody may write in its home", "home-open", "lab2", level="warning")
def open_home(world: World) -> Iterator[None]:
    with world.mode(world.lab.home("lab2"), 0o777):
        yield


@fault("/tmp is full", "tmp-full", "lab2")
def full_tmp(world: World) -> Iterator[None]:
    fill = "dd if=/dev/zero of=filler bs=64k 2>/dev/null || true"
    with world.memory_disk("lab2", "/tmp", "size=1m,mode=1777", fill):
        yield


@fault("/tmp is mounted noexec", "tmp-noexec", "lab2", level="warning")
def noexec_tmp(world: World) -> Iterator[None]:
    with world.memory_disk("lab2", "/tmp", "noexec,mode=1777"):
        yield


@fault("/dev/shm is as small as in a container", "shm-small", "lab2", level="warning")
def small_shm(world: World) -> Iterator[None]:
    with world.memory_disk("lab2", "/dev/shm", "size=1m,mode=1777"):
        yield


@fault("/dev/shm is full", "shm-full", "lab2")
def full_shm(world: World) -> Iterator[None]:
    fill = "dd if=/dev/zero of=filler bs=64k 2>/dev/null || true"
    with world.memory_disk("lab2", "/dev/shm", "size=64m,mode=1777", fill):
        yield


def _limited(world: World, limit: str):  # type: ignore[no-untyped-def]
    """Every login on lab2 is under another limit, as a profile or pam_limits may have it."""
    return world.login_through("lab2", f"ulimit {limit}")


@fault("a process may open 64 files", "files-limit", "lab2", level="warning")
def few_files(world: World) -> Iterator[None]:
    with _limited(world, "-n 64"):
        yield


@fault("the user may have 60 processes", "processes-limit", "lab2", level="warning")
def few_processes(world: World) -> Iterator[None]:
    with _limited(world, "-u 60"):
        yield


@fault("ulimit -v is 1 GiB", "memory-limit", "lab2", level="warning")
def little_memory(world: World) -> Iterator[None]:
    with _limited(world, "-v 1048576"):
        yield


@fault("its clock is 50 minutes ahead", "clock-off", "lab2", level="warning")
def wrong_clock(world: World) -> Iterator[None]:
    source, library = world.runtime / "clock.c", world.own("lab2", "clock.so")
    source.write_text(CLOCK)
    words = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(words, check=True, timeout=60)
    try:
        preload = f"SetEnv LD_PRELOAD={OWN}/clock.so PATH="
        with world.sshd("lab2", change=[("SetEnv PATH=", preload)]):
            yield
    finally:
        library.unlink()


@fault(
    "a file of MPI settings names an interface that is gone",
    "mpi-parameters",
    "lab1",
    level="warning",
)
def old_settings(world: World) -> Iterator[None]:
    path = world.lab.home("lab1") / ".openmpi/mca-params.conf"
    with world.file(path, "# for the old cluster\nbtl_tcp_if_include = ib0\n"):
        yield


@fault("a process of an ended run is left", "strays", "lab2", level="warning")
def stray(world: World) -> Iterator[None]:
    do = (
        "SHANTY_RUN_ID=20200102-030405-dead setsid sleep 1000 </dev/null >/dev/null 2>&1 & "
        "echo $! >/run/stray"
    )
    with world.console_pair("lab2", do, "kill $(cat /run/stray)"):
        yield


@fault("a rank asks for more memory than the host has", "memory-short", "lab1", "lab2", "lab3",
       words=("--memory", "4T"), bare="mpirun cannot be asked")  # fmt: skip
def much_memory(world: World) -> Iterator[None]:
    yield


@fault("more ranks than cores", "slots-over-cores", "lab2", on="lab1,lab2:16,lab3",
       level="warning")  # fmt: skip
def many_slots(world: World) -> Iterator[None]:
    yield


@fault("two of its GPUs are missing", "gpus-short", "lab2", words=("-n", "6", "--ppn", "2"),
       bare="mpirun does not look for GPUs")  # fmt: skip
def lost_gpus(world: World) -> Iterator[None]:
    from contextlib import ExitStack

    with ExitStack() as stack:
        for host, count in (("lab1", 2), ("lab2", 1), ("lab3", 2)):
            lines = [f"echo 'GPU {n}: Tesla T4 (UUID: GPU-{host}-{n})'" for n in range(count)]
            script = "\n".join(["#!/bin/sh", *lines, ""])
            stack.enter_context(world.file(world.own(host, "bin/nvidia-smi"), script, 0o755))
        yield


@fault(
    "it lacks a package that is installed here",
    "packages-differ",
    "lab2",
    words=("--packages", "check"),
)
def another_package(world: World) -> Iterator[None]:
    import importlib.metadata

    import click

    version = importlib.metadata.version("click")
    site = Path(click.__file__).parents[1]
    (info,) = site.glob(f"click-{version}.dist-info")
    with world.console_pair("lab2", f"mount -t tmpfs none {info}", f"umount {info}"):
        yield
