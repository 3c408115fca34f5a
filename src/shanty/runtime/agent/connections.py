"""How a controller starts the agents of its workers: one function for each kind of connection.

A node says its kind and what that takes in `Node.connection`. The command's standard input and
output become the channel between controller and node agent.
"""

from __future__ import annotations

import shlex
from typing import Callable, Dict, List, Sequence

from shanty.runtime.agent.ssh_command import ssh_command
from shanty.runtime.plan import Node

# What may be asked of a worker: to be the node agent; to end what one that was killed left, and
# let nobody in any more; to do so and be ready for another attempt.
RUN_AGENT, REAP, RESET = "node_agent", "reap", "reset"
_TIMEOUT = 10  # seconds for a connection to be made

Connect = Callable[[Node, Node, Sequence[str]], List[str]]


def command(node: Node, lead: Node, words: Sequence[str]) -> List[str]:
    """The command line on the lead host that runs `words` on another host."""
    return CONNECTIONS[node.connection["kind"]](node, lead, words)


def by_ssh(node: Node, lead: Node, words: Sequence[str]) -> List[str]:
    """OpenSSH, by the run's key and nobody else's; the key can start the node agent only.

    `connection` has "user", "port" and "alias", the name of the host's key in `known_hosts`.
    """
    there = {**node.connection, "address": node.address}
    key, known_hosts = f"{lead.run_dir}/key", f"{lead.run_dir}/known_hosts"
    return [*ssh_command(there, key, known_hosts, _TIMEOUT), shlex.join(words)]


def by_exec(node: Node, _lead: Node, words: Sequence[str]) -> List[str]:
    """A program that starts a command on the host: "argv" in `connection`, then the command."""
    return [*node.connection["argv"], *words]


CONNECTIONS: Dict[str, Connect] = {"ssh": by_ssh, "exec": by_exec}


def worker_command(node: Node, request: str = "") -> List[str]:
    """The node agent of a worker, to be started there; `request` is what is asked of it."""
    return [*node.boot, "agent.worker_agent", node.run_dir, *filter(None, [request])]
