"""The node agent of a worker in a container: `boot.py agent.container_entry CONTAINER COMMAND…`.

The controller starts it as it starts any worker's node agent (`runtime/connections.py`). The last
word is the request. `CONTAINER` is packed, and `COMMAND` starts the node agent.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import List, Sequence

from shanty.runtime.containers.container import Container, container_name, with_this_host
from shanty.runtime.containers.engines import environ_of, remove, wrapped
from shanty.runtime.run_agents import agents_record

_AGENT = "agent.worker_agent"


def main(argv: List[str]) -> int:
    """Become the engine's command with the node agent in it, or end what is left of it."""
    from shanty.runtime.connections import RUN_AGENT
    from shanty.runtime.node import worker_agent

    container, folder = Container.unpacked(argv[0]), argv[argv.index(_AGENT) + 1]
    asked = shlex.split(os.environ.get("SSH_ORIGINAL_COMMAND", shlex.join(argv)))
    own = worker_agent.own_folder(Path(folder), asked)
    container = container._replace(name=container_name(own))
    if asked[-1] == RUN_AGENT:
        # Inside the container our pid is unknown; the engine's command, which we become, has it.
        record = json.dumps(agents_record(node_agent=os.getpid()))
        environment = {**container.environment, worker_agent.RECORD: record}
        container = container._replace(environment=environment)
        boot = argv[1 : argv.index(_AGENT)]
        return become(container, [*boot, _AGENT, str(own), RUN_AGENT])
    remove(container)
    return worker_agent.main([str(own), asked[-1]])


def become(container: Container, argv: Sequence[str]) -> int:
    """Become the engine's command that runs `argv` in the container."""
    container = with_this_host(container)
    words = wrapped(container, argv)
    try:
        os.execve(words[0], words, {**os.environ, **environ_of(container)})
    except OSError as error:
        print(f"{words[0]} does not run: {error.strerror}", file=sys.stderr)
        return 127
