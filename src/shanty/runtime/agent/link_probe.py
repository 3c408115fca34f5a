"""Tries, for a node agent, whether the other hosts of a run can be reached now.

The controller asks for it (`link_check`) when ranks stand still. Only then does the host listen,
at its addresses on the run's networks, for who knows the token of that one time.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence

from shanty.runtime.agent.tcp_connections import stuck
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.network_probe import Listener, listen, probe, token_of
from shanty.runtime.plan import Plan

_IDLE = 30.0  # seconds after which nobody will come any more
_LEAST = 4  # times that data was sent again: it takes the kernel some 3 s


class LinkProbe:
    """One host's part."""

    def __init__(self, plan: Plan, environ: Mapping[str, str], say: Callable[..., None]) -> None:
        """`environ` is the ranks', `say` tells the controller, from any thread."""
        flavour = FLAVOURS[plan.lead.mpi["flavour"]]
        self._ports = flavour.ports(environ)  # the user may have left just these open
        self._say = say
        self._listener: Optional[Listener] = None

    def obey(self, order: Mapping[str, Any], pids: Callable[[], Iterable[int]]) -> None:
        """Listen, try others, or listen no more; `pids` returns the run's processes here."""
        number = order["check"]
        if "listen" in order:
            self._close()
            token = token_of(order["token"])
            self._listener, ports, _ = listen(order["listen"], token, self._ports, _IDLE)
            held = [(one.local, one.remote, one.again) for one in stuck(pids(), _LEAST)]
            self._say(links={"check": number, "ports": ports, "stuck": held})
        elif "try" in order:
            threading.Thread(
                target=self._try,
                args=(number, order["try"], order["timeouts"]),
                name="links",
                daemon=True,
            ).start()
        else:
            self._close()

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _try(self, number: int, targets: List[Dict[str, Any]], timeouts: Sequence[float]) -> None:
        found: List[Dict[str, Any]] = [{"kind": ""} for _ in targets]
        for timeout in timeouts:
            bad = [i for i, one in enumerate(found) if one["kind"] != "ok"]
            for i, one in zip(bad, probe([targets[i] for i in bad], timeout)):
                found[i] = one
        tried = [(one["kind"], one["text"]) for one in found]
        self._say(links={"check": number, "tried": tried})
