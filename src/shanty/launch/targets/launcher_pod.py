"""Inside the launcher's pod of Kubeflow's MPI operator: its workers are the hosts of a run.

The operator mounts the workers' names at /etc/mpi/hostfile, and a key pair of the job's in every
pod. https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/mpi/
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shanty.launch import inventory
from shanty.launch.transport.openssh import resolved
from shanty.runtime.rundir import RUN_DIR
from shanty.runtime.site import Host
from shanty.runtime.spec import JobSpec

HOSTFILE = Path("/etc/mpi/hostfile")
_PATIENCE = 300.0  # seconds for all workers to listen: their image may have to be pulled
_LOOK = 1.0  # seconds between two looks, and for one


def is_inside(environ: Mapping[str, str]) -> bool:
    """True in a launcher's pod, but not in a rank or the command line of a run."""
    launcher = environ.get("K_MPI_JOB_ROLE") == "launcher"
    return launcher and RUN_DIR not in environ and HOSTFILE.is_file()


def on_workers(job: JobSpec, say: Callable[[str], None]) -> JobSpec:
    """The job with the workers as its hosts, after a wait until they listen for ssh."""
    hosts = [_named(host) for host in inventory.read_hostfile(HOSTFILE)]
    _await([host for host in hosts if host.name != os.uname().nodename], say)
    return replace(job, on=",".join(map(inventory.written, hosts)))


def _named(host: Host) -> Host:
    """The host; the launcher's own pod, which may be a worker too, by the name it has here."""
    own = os.uname().nodename
    return host._replace(name=own) if host.name.partition(".")[0] == own else host


def _await(hosts: Sequence[Host], say: Callable[[str], None]) -> None:
    places = {host.name: resolved(host) for host in hosts}
    until = time.monotonic() + _PATIENCE
    while places and time.monotonic() < until:
        for name, settings in list(places.items()):
            with contextlib.suppress(OSError):
                place = (settings["hostname"], int(settings["port"]))
                socket.create_connection(place, _LOOK).close()
                del places[name]
        if places:
            say(f"waits for {len(places)} of {len(hosts)} workers: {', '.join(places)}")
            time.sleep(_LOOK)
