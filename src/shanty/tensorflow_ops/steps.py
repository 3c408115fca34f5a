"""A collective as a step of a computation: at once where TensorFlow is eager, else in the graph.

In a graph a step consists of three operations. The first submits the request and returns, the
second waits for a token if the request has not ended by then, and the third takes the results. The
second occupies none of the threads that run operations, so any number of steps can be under way,
in different orders on different ranks. The token arrives through a queue of TensorFlow. A session
has no queue that could be filled from outside, so there the token arrives through an iterator,
which TensorFlow reads in a thread of its own.
"""

from __future__ import annotations

import itertools
import queue
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from shanty.collectives import array_calls, process_sets
from shanty.collectives.array_calls import Array
from shanty.collectives.errors import ArgumentError, DuplicateNameError, HorovodInternalError
from shanty.collectives.process_sets import ProcessSet
from shanty.collectives.request import Kind, Request
from shanty.tensorflow_ops.errors import of_tensorflow
from shanty.tensorflow_ops.installed import tf, v1
from shanty.tensorflow_ops.memory import array_of, tensor_of

Prepare = Callable[..., Request]
"""Makes the request of a step from the arrays of its tensors."""
Results = Callable[[Request], Sequence[Array]]

_latest: weakref.WeakValueDictionary[tuple[int | None, Kind, str | None], Request]
_latest = weakref.WeakValueDictionary()  # of graphs, by process set, kind and name
_ENDLESS = 1 << 62  # tokens
_KEPT = 32  # results that a step keeps for graphs which have not taken them yet


@dataclass(frozen=True)
class Outcome:
    """The type and, as far as it is known beforehand, the shape of one result."""

    dtype: Any
    shape: Any


def run(
    tensors: Sequence[Any],
    prepare: Prepare,
    outcomes: Sequence[Outcome],
    process_set: ProcessSet,
    results: Results = lambda request: request.results,
) -> list[Any]:
    """Return the results of a collective of these tensors, as tensors.

    prepare: of all of them. outcomes: what comes of it, at least one. results: finds that in the
        request.
    """
    if tf.executing_eagerly():
        with of_tensorflow():
            request = prepare(*map(array_of, tensors))
            array_calls.done(request, process_set)
        return [tensor_of(each) for each in results(request)]
    step = _Step(prepare, results, process_set)
    return step.place(list(tensors), outcomes)


def name_of(
    kind: str, tensors: Sequence[Any], name: str | None, ignore_name_scope: bool
) -> str | None:
    """Return the name by which the ranks find each other's step; None: by the order of calls.

    In a graph a step without a name is named after its tensors, as in Horovod, and names are
    unique. A tensor from outside the graph has a number as its name, which each rank counts by
    itself.
    """
    if tf.executing_eagerly():
        return name
    if name is None:
        ends = [tensors[0]] if len(tensors) == 1 else [tensors[0], tensors[-1]]
        words = [
            re.sub(r"\W", "_", re.sub(r"(?<!\w)\d+:", "captured:", each.name)) for each in ends
        ]
        name = "_".join([f"Horovod{kind}", *words])
    unique: str = v1.get_default_graph().unique_name(name)
    return unique.rpartition("/")[2] if ignore_name_scope else unique


class _Step:
    """One place in a graph. It may be under way several times, in a loop."""

    def __init__(self, prepare: Prepare, results: Results, process_set: ProcessSet) -> None:
        self._prepare = prepare
        self._results = results
        self._process_set = process_set
        self._numbers = itertools.count(1)
        self._started: dict[int, Request] = {}
        self._lock = threading.Lock()
        self._tell: Callable[[], object] = _nothing

    def place(self, tensors: list[Any], outcomes: Sequence[Outcome]) -> list[Any]:
        graph = v1.get_default_graph()
        in_session = not v1.executing_eagerly_outside_functions()
        waiting = _session_tokens(graph) if in_session else _eager_tokens(graph)
        self._tell, wait = waiting
        number, tokens = tf.numpy_function(self._start, tensors, [tf.int64, tf.int32])
        _apart(graph, number)
        with tf.control_dependencies([wait(tokens)]):
            made = tf.numpy_function(self._finish, [number], [each.dtype for each in outcomes])
        _apart(graph, made[0])
        for tensor, each in zip(made, outcomes, strict=True):
            tensor.set_shape(each.shape)
        return list(made)

    def _start(self, *arrays: Array) -> Any:
        if any(each.dtype.hasobject for each in arrays):
            raise ArgumentError("A tensor of type string cannot be sent.")
        request = self._prepare(*arrays)
        with self._lock:
            number = next(self._numbers)
            self._forget()
            self._started[number] = request
        ended = left = False  # the request has ended; this call has returned

        def then() -> None:
            nonlocal ended
            with self._lock:
                ended, late = True, left
            if late:
                self._tell()

        request.then = then
        _submit(request, self._process_set)
        # If all ranks have arrived, this completes the request, faster than another thread would.
        # Otherwise it soon gives up, and the thread is free for steps that other ranks wait for.
        process_sets.negotiator(self._process_set).drive(request)
        with self._lock:
            left = True
            return np.int64(number), np.int32(not ended)

    def _finish(self, number: Any) -> list[Array]:
        with self._lock:
            request = self._started.pop(int(number))
        request.wait()  # it has ended, unless an earlier graph has left its token
        return list(self._results(request))

    def _forget(self) -> None:
        """Drop results that a graph has not taken because it failed elsewhere."""
        for number in [*self._started][:-_KEPT]:
            if self._started[number].done:
                del self._started[number]


