"""Writes the command lines of docker, podman and apptainer.

A container is one command of the engine: it starts the container with the command's standard
streams, and the container is gone when the command inside ends. Whoever ends the engine's command
closes the standard input of the one inside, which ends of that.
"""

from __future__ import annotations

import csv
import io
import os
from typing import Dict, List, Sequence, Tuple

from shanty.runtime.containers.container import RDMA, READ_ONLY, Container, Mount
from shanty.runtime.programs import run as run_program

_REMOVAL = 10.0  # seconds for an engine to end a container
RUN_LABEL = "shanty.run"
# seccomp of docker and podman forbids what goes with these two: CMA between ranks, the binding of
# memory to NUMA nodes, and a look at a rank's stack.
_CAPABILITIES = ("SYS_PTRACE", "SYS_NICE")


class Engine:
    """What is the same for docker and podman."""

    title = ""
    name = ""
    has_layers = True  # its images can be read and made layer by layer

    def run(self, container: Container, argv: Sequence[str]) -> List[str]:
        """The command line that runs `argv` in a new container."""
        words = [
            *(container.program, "run", "--rm", "--interactive", "--name", container.name),
            *("--label", f"{RUN_LABEL}={container.run}", "--pull", "never"),
            *("--network", "host", "--uts", "host"),
            *("--log-driver", "none"),  # or all that the ranks say is on the disk once more
            *("--security-opt", "label=disable"),  # SELinux would keep the mounts from us
            *(word for name in _CAPABILITIES for word in ("--cap-add", name)),
            *self._user(container),
            *(word for mount in container.mounts for word in ("--mount", _mount_words(mount))),
            *self._gpus(container.gpus),
        ]
        if container.shared_memory:
            words += ["--shm-size", str(container.shared_memory)]
        if container.rdma:  # its cards write to memory that is locked
            words += ["--device", RDMA, "--ulimit", "memlock=-1:-1"]
        for name in container.variables:
            words += ["--env", name]
        for name, value in container.environment.items():
            words += ["--env", f"{name}={value}"]
        return [*words, "--entrypoint", argv[0], container.image, *argv[1:]]

    def _user(self, container: Container) -> List[str]:
        words = ["--user", container.user] if container.user else []
        for group in container.groups:
            words += ["--group-add", str(group)]
        return words

    def _gpus(self, gpus: str) -> List[str]:
        raise NotImplementedError

    def environment(self, container: Container) -> Dict[str, str]:
        """What is to be set for that command, beside the environment of the host."""
        return {}

    def removal(self, program: str, name: str) -> List[str]:
        """The command line that ends a container at once; none for what is only processes."""
        return [program, "rm", "--force", name]

    def listing(self, program: str) -> List[str]:
        """The command line that names the containers of runs, with their run, a line each."""
        form = f'{{{{.Names}}}} {{{{.Label "{RUN_LABEL}"}}}}'
        return [program, "ps", "--all", "--filter", f"label={RUN_LABEL}", "--format", form]


class _Docker(Engine):
    title = "Docker"
    name = "docker"

    def _gpus(self, gpus: str) -> List[str]:
        if not gpus:
            return []
        return ["--gpus", gpus if gpus == "all" else f'"device={gpus}"']


class _Podman(Engine):
    title = "Podman"
    name = "podman"

    def _user(self, container: Container) -> List[str]:
        limits = ["--ulimit", "host", "--http-proxy=false"]
        if container.user:
            return [*limits, "--pids-limit", "-1", *super()._user(container)]
        return [*limits, "--userns", "keep-id"]  # the caller's uid is the same inside

    def _gpus(self, gpus: str) -> List[str]:
        names = gpus.split(",") if gpus else []
        return [word for one in names for word in ("--device", f"nvidia.com/gpu={one}")]

    def removal(self, program: str, name: str) -> List[str]:
        return [program, "rm", "--force", "--time", "0", name]


class _Apptainer(Engine):
    """Has no containers but processes: those of the host, with other files around them."""

    title = "Apptainer"
    name = "apptainer"
    has_layers = False

    def run(self, container: Container, argv: Sequence[str]) -> List[str]:
        words = [container.program, "exec", "--cleanenv", "--no-home", "--no-mount", "cwd"]
        words += ["--writable-tmpfs", "--pwd", "/"]
        if container.unpack:
            words.append("--unsquash")
        if container.gpus:
            words.append("--nv")
        for mount in container.mounts:
            mode = ":ro" if mount.mode == READ_ONLY else ""
            words += ["--bind", f"{_escaped(mount.source)}:{_escaped(mount.target)}{mode}"]
        return [*words, container.image, *argv]

    def environment(self, container: Container) -> Dict[str, str]:
        # --env would show values to all users, and takes some letters for its own.
        inside = {n: os.environ[n] for n in container.variables if n in os.environ}
        if container.gpus and container.gpus != "all":
            inside["CUDA_VISIBLE_DEVICES"] = container.gpus
        inside.update(container.environment)
        prefix = os.path.basename(container.program).upper()  # APPTAINERENV_, SINGULARITYENV_
        return {f"{prefix}ENV_{name}": value for name, value in inside.items()}

    def removal(self, program: str, name: str) -> List[str]:
        return []

    def listing(self, program: str) -> List[str]:
        return []


ENGINES: Dict[str, Engine] = {each.name: each for each in (_Docker(), _Podman(), _Apptainer())}
LAYERED = tuple(name for name, each in ENGINES.items() if each.has_layers)
# The commands under which an engine may be installed.
PROGRAMS: Dict[str, Tuple[str, ...]] = {
    "docker": ("docker",),
    "podman": ("podman",),
    "apptainer": ("apptainer", "singularity"),
}


def wrapped(container: Container, argv: Sequence[str]) -> List[str]:
    """The command line that runs `argv` in a container."""
    return ENGINES[container.engine].run(container, argv)


def environ_of(container: Container) -> Dict[str, str]:
    """What to set for that command on the host, where the variables to hand on are."""
    return ENGINES[container.engine].environment(container)


def remove(container: Container) -> None:
    """End the container at once, if there is one."""
    words = ENGINES[container.engine].removal(container.program, container.name)
    for _ in range(2 if words else 0):  # podman's first fails if the monitor died before it
        done = run_program(words, _REMOVAL)
        if done is not None and not done.returncode:
            return


def is_image_file(image: str) -> bool:
    """True for what only apptainer takes: the path of an image file, or of a root folder."""
    return image.endswith(".sif") or image.startswith(("/", "./", "../", "~/"))


def _mount_words(mount: Mount) -> str:
    """A mount as one value of --mount, which is a line of CSV."""
    words = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    if mount.mode == READ_ONLY:
        words.append("readonly")
    text = io.StringIO()
    csv.writer(text).writerow(words)
    return text.getvalue()[: -len("\r\n")]


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
