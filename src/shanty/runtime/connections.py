"""Starts commands on workers for a controller: one function for each kind of connection.

A node says its kind and what that takes in `Node.connection`. The command's standard input and
output become the channel between controller and node agent.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from shanty.runtime.plan import Node

# What may be asked of a worker: to be the node agent; to end what a killed node agent left, and no
# longer accept the run's key; to end it and be ready for another attempt.
RUN_AGENT, REAP, RESET = "node_agent", "reap", "reset"

_FOR_SRUN = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JWT", "SLURM_CLUSTERS")
_MOMENT = 0.1  # seconds to read what a command has said that ended while another was waited for

Connect = Callable[[Node, Node, Sequence[str]], List[str]]


def command(node: Node, lead: Node, words: Sequence[str]) -> List[str]:
    """The command line on the lead host that runs `words` on another host."""
    return CONNECTIONS[node.connection["kind"]](node, lead, words)


def by_ssh(node: Node, lead: Node, words: Sequence[str]) -> List[str]:
    """OpenSSH, by the run's key and no other; the key can start the node agent only.

    `connection` has "user", "port" and "alias", the name of the host's key in `known_hosts`; and
    "own", true where the lead host's own keys are taken, since the host lets no run's key in.
    """
    there = {**node.connection, "address": node.address}
    key = "" if node.connection.get("own") else f"{lead.run_dir}/key"
    known_hosts = f"{lead.run_dir}/known_hosts"
    return [*ssh_command(there, key, known_hosts), shlex.join(words)]


def by_exec(node: Node, _lead: Node, words: Sequence[str]) -> List[str]:
    """A step of a job of Slurm's: "argv" in `connection` is its srun, then comes the command."""
    return [*step_start(os.environ), *node.connection["argv"], *words]


def step_start(environ: Mapping[str, str]) -> List[str]:
    """The words before srun, which would take its job's options from the variables `environ`."""
    found = (name for name in environ if name.startswith(("SLURM_", "SRUN_")))
    return ["env", *(word for name in found if name not in _FOR_SRUN for word in ("-u", name))]


def by_pod(node: Node, lead: Node, words: Sequence[str]) -> List[str]:
    """The first process of another pod, over TCP; `connection` has its "port"."""
    return [*lead.boot, "kubernetes.dial", node.address, str(node.connection["port"]), *words]


CONNECTIONS: Dict[str, Connect] = {"ssh": by_ssh, "exec": by_exec, "pod": by_pod}


def worker_command(node: Node) -> List[str]:
    """The node agent of a worker, to be started there; a request follows."""
    agent = [*node.boot, "agent.worker_agent", node.run_dir]
    if not node.container:
        return agent
    from shanty.runtime.containers.container import Container

    container = Container.from_json(node.container)
    return [*node.host_boot, "agent.container_entry", container.packed(), *agent]


def request_command(node: Node, lead: Node, request: str) -> List[str]:
    """The command line on the lead host that asks a worker for `request`."""
    return command(node, lead, [*worker_command(node), request])


class Answer(NamedTuple):
    """The end of a command on a worker; `code` is None where it was still at work."""

    code: Optional[int]
    out: str
    err: str


def run_each(commands: Sequence[Sequence[str]], patience: float) -> List[Answer]:
    """Run command lines side by side; those that take longer than `patience` seconds are killed."""
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    processes = [
        subprocess.Popen(
            words, stdin=nothing, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        for words in commands
    ]
    until, answers = time.monotonic() + patience, []
    for process in processes:
        try:
            out, err = process.communicate(timeout=max(_MOMENT, until - time.monotonic()))
            answers.append(Answer(process.returncode, out, err))
        except subprocess.TimeoutExpired:
            with process:  # which closes the pipes; its children hold them, too
                os.killpg(process.pid, signal.SIGKILL)
            answers.append(Answer(None, "", ""))
    return answers


def ssh_command(
    host: Mapping[str, Any], key: str, known_hosts: str, timeout: int = 10
) -> List[str]:
    """The ssh command up to a host, by one key only; `key` and `known_hosts` are files.

    No key stands for those that the login has where ssh looks for them. `host` has "address",
    "port", "user", and "alias", the name that `known_hosts` has for it. `timeout` is in seconds,
    for the connection.
    """
    own = {"IdentityFile": quoted(key), "IdentitiesOnly": "yes"} if key else {}
    options = {
        **own,
        "IdentityAgent": "none",
        "BatchMode": "yes",
        "UserKnownHostsFile": quoted(known_hosts),
        "GlobalKnownHostsFile": os.devnull,
        "HostKeyAlias": host["alias"],
        "StrictHostKeyChecking": "yes",
        "CheckHostIP": "no",
        "UpdateHostKeys": "no",
        "ConnectTimeout": str(timeout),
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "2",
        "LogLevel": "ERROR",
        "ControlPath": "none",
        "Port": str(host["port"]),
    }
    words = [word for item in options.items() for word in ("-o", "=".join(item))]
    return ["ssh", "-F", "none", "-T", *words, "-l", host["user"], host["address"]]


def quoted(path: str) -> str:
    """A path as the value of one of ssh's options, which are split at spaces."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
