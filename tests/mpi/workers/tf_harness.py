"""What the worker scripts of Horovod's API on TensorFlow share: checks on all ranks; errors."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from mpi4py import MPI

import shanty.tensorflow as hvd

tf.get_logger().setLevel("ERROR")  # graphs are traced often here, on purpose

Check = Callable[[], None]
Kinds = type[Exception] | tuple[type[Exception], ...]
BOUND = 60.0  # seconds that one check may take, also on a busy machine

REFUSED = (ValueError, hvd.HorovodInternalError)
"""What an argument that is wrong by itself raises, where TensorFlow is eager."""
IN_GRAPHS = tf.errors.OpError
"""What the same raises in a graph; it says what the error was."""


def run(checks: list[Check], bound: float = BOUND) -> None:
    """Run every check on every rank; rank 0 prints `ok NAME` once all ranks are through it.

    A failure anywhere prints the traceback and aborts the world: the others may be waiting.
    """
    for check in checks:
        begun = time.monotonic()
        try:
            check()
            assert time.monotonic() - begun < bound, "it took too long"
        except Exception:  # noqa: BLE001 (printed, and the world ends)
            print(f"FAILED {check.__name__} on rank {MPI.COMM_WORLD.rank}", flush=True)
            traceback.print_exc()
            sys.stderr.flush()
            MPI.COMM_WORLD.Abort(1)
        if hvd.is_initialized():
            hvd.allreduce(tf.zeros(()), name="a.barrier")
        if MPI.COMM_WORLD.rank == 0:
            print(f"ok {check.__name__} {time.monotonic() - begun:.1f} s", flush=True)


def both(call: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """`call` as it is, and as a graph; each with a word for messages."""
    yield "eager", call
    yield "graph", tf.function(call)


Case = tuple[Any, ...]


def ways(
    cases: Sequence[Case], call: Callable[..., Any], share: int = 7
) -> Iterator[tuple[str, Case, Any]]:
    """The way, the case and the result of `call(*case)`: eagerly for all cases, and for every so
    many of them in one graph, where all are under way at once. To trace one takes 50 ms."""
    for case in cases:
        yield "eager", case, call(*case)
    some = cases[::share]
    yield from zip(
        ["graph"] * len(some), some, in_graph(lambda: [call(*each) for each in some]), strict=True
    )


def in_graph(call: Callable[[], Any]) -> Any:
    """What `call` returns as a graph."""
    return tf.function(call)()


def raised(kinds: Kinds, call: Callable[[], object]) -> str:
    """The message of the error that `call` ends with; it must be one of these kinds."""
    try:
        call()
    except kinds as error:
        return str(error)
    raise AssertionError("no error")


def goes_on() -> None:
    total = hvd.allreduce(tf.ones(3), op=hvd.Sum, name="goes.on")
    assert total.numpy().tolist() == [hvd.size()] * 3, total


def differs(call: Callable[[bool], object], *words: str) -> None:
    """`call(odd)` on all ranks, odd on the last one: one and the same error on all of them, with
    these words. Then the call by the same name goes through, as it should have been. Eagerly, and
    in a graph, whose error contains the same sentence."""
    odd = hvd.rank() == hvd.size() - 1
    sentence = raised(tf.errors.FailedPreconditionError, lambda: call(odd))
    for word in words:
        assert word in sentence, (word, sentence)
    assert set(hvd.allgather_object(sentence)) == {sentence}
    call(False)
    goes_on()
    for kind in (hvd.HorovodInternalError, tf.errors.FailedPreconditionError):
        error = raised(kind, lambda: tf.function(call)(odd))
    assert "HorovodInternalError: " in error, error
    for word in words:
        assert word in error, (word, error)
    tf.function(call)(False)
    goes_on()


def refused(call: Callable[[], object], *words: str, kinds: Kinds = REFUSED) -> None:
    """`call` is refused on every rank, in words that say why, and on it goes; in a graph too."""
    for attempt, errors in ((call, kinds), (tf.function(call), (kinds, IN_GRAPHS))):
        flat = errors if isinstance(errors, tuple) else (errors,)
        expected = tuple(
            kind for each in flat for kind in (each if isinstance(each, tuple) else (each,))
        )
        error = raised(expected, attempt)
        for word in words:
            assert word in error, (word, error)
        goes_on()
