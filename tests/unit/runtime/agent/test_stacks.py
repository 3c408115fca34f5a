"""Stacks of ranks, with what the node agents saw."""

from __future__ import annotations

from shanty.cli.stacks import grouped
from shanty.runtime.agent.stacks import with_native


def test_groups_of_stacks() -> None:
    looks = [{"moves": [{"rank": 0, "call": "MPI_Recv", "frames": [["", 0, "MPI_Recv"]]}]}]
    answers = with_native([{"rank": 0, "error": "no Python"}, {"rank": 1, "error": "none"}], looks)
    groups = grouped(answers, all_threads=False, first={1})
    assert groups == [([1], "  none"), ([0], "  MPI_Recv")]
