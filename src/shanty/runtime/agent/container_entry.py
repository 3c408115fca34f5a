"""The node agent of a worker in a container: `boot.py agent.container_entry CONTAINER COMMAND…`.

The controller starts it as it starts any worker's node agent (`agent/connections.py`); what it asks
for is the last of the words. `CONTAINER` is packed, `COMMAND` is how the node agent starts in it.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import List, Sequence

from shanty.runtime.agent.control import agents_record
from shanty.runtime.containers.container import Container, container_name
from shanty.runtime.containers.engines import environ_of, remove, wrapped
from shanty.runtime.containers.this_host import with_this_host

_AGENT = "agent.worker_agent"


def main(argv: List[str]) -> int:
    """Become the engine's command with the node agent in it, or end what is left of that one."""
    from shanty.runtime.agent import worker_agent
    from shanty.runtime.agent.connections import RUN_AGENT

    container, folder = Container.unpacked(argv[0]), argv[argv.index(_AGENT) + 1]
    asked = shlex.split(os.environ.get("SSH_ORIGINAL_COMMAND", shlex.join(argv)))
    own = worker_agent.own_folder(Path(folder), asked)
    container = container._replace(name=container_name(own))
    if asked[-1] == RUN_AGENT:
        # Inside, nobody knows our number; the engine's command, which we become, has it.
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
