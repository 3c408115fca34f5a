"""The interface of the controller to its parts: the run, and what they may decide."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Protocol

from shanty.runtime.agent.channel import Channel
from shanty.runtime.agent.heartbeat import Heartbeat
from shanty.runtime.agent.mpi_world import MpiWorld
from shanty.runtime.agent.root_cause import Verdict
from shanty.runtime.plan import Plan
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import Failure, Status


class RunControl(Protocol):
    """A run, from the side that decides."""

    run_dir: RunDir
    plan: Plan
    status: Status
    agent: Channel  # to the node agent of the lead host
    heartbeat: Heartbeat
    worlds: Dict[str, MpiWorld]
    settings: Dict[str, Mapping[str, str]]  # of MPIs, that were set on hosts before the run
    ending: bool
    code: Optional[int]
    stopped: Optional[str]

    def tell(self, **order: Any) -> None:
        """Give an order to the node agents of all hosts."""

    def tell_host(self, host: str, **order: Any) -> None:
        """Give an order to the node agent of one host."""

    def event(self, kind: str, **more: Any) -> None:
        """Write down that something happened."""

    def hear(self, message: Mapping[str, Any], host: str) -> None:
        """Take what a node agent tells of its ranks."""

    def condemn(self, failure: Failure, grace: float) -> None:
        """End the run because of a failure of the launch itself."""

    def active(self, text: str) -> None:
        """Note what the ranks of a silent run do."""

    def stalled(self, since: Optional[float], verdict: Optional[Verdict] = None) -> None:
        """Note that no rank makes progress since then; None: they do again."""

    def answer_asks(self) -> None:
        """Serve the requests that lie in the run directory."""

    def ask_stacks(self) -> List[Dict[str, Any]]:
        """Returns the stacks of every rank."""
