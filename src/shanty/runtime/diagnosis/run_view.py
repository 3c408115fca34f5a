"""The controller as seen by its parts."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Protocol, Sequence

from shanty.runtime.diagnosis.mpi_world import MpiWorld
from shanty.runtime.diagnosis.root_cause import Verdict
from shanty.runtime.spec import Failure, State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.messages import Message, Order


class RunView(NamedTuple):
    """A run as it is now; `started` is in seconds since 1970, `ending`: its ranks are ended."""

    state: State
    started: Optional[float]
    ending: bool
    worlds: Mapping[str, MpiWorld]


class Actions(Protocol):
    """The calls of the controller's parts to it."""

    def view(self) -> RunView:
        """Return the run as it is now."""

    def heard(self, message: Message, host: str) -> None:
        """Take a message of the node agent of that host."""

    def turn(self) -> None:
        """Do what cannot wait while the workers send their last files."""

    def tell(self, order: Order) -> None:
        """Give an order to the node agents of all hosts."""

    def tell_host(self, host: str, order: Order) -> None:
        """Give an order to the node agent of one host."""

    def event(self, kind: str, **more: object) -> None:
        """Write down that something happened."""

    def active(self, text: str) -> None:
        """Note what the ranks of a silent run do; "": the run is no longer silent."""

    def stalled(self, since: Optional[float], verdict: Optional[Verdict] = None) -> None:
        """Note since when no rank has made progress, None when they do again.

        A verdict ends the run.
        """

    def kill_hung(self, ranks: Sequence[int], why: str) -> None:
        """End ranks of an elastic run that hang."""

    def lost(self, failure: Failure, up: int, spares: int) -> None:
        """Report that an elastic run has lost ranks; `up` are left, and so many spares."""

    def returned(self, text: str, up: int, spares: int) -> None:
        """Report that a place in an elastic run was taken again, and that `up` are there now."""

    def ask_stacks(self) -> List[Dict[str, Any]]:
        """Return the stacks of every rank, with the MPI call it is in."""
