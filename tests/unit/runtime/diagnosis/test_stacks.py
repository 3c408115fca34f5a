"""Stacks of ranks, with what the node agents saw."""

from __future__ import annotations

from plans import world_of
from shanty.launch.stack_text import grouped
from shanty.runtime.diagnosis.stacks import absent, with_native
from shanty.runtime.messages import RankState, Report


def test_groups_of_stacks() -> None:
    states = [RankState("a", "0", 0, call="MPI_Recv", frames=(("", 0, "MPI_Recv"),))]
    answers = with_native([{"rank": 0, "error": "no Python"}, {"rank": 1, "error": "none"}], states)
    groups = grouped(answers, all_threads=False, first={1})
    assert groups == [([1], "  none"), ([0], "  MPI_Recv")]


def test_what_starts_a_cell_is_not_shown() -> None:
    server = [["/p/shanty/tasks/cells.py", 90, "serve"], ["<frozen runpy>", 88, "_run_code"]]
    waits = [["/p/shanty/tasks/cells.py", 109, "_wait_for_cell"], *server]
    works = [["<cell 2>", 4, "step"], *server]
    answers = [
        {"rank": rank, "threads": [{"current": True, "frames": frames}]}
        for rank, frames in enumerate([waits, works])
    ]
    texts = {group.ranks[0]: group.text for group in grouped(answers, all_threads=False)}
    assert texts[0].strip() == "it waits for a cell of its notebook"
    assert texts[1].split() == ["step", "<cell", "2>:4"]


def test_ranks_that_are_not_there_are_named() -> None:
    world = world_of(4, "a", "b")
    world.report(Report({"event": "exited", "rank": 1, "code": 0}), 2.0)
    answers = [{"rank": 0, "threads": []}]
    assert absent(4, {"0": world}, answers) == [
        {"rank": 1, "error": "it has ended"},
        {"rank": 2, "error": "it has not started yet"},
        {"rank": 3, "error": "it has not started yet"},
    ]
    assert absent(None, {}, []) == []
    assert [each["rank"] for each in absent(2, {}, [])] == [0, 1]


def test_a_rank_that_is_stopped_in_an_mpi_call_is_stopped() -> None:
    states = [RankState("a", "0", 0, state="T", call="MPI_Allreduce")]
    answer = {"rank": 0, "error": "it is stopped, as by SIGSTOP"}
    assert with_native([answer], states) == [{**answer, "call": "MPI_Allreduce"}]
