"""One of the other hosts of a run, as the controller has it."""

from __future__ import annotations

import subprocess

from shanty.runtime.agent.channel import Channel
from shanty.runtime.agent.failure_detector import FailureDetector
from shanty.runtime.plan import Node


class Worker:
    """The controller's end of one worker.

    `state` goes connecting → here → ready → gone, or lost.
    """

    def __init__(self, node: Node, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.node = node
        self.name = node.name
        self.process = process
        self.channel = Channel(process.stdout.fileno(), process.stdin.fileno())
        self.state = "connecting"
        self.silence = FailureDetector()
        self.port = 0  # one that was free there

    @property
    def live(self) -> bool:
        """True while there is someone to talk to."""
        return self.state in ("connecting", "here", "ready")