def _submit(request: Request, process_set: ProcessSet) -> None:
    """Queue a request, after an earlier one of its name that a failed graph has left."""
    key = process_set.process_set_id, request.kind, request.name
    try:
        array_calls.submit(request, process_set)
    except DuplicateNameError:
        earlier = _latest.get(key)
        if earlier is None:
            raise
        with suppress(HorovodInternalError):
            earlier.wait()
        array_calls.submit(request, process_set)
    _latest[key] = request


def _nothing() -> None:
    """Gives no token, since no operation waits for one."""


_Tokens = tuple[Callable[[], object], Callable[[Any], Any]]
"""A call that gives one token, and a function that creates the operation that waits for tokens."""


def _eager_tokens(graph: Any) -> _Tokens:
    """Create tokens with a queue outside all graphs."""
    with tf.init_scope():
        tokens = tf.queue.FIFOQueue(-1, [tf.int64], shapes=[()])

    def wait(number: Any) -> Any:
        handle = _within(graph, tokens.queue_ref)
        types = [tf.int64]
        (found,) = tf.raw_ops.QueueDequeueManyV2(handle=handle, n=number, component_types=types)
        return found

    # TensorFlow keeps every distinct number that it gets, so all tokens are equal
    return lambda: tokens.enqueue(0), wait


def _session_tokens(graph: Any) -> _Tokens:
    """Create tokens with an iterator. A dataset's function may run in the thread that reads it."""
    tokens: queue.SimpleQueue[np.int64] = queue.SimpleQueue()

    def take(number: Any) -> Any:
        taken = tf.numpy_function(tokens.get, [], tf.int64)
        taken.set_shape([])
        return taken

    def wait(number: Any) -> Any:
        none = tf.zeros([], tf.int64)
        return v1.cond(number > 0, reader.get_next, lambda: tf.identity(none))

    with tf.control_dependencies(None):
        kind = tf.TensorSpec([], tf.int64)
        variant = tf.raw_ops.MapDataset(
            input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(_ENDLESS)),
            other_arguments=[],
            f=tf.function(take, input_signature=[kind]).get_concrete_function(),
            output_types=[tf.int64],
            output_shapes=[[]],
            use_inter_op_parallelism=False,
        )
        plain = tf.data.Options()  # otherwise it would be read ahead
        plain.autotune.enabled = plain.experimental_optimization.apply_default_optimizations = False
        dataset = tf.data.experimental.from_variant(variant, kind).with_options(plain)
        reader = v1.data.make_one_shot_iterator(dataset)
    return lambda: tokens.put(np.int64(0)), wait


def _within(graph: Any, tensor: Any) -> Any:
    """Return an outside tensor as a tensor of the graph, captured by each enclosing graph in turn.

    The gradient of a branch cannot capture a tensor past its enclosing graphs.
    """
    if not hasattr(graph, "capture"):
        return tensor
    outer = graph.outer_graph
    return graph.capture(tensor if outer is None else _within(outer, tensor))


def _apart(graph: Any, tensor: Any) -> Any:
    """Let its operation run in any order with others of its kind, unless TensorFlow cannot."""
    manager = getattr(graph, "experimental_acd_manager", None)
    if manager is not None:
        manager.run_independently(tensor.op)
    return tensor
