"""A collective as a step of a computation: at once where TensorFlow is eager, else in the graph.

In a graph a step is three operations: one that submits the request and returns, one that waits for
a token in a queue of TensorFlow's if it has not ended by then, and one that takes the results. The
middle one occupies no thread, so that any number of steps can be under way, and they may come in
another order on another rank. Sessions of TensorFlow 1 have no queue that could be filled from
outside: there the last one waits, in one of a pool of threads, which `widen` makes large enough for
many steps.
"""

from __future__ import annotations

import itertools
import os
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
from shanty.tensorflow.installed import tf, v1
from shanty.tensorflow.memory import array_of, tensor_of

Prepare = Callable[..., Request]
"""Makes the request of a step from the arrays of its tensors."""
Results = Callable[[Request], Sequence[Array]]

_THREADS = 64  # of a session, each of which can wait for a step
_latest: weakref.WeakValueDictionary[tuple[int | None, Kind, str | None], Request]
_latest = weakref.WeakValueDictionary()  # of graphs, by process set, kind and name
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
        request = prepare(*map(array_of, tensors))
        array_calls.done(request, process_set)
        return [tensor_of(each) for each in results(request)]
    step = _Step(prepare, results, process_set)
    return step.place(list(tensors), outcomes)


def name_of(
    kind: str, tensors: Sequence[Any], name: str | None, ignore_name_scope: bool
) -> str | None:
    """Return the name by which the ranks find each other's step; None: by the order of calls.

    In a graph one that has none is named for its tensors, as in Horovod, and is not given twice.
    A tensor from outside of the graph has a number for a name, which each rank counts by itself.
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


def widen() -> None:
    """Have sessions of TensorFlow 1 made with enough threads, unless the script says how many."""
    if not tf.executing_eagerly():
        os.environ.setdefault("TF_NUM_INTEROP_THREADS", str(_THREADS))


class _Step:
    """One place in a graph. It may be under way several times, in a loop."""

    def __init__(self, prepare: Prepare, results: Results, process_set: ProcessSet) -> None:
        self._prepare = prepare
        self._results = results
        self._process_set = process_set
        self._numbers = itertools.count(1)
        self._started: dict[int, Request] = {}
        self._lock = threading.Lock()
        self._queue: Any = None

    def place(self, tensors: list[Any], outcomes: Sequence[Outcome]) -> list[Any]:
        graph = v1.get_default_graph()
        if v1.executing_eagerly_outside_functions():
            with tf.init_scope():
                self._queue = tf.queue.FIFOQueue(-1, [tf.int64], shapes=[()])
        number, tokens = tf.numpy_function(self._start, tensors, [tf.int64, tf.int32])
        _apart(graph, number)
        waits = [] if self._queue is None else [_dequeue(graph, self._queue.queue_ref, tokens)]
        with tf.control_dependencies(waits):
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
        ended = left = False  # the request; this call, which can see no more that it has

        def then() -> None:
            nonlocal ended
            with self._lock:
                ended, late = True, left
            if late and self._queue is not None:
                # TensorFlow keeps every number that it has ever been given: one is enough
                self._queue.enqueue(0)

        request.then = then
        _submit(request, self._process_set)
        # Where all ranks are here by now this does it, which is faster than to hand it over. Else
        # it gives up soon, and the thread is free for the steps that the others may wait for.
        process_sets.controller(self._process_set).drive(request)
        with self._lock:
            left = True
            return np.int64(number), np.int32(not ended)

    def _finish(self, number: Any) -> list[Array]:
        with self._lock:
            request = self._started.pop(int(number))
        request.wait()  # which has ended, unless an earlier graph has left its token
        return list(self._results(request))

    def _forget(self) -> None:
        """Drop what a graph that failed elsewhere has never taken."""
        for number in [*self._started][:-_KEPT]:
            if self._started[number].done:
                del self._started[number]


def _submit(request: Request, process_set: ProcessSet) -> None:
    """Put it into the queue, after one of its name that a graph has left, since it failed."""
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


def _dequeue(graph: Any, queue: Any, tokens: Any) -> Any:
    """Return the operation that waits for tokens in the queue, made outside of all graphs."""
    handle = _within(graph, queue)
    (found,) = tf.raw_ops.QueueDequeueManyV2(handle=handle, n=tokens, component_types=[tf.int64])
    return found


def _within(graph: Any, tensor: Any) -> Any:
    """Return a tensor from outside as one of the graph, taken in by each graph around it in turn.

    The gradient of a branch cannot take one in past those around it.
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
