"""Says in plain words what docker, podman and apptainer report when something fails."""

from __future__ import annotations

import re
from typing import Tuple

from shanty.runtime.containers.engines import ENGINES
from shanty.runtime.plan import Node
from shanty.runtime.spec import Failure

_NOT_STARTED = 125  # the exit code of docker and podman where the command inside never ran
_KILLED = (137, -9)
# What the engine says, what it means, what to do; the first that fits counts.
_TABLE: Tuple[Tuple[str, str, str], ...] = (
    (
        r"permission denied while trying to connect|dial unix \S+: connect: permission denied",
        "this user may not use docker",
        "join the group docker (sudo usermod -aG docker $USER, then log in again), or take "
        "--runtime podman or apptainer, which need no rights",
    ),
    (
        r"Cannot connect to the Docker daemon|Is the docker daemon running|docker\.sock: connect:",
        "docker is installed, but its daemon does not run",
        "start it (sudo systemctl start docker), or take --runtime podman or apptainer",
    ),
    (
        r"unauthorized|authentication required|denied: requested access|access to the resource is "
        r"denied|invalid username/password|no basic auth credentials",
        "the registry does not let us have the image, or has none of that name",
        "check the name; for a private one give --registry-user and --registry-password",
    ),
    (
        r"short-name .* did not resolve",
        "podman knows no registry for names without one",
        "write the whole name, as docker.io/library/NAME",
    ),
    (
        r"manifest unknown|manifest for \S+ not found|repository \S+ not found|name unknown"
        r"|not found: manifest|MANIFEST_UNKNOWN",
        "the registry has no image of that name and tag",
        "check the name and the tag",
    ),
    (
        r"no matching manifest for|does not match the specified platform|exec format error",
        "the image is not for this kind of processor",
        "take an image for it, or a host of the image's kind",
    ),
    (
        r"server gave HTTP response to HTTPS client",
        "the registry speaks plain HTTP, which the engine accepts only where its settings allow it",
        "name it in the engine's settings (docker: insecure-registries in /etc/docker/daemon.json; "
        "podman: insecure = true in /etc/containers/registries.conf)",
    ),
    (
        r"no such host|server misbehaving|name resolution|Temporary failure in name|i/o timeout"
        r"|connection refused|network is unreachable|no route to host|TLS handshake timeout"
        r"|proxyconnect|context deadline exceeded|Client\.Timeout",
        "the registry cannot be reached",
        "check the network and the proxy of the engine; an image that is there where the command "
        "is typed is sent from there",
    ),
    (
        r"no space left on device",
        "the disk on which images and containers are kept is full",
        "make room there (docker system prune, podman system prune)",
    ),
    (
        r"No such image|image not known|no such object",
        "the host does not have the image, or no longer",
        "run again, which sends it again; Slurm's nodes are not sent images: pull it on each of "
        "them, or take an image file on a disk that they share (--image /shared/x.sif)",
    ),
    (
        r"is already in use by container|name is already in use",
        "a container of that name is there already",
        "shanty doctor --fix removes what crashed runs have left",
    ),
    (
        r"could not select device driver.*gpu|unresolvable CDI devices|nvidia-container-cli",
        "the engine cannot give GPUs to containers",
        "install NVIDIA's container toolkit there (for podman: nvidia-ctk cdi generate), or leave "
        "--gpus out",
    ),
    (
        r"newuidmap|newgidmap|no subuid ranges|subuid|user namespaces? (?:are|is) (?:disabled|not)"
        r"|setgroups.*not permitted|cannot clone: Operation not permitted",
        "the kernel or /etc/subuid does not let this user have user namespaces",
        "ask for them (sysctl kernel.unprivileged_userns_clone=1, /etc/subuid and /etc/subgid), or "
        "take another --runtime",
    ),
    (
        r"unknown userid|Couldn't determine user account",
        "apptainer starts nothing for a user id that has no name on the host",
        "have the user entered in /etc/passwd there, or take --runtime docker or podman",
    ),
    (
        r"error setting rlimit",
        "the engine may not raise the limit on locked memory",
        "raise it for the engine itself (LimitMEMLOCK=infinity in its systemd unit)",
    ),
    (
        r"bind source path does not exist|statfs [^:]+: no such file|mount source \S+ does",
        "a folder that is to be mounted is not there",
        "check --mount",
    ),
    (
        r"executable file not found|no such file or directory.*unable to start container process"
        r"|unable to start container process.*no such file",
        "a program that shanty needs is not in the image",
        "the image needs /bin/sh",
    ),
)


def explained(text: str) -> Tuple[str, str]:
    """What an engine's words mean, with its own last ones, and what to do; "" where unknown."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)  # apptainer's colours
    last = last_line(text)
    for pattern, meaning, fix in _TABLE:
        if re.search(pattern, text, re.IGNORECASE):
            return f"{meaning} ({last})" if last else meaning, fix
    return last, ""


def last_line(text: str) -> str:
    """The last line that says something of its own."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Run 'docker")] or lines
    line = lines[-1] if lines else ""
    return re.sub(r'^(?:time="[^"]*" level=\w+ msg=|(?:docker|Error|FATAL): *)+', "", line)[:600]


def ended(node: Node, code: int, text: str, *, began: bool) -> Failure:
    """Why the container of a host ended with `code` before it should; `began` once it was ready."""
    title = ENGINES[node.container["engine"]].title
    why, fix = explained(text)
    if not began and (code == _NOT_STARTED or why):
        what = f"{title} could not start the container on host {node.name}"
        return Failure(what, why, fix or "see `shanty logs --agent`", host=node.name)
    if code in _KILLED:
        return Failure(
            f"the container on host {node.name} was killed",
            "somebody ended it, the host ran out of memory, or its engine was restarted",
            "look into the engine's log and the host's; run again",
            host=node.name,
        )
    return Failure(
        f"the container on host {node.name} ended",
        why or f"{title} ended with {code}",
        "see `shanty logs --agent`; run again",
        host=node.name,
    )
