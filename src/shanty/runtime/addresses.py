"""Where frameworks find the ranks of a run, beside their MPI: ports, chosen where they are free.

Nothing listens there unless a framework does.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence

from shanty.runtime.localhost import free_ports
from shanty.runtime.plan import Attempt, Node

ADDRESSES = "SHANTY_ADDRESSES"  # of each rank in turn, HOST:PORT,HOST:PORT…
_MOST = 2000  # ranks; TF_CONFIG, which has all addresses, must fit into one variable


def ports_of_host(attempt: Attempt, node: Node) -> List[int]:
    """Ports that are free on this host, which is `node`: for MASTER_PORT, and one a rank."""
    return free_ports(1 + max(1, min(_ranks_on(attempt, node), _MOST)))


def variables(attempt: Attempt, ports: Mapping[int, Sequence[int]]) -> Dict[str, str]:
    """The variables that are the same for all ranks; `ports` has those of each host's number.

    Only rank 0 has an address where the launcher decides which host a rank is on.
    """
    first = next(node for node in attempt.nodes if node.number == attempt.first)
    wanted = {node.number: _ranks_on(attempt, node) for node in attempt.nodes}
    found = [
        _address(node, port)
        for node in attempt.nodes
        for port in ports[node.number][1 : 1 + wanted[node.number]]
    ]
    if not len(found) == sum(wanted.values()) <= _MOST:
        found = [_address(first, ports[first.number][1])]
    return {"MASTER_PORT": str(ports[first.number][0]), ADDRESSES: ",".join(found)}


def _ranks_on(attempt: Attempt, node: Node) -> int:
    """How many ranks are going to be on a host, as far as that is known."""
    if attempt.placement:
        return attempt.placement.get(node.name, 0)
    if len(attempt.nodes) == 1:
        return attempt.ranks or node.slots
    return 1 if node.number == attempt.first else 0


def _address(node: Node, port: int) -> str:
    host = node.rank_address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
