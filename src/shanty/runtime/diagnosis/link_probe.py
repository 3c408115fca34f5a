"""Tries, for a node agent, whether the other hosts of a run can be reached now.

The controller asks for it (`link_check`) when ranks stand still. Only then does the host listen, at
its addresses on the run's networks, for connections with the token of that check.
"""

from __future__ import annotations

import threading
from typing import Callable, Iterable, Mapping, Optional

from shanty.runtime import messages
from shanty.runtime.diagnosis.tcp_connections import stuck
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.network_probe import Listener, listen, probe
from shanty.runtime.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.messages import LinkOrder, Told

_IDLE = 30.0  # seconds after which no connection is expected any longer
_LEAST = 4  # times that data was sent again: it takes the kernel some 3 s


class LinkProbe:
    """One host's part."""

    def __init__(
        self, plan: Plan, environ: Mapping[str, str], send: Callable[[Told], None]
    ) -> None:
        """`environ` is the ranks'; `send` takes messages to the controller, from any thread."""
        flavour = FLAVOURS[plan.lead.mpi["flavour"]]
        self._ports = flavour.ports(environ)  # the user may have opened these only
        self._send = send
        self._listener: Optional[Listener] = None

    def obey(self, order: LinkOrder, pids: Callable[[], Iterable[int]]) -> None:
        """Listen, try others, or stop listening; `pids` returns the run's processes here."""
        if isinstance(order, messages.Listen):
            self._close()
            token = bytes.fromhex(order.token)
            self._listener, ports, _ = listen(order.addresses, token, self._ports, _IDLE)
            held = [
                messages.StuckConnection(c.local, c.remote, c.again) for c in stuck(pids(), _LEAST)
            ]
            self._send(messages.LinkPorts(order.check, ports, tuple(held)))
        elif isinstance(order, messages.TryLinks):
            threading.Thread(target=self._try, args=(order,), name="links", daemon=True).start()
        else:
            self._close()

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _try(self, order: messages.TryLinks) -> None:
        found = [("", "")] * len(order.targets)
        for timeout in order.timeouts:
            bad = [i for i, (kind, _) in enumerate(found) if kind != "ok"]
            targets = [order.targets[i]._asdict() for i in bad]
            for i, one in zip(bad, probe(targets, timeout)):
                found[i] = one["kind"], one["text"]
        self._send(messages.LinkResults(order.check, tuple(found)))
