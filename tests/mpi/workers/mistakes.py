"""Deliberate mistakes in Horovod's API, whatever the framework: each ends in its own error on every
rank, after which the ranks go on. Run with HOROVOD_DYNAMIC_PROCESS_SETS=1 on 2 ranks or more.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from checks import raised
from framework import REFUSED, all_equal, differs, fw, goes_on, hvd, is_last, ones, refused

# ------------------------------------------------------------------- the ranks disagree


def check_allreduces_that_differ() -> None:
    kinds = {True: "int32", False: "float32"}  # of one size: MPI would mix them up
    ops = {True: hvd.Average, False: hvd.Sum}
    for call, *words in (
        (lambda odd: hvd.allreduce(ones(5 if odd else 4), name="w"), ".w", "(4)", "(5)", "rank"),
        (lambda odd: hvd.allreduce(ones(3, 2) if odd else ones(2, 3), name="s"), "3, 2", "2, 3"),
        (lambda odd: hvd.allreduce(ones(1, 4) if odd else ones(4), name="d"), "(1, 4)", "(4)"),
        (lambda odd: hvd.allreduce(ones(dtype=kinds[odd]), name="t"), "int32", "float32"),
        (lambda odd: hvd.allreduce(ones(), name="o", op=hvd.Max if odd else hvd.Sum), "MAX"),
        (lambda odd: hvd.allreduce(ones(), name="o", op=ops[odd]), "AVERAGE", "SUM"),
        (lambda odd: hvd.allreduce(ones(), name="p", prescale_factor=1 + odd), "prescale"),
        (lambda odd: hvd.allreduce(ones(), name="p", postscale_factor=1 + odd), "postscale"),
    ):
        differs(call, *words)


def check_groups_that_differ() -> None:
    def grouped_or_not(odd: bool) -> object:
        if odd:
            return hvd.grouped_allreduce([ones()], name="g")
        return hvd.allreduce(ones(), name="g")

    group = hvd.grouped_allreduce
    differs(lambda odd: group([ones()] * (3 if odd else 2), name="g"), "grouped", ".g")
    differs(lambda odd: group([ones(), ones(5 if odd else 4)], name="g"), "(5)", "(4)")
    differs(grouped_or_not, "grouped")


def check_other_calls_that_differ() -> None:
    size = hvd.size()
    for call, *words in (
        (lambda odd: hvd.broadcast(ones(), int(odd), name="b"), "root 0", "root 1", ".b"),
        (lambda odd: hvd.broadcast(ones(5 if odd else 4), 0, name="b"), "(4)", "(5)"),
        (lambda odd: hvd.allgather(ones(2, 4 if odd else 3), name="a"), "4", "3", ".a"),
        (lambda odd: hvd.allgather(ones(2, 3, 1) if odd else ones(2, 3), name="a"), "3, 1"),
        (lambda odd: hvd.alltoall(ones(size, 4 if odd else 3), name="a"), "4", "3", ".a"),
        (
            lambda odd: hvd.reducescatter(ones(size + odd, 2), name="r"),
            f"({size}, 2)",
            f"({size + 1}, 2)",
        ),
    ):
        differs(call, *words)


# --------------------------------------------------------------- wrong by themselves


def check_splits_that_are_refused() -> None:
    size = hvd.size()
    for call, *words in (
        (lambda: hvd.alltoall(ones(size), splits=[2] * size), "split", f"{2 * size} rows"),
        (lambda: hvd.alltoall(ones(size), [1] * (size + 1)), "split", f"{size + 1} numbers"),
        (lambda: hvd.alltoall(ones(size), [-1, 2] + [1] * (size - 2)), "split", "negative"),
        (lambda: hvd.alltoall(ones(size + 1)), "split", "evenly"),
    ):
        refused(call, *words)


def check_broadcast_from_nobody() -> None:
    for root in (hvd.size(), -1):
        refused(lambda root=root: hvd.broadcast(ones(), root), str(root))


def check_a_number_has_no_rows() -> None:
    for name in ("reducescatter", "allgather", "alltoall"):
        refused(lambda name=name: getattr(hvd, name)(fw.tensor(1.0)), "dimension", name)


def check_operation_not_for_this_type() -> None:
    kinds = (*REFUSED, NotImplementedError)
    number, rows = ones(2, dtype="complex64"), ones(hvd.size())
    refused(lambda: hvd.allreduce(number, op=hvd.Max), "complex64", "Max", kinds=kinds)
    refused(lambda: hvd.allreduce(ones(dtype="bool")), "bool", "Average")
    refused(lambda: hvd.reducescatter(rows, op=hvd.Adasum), "Adasum", kinds=NotImplementedError)
    refused(lambda: hvd.reducescatter(rows, op=hvd.Min), "Min")


# --------------------------------------------------------------------- process sets


def others() -> list[int]:
    """All ranks but the last one."""
    return [*range(hvd.size() - 1)]


def check_calls_from_outside_of_a_set() -> None:
    own, last = hvd.add_process_set(others()), hvd.size() - 1
    for way, attempt in fw.both(lambda: hvd.allreduce(ones(), process_set=own)):
        if is_last():
            raised((*REFUSED, *fw.IN_GRAPHS * (way == "graph")), attempt, str(hvd.rank()))
        goes_on()
    if own.included():
        raised(REFUSED, lambda: hvd.broadcast(ones(), last, process_set=own), f"rank {last}")
    goes_on()
    assert hvd.remove_process_set(own)
    kinds = (*REFUSED, TypeError)
    refused(lambda: hvd.allreduce(ones(), process_set=own), "not registered", kinds=kinds)


def check_set_that_was_never_added() -> None:
    own = hvd.ProcessSet(others())
    refused(lambda: hvd.allreduce(ones(), process_set=own), kinds=(*REFUSED, TypeError))


# ------------------------------------------------------------------------------ join


def check_what_goes_on_while_a_rank_has_joined() -> None:
    """Allreduces. What else the others ask for is an error on all of them, and they may go on."""
    last = hvd.size() - 1
    words = ("join", ".j", str(last), "SHANTY_JOIN_ALL=1")
    for turn in range(2):  # they may be known from before
        if hvd.rank() != last:
            rows = ones(hvd.size(), 2)
            calls: list[Callable[[], object]] = [
                lambda: hvd.allgather(ones(), name="j"),
                lambda: hvd.broadcast(ones(), 0, name="j"),
                lambda rows=rows: hvd.alltoall(rows, name="j"),
                lambda rows=rows: hvd.reducescatter(rows, name="j"),
                lambda: hvd.grouped_allgather([ones(), ones()], name="j"),
            ]
            for call in calls:
                for way, attempt in fw.both(call):
                    kinds = fw.IN_GRAPHS if way == "graph" else hvd.HorovodInternalError
                    raised(kinds, attempt, *words)
            assert all_equal(hvd.allreduce(ones(), op=hvd.Sum), last)
        hvd.join()
        goes_on()
        if turn == 0:
            hvd.allgather(ones(), name="j")
            hvd.broadcast(ones(), 0, name="j")


def check_broadcast_from_a_rank_that_has_joined() -> None:
    """With SHANTY_JOIN_ALL. It has nothing to send: the others get an error, and may go on."""
    hvd.shutdown()
    os.environ["SHANTY_JOIN_ALL"] = "1"
    hvd.init()
    last = hvd.size() - 1
    if hvd.rank() != last:
        call = lambda: hvd.broadcast(ones(), last, name="b")  # noqa: E731
        raised(hvd.HorovodInternalError, call, "join", ".b")
        assert all_equal(hvd.broadcast(ones(), 0, name="b"), 1)
        assert all_equal(hvd.allreduce(ones(), op=hvd.Sum), last)
    hvd.join()
    goes_on()
    hvd.shutdown()
    del os.environ["SHANTY_JOIN_ALL"]
    hvd.init()


def check_some_ranks_only_would_take_part() -> None:
    """SHANTY_JOIN_ALL on one rank: all ranks have the same error, and none waits for ever."""
    first = hvd.rank() == 0
    hvd.shutdown()
    if first:
        os.environ["SHANTY_JOIN_ALL"] = "1"
    hvd.init()
    if not is_last():
        raised(hvd.HorovodInternalError, lambda: hvd.allgather(ones()), "join")
    hvd.join()
    goes_on()
    hvd.shutdown()
    os.environ.pop("SHANTY_JOIN_ALL", None)
    hvd.init()


# ------------------------------------------------------------------- before and after


def check_before_init() -> None:
    """What is asked for before `init`, or after `shutdown`, names init."""
    for question in (hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank):
        raised(ValueError, question, "init")
    for call in (
        lambda: hvd.allreduce(ones()),
        lambda: hvd.broadcast(ones(), 0),
        lambda: hvd.alltoall(ones()),
        lambda: hvd.grouped_allgather([ones()]),
    ):
        for way, attempt in fw.both(call):
            raised((*REFUSED, *fw.IN_GRAPHS * (way == "graph")), attempt, "init")
    more = (lambda: hvd.broadcast_object(1), lambda: hvd.add_process_set([0]), hvd.join)
    for call in (*more, *fw.more_that_needs_init()):
        raised(REFUSED, call, "init")
    assert not hvd.is_initialized()


def check_after_shutdown() -> None:
    hvd.shutdown()
    check_before_init()
    hvd.shutdown()  # once more does no harm
    hvd.init()
    goes_on()
