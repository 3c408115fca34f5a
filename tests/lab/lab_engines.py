"""Container engines on virtual hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from conftest import LabHosts

import engines
from engines import INTEL, MPICH, OPENMPI, PYTHON
from runs import LONG

IMAGE_WORDS = ("--image", PYTHON, "--runtime", "podman", "--packages", "none")


@contextmanager
def podman_on(lab: LabHosts) -> Iterator[None]:
    """A podman on each host; the image is in a store that all of them may read."""
    with ExitStack() as stack:
        disk = stack.enter_context(engines.disk())
        source = stack.enter_context(engines.podman(disk / "store"))
        source.load(PYTHON)
        for image in (OPENMPI, MPICH, INTEL) if LONG else ():
            source.load(image)
        for host in lab.hosts:
            folder = disk / host
            etc = engines.podman_files(folder, images=disk / "store" / "graph")
            for name in ("policy.json", "registries.conf"):
                if Path("/etc/containers", name).exists():
                    (etc / name).write_text(Path("/etc/containers", name).read_text())
            done = lab.exec(host, "mount", "--bind", str(etc), "/etc/containers")
            assert done.returncode == 0, done.stderr
            stack.callback(engines.unmount, folder)
            stack.callback(lab.exec, host, "umount", "/etc/containers")
        yield


def containers_on(lab: LabHosts) -> list[str]:
    """The names of all containers on all hosts."""
    return [
        name
        for host in lab.hosts
        for name in lab.exec(host, "podman", "ps", "-a", "--format", "{{.Names}}").stdout.split()
    ]
