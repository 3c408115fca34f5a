"""Graphs: order, branches, loops, retracing, process sets, one thread. See run_checks.py."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf
from checks import raised
from references import close, given, reduced, same
from sets import exercise

import shanty.tensorflow as hvd

SIGNATURE = tf.TensorSpec([None, 2])


def check_other_orders_in_one_graph() -> None:
    """Names bring them together, whatever the order in each rank's graph, and none depends on
    another: as many as there are, they wait without a thread each."""
    count = 60
    lots = [given((seed % 7, 3), seed=seed) for seed in range(count)]
    order = list(range(count))
    for turn in range(2):
        random.Random(1000 * turn + hvd.rank()).shuffle(order)

        @tf.function
        def graph(order: tuple[int, ...] = tuple(order)) -> dict[str, Any]:
            found = {}
            for seed in order:
                own = tf.constant(lots[seed][hvd.rank()])
                found[f"{seed:02d}"] = hvd.allreduce(own, op=hvd.Sum, name=f"order.{seed}")
            return found

        for _ in range(3):
            for seed, each in graph().items():
                close(each, reduced(lots[int(seed)], hvd.Sum), seed)


def check_autograph_rewrites_functions_of_the_script_only() -> None:
    rewritten = set()

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name.startswith("tf__"):
            rewritten.add(frame.f_code.co_name)

    def doubled(x: Any) -> Any:
        if tf.reduce_sum(x) > 0.0:
            return 2.0 * x
        return x

    @tf.custom_gradient
    def own(x: Any) -> Any:
        return x, lambda upstream: tf.function(doubled)(upstream)

    @tf.function
    def step(x: Any) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            tape.watch(x)
            loss = tf.reduce_sum(hvd.allreduce(own(x), op=hvd.Sum))
        return tape.gradient(loss, x), hvd.broadcast(x, 0), hvd.allgather(x), hvd.join()

    sys.setprofile(look)
    try:
        gradient = step(tf.ones(2))[0]
    finally:
        sys.setprofile(None)
    assert rewritten == {"tf__step", "tf__doubled"}, rewritten
    close(gradient, np.full(2, 2.0 * hvd.size()))


def check_one_depends_on_another() -> None:
    """A chain in the graph, and of as many others as there are beside it."""

    @tf.function
    def graph(x: Any) -> list[Any]:
        beside = [hvd.allreduce(x * float(n), op=hvd.Sum) for n in range(10)]
        for _ in range(5):
            x = hvd.allreduce(x, op=hvd.Average) + hvd.broadcast(x, hvd.size() - 1)
        return [x, *beside]

    for _ in range(3):
        x, *beside = graph(tf.fill([3], float(hvd.rank())))
        mean, last = (hvd.size() - 1) / 2, hvd.size() - 1
        expected = (mean + last) * 2**4
        close(x, np.full(3, expected))
        for n, each in enumerate(beside):
            close(each, np.full(3, n * mean * hvd.size()))


def check_branches() -> None:
    @tf.function
    def graph(x: Any, yes: Any) -> Any:
        return tf.cond(
            yes,
            lambda: hvd.allreduce(x, op=hvd.Sum, name="yes"),
            lambda: hvd.broadcast(x, 0, name="no") * 2.0,
        )

    tensors = given((3,), seed=2)
    own = tf.constant(tensors[hvd.rank()])
    for yes in (True, False, True):
        expected = reduced(tensors, hvd.Sum) if yes else 2 * tensors[0]
        close(graph(own, tf.constant(yes)), expected, yes)


def check_a_branch_of_one_step_in_three() -> None:
    """As AutoGraph writes it from an `if`, and with gradients through it."""

    @tf.function
    def graph(x: Any, step: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            if step % 3 == 0:
                y = hvd.allreduce(x, op=hvd.Sum)
            loss = tf.reduce_sum(y * y)
        return tape.gradient(loss, x)

    tensors = given((3,), tf.float64, seed=3)
    own = tf.constant(tensors[hvd.rank()])
    for step in range(6):
        total = reduced(tensors, hvd.Sum)
        expected = 2 * total * hvd.size() if step % 3 == 0 else 2 * tensors[hvd.rank()]
        close(graph(own, tf.constant(step)), expected, step)


def check_loops() -> None:
    @tf.function
    def summed(x: Any, times: Any) -> Any:
        for _ in tf.range(times):
            x = hvd.allreduce(x, op=hvd.Average) + 1.0
        return x

    @tf.function
    def gathered(times: Any) -> Any:
        rows = tf.TensorArray(tf.int32, times, infer_shape=False)
        for step in tf.range(times):
            rows = rows.write(step, hvd.allgather(tf.fill([step + 1], hvd.rank())))
        return rows.concat()

    mean = (hvd.size() - 1) / 2
    for times in (1, 4, 0, 20):
        expected = mean + times if times else float(hvd.rank())
        close(summed(tf.fill([2], float(hvd.rank())), tf.constant(times)), np.full(2, expected))
    found = gathered(tf.constant(3))
    expected = [rank for step in range(3) for rank in range(hvd.size()) for _ in range(step + 1)]
    assert found.numpy().tolist() == expected

    @tf.function
    def backwards(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(3):
                y = hvd.allreduce(y, op=hvd.Average) * 2.0
            loss = tf.reduce_sum(y)
        return tape.gradient(loss, x)

    close(backwards(tf.ones(2)), np.full(2, 8.0))


def check_parallel_iterations() -> None:
    """Iterations of a loop that do not depend on each other may be under way together."""

    @tf.function
    def graph(x: Any) -> Any:
        parts = tf.while_loop(
            lambda i, _: i < 8,
            lambda i, total: (i + 1, total + hvd.allreduce(x * tf.cast(i, x.dtype), op=hvd.Sum)),
            [tf.constant(0), tf.zeros(3)],
            parallel_iterations=4,
        )
        return parts[1]

    for _ in range(3):
        close(graph(tf.ones(3)), np.full(3, 28.0 * hvd.size()))


def check_other_shapes() -> None:
    """A new shape is traced anew; with a signature, one graph serves all."""
    traced = []

    def call(x: Any) -> tuple[Any, ...]:
        traced.append(x.shape)
        return (
            hvd.allreduce(x, op=hvd.Sum),
            hvd.allgather(x),
            hvd.reducescatter(x, op=hvd.Sum),
        )

    graph, general = tf.function(call), tf.function(call, input_signature=[SIGNATURE])
    for attempt, count in ((graph, 3), (general, 1)):
        traced.clear()
        for rows in (2, 4, 0, 2, 4):
            tensors = given((rows * hvd.size(), 2), seed=rows)
            total, every, own = attempt(tf.constant(tensors[hvd.rank()]))
            close(total, reduced(tensors, hvd.Sum), rows)
            same(every, np.concatenate(tensors), rows)
            start = rows * hvd.rank()
            close(own, reduced(tensors, hvd.Sum)[start : start + rows], rows)
        assert len(traced) == count, traced


def check_shapes_that_are_known() -> None:
    shapes = []

    @tf.function(input_signature=[SIGNATURE])
    def graph(x: Any) -> Any:
        fixed = tf.ones([2 * hvd.size(), 3])
        for each in (
            *(hvd.allreduce(fixed), hvd.allgather(fixed), hvd.broadcast(fixed, 0)),
            *(hvd.alltoall(fixed), hvd.reducescatter(fixed), hvd.allreduce(x)),
        ):
            shapes.append(each.shape.as_list())
        return hvd.size_op()

    graph(tf.ones([hvd.size(), 2]))
    assert shapes[0] == [2 * hvd.size(), 3] and shapes[2] == shapes[0], shapes
    assert shapes[1] == [None, 3] == shapes[3] == shapes[4], shapes
    assert shapes[5] == [None, 2], shapes


def check_a_name_twice_in_a_graph() -> None:
    """The second one gets another, as TensorFlow does it with its operations."""

    @tf.function
    def graph() -> list[Any]:
        return [hvd.allreduce(tf.fill([2], n), op=hvd.Sum, name="same") for n in (1.0, 2.0, 3.0)]

    for n, each in enumerate(graph(), 1):
        close(each, np.full(2, n * hvd.size()))


def check_tensors_from_outside() -> None:
    """A graph that takes them in numbers them, by what else the rank has made before."""
    before = tf.ones(1)
    if hvd.rank():
        tf.function(lambda: before + before)()
    tensors = given((3,), seed=4)
    x = tf.constant(tensors[hvd.rank()])

    @tf.function
    def graph(yes: Any) -> Any:
        y = hvd.allreduce(x, op=hvd.Sum)
        return tf.cond(yes, lambda: hvd.allreduce(y + x), lambda: hvd.allgather(x))

    expected = reduced(tensors, hvd.Sum) + reduced(tensors, hvd.Average)
    close(graph(tf.constant(True)), expected)
    same(graph(tf.constant(False)), np.concatenate(tensors))


def check_name_scopes() -> None:
    """A rank that is within another scope is found where the scope is to be ignored."""

    @tf.function
    def graph() -> Any:
        with tf.name_scope(f"of_rank_{hvd.rank()}"):
            return hvd.allreduce(tf.ones(2), op=hvd.Sum, name="scoped", ignore_name_scope=True)

    close(graph(), np.full(2, hvd.size()))


def check_a_graph_from_several_threads() -> None:
    import threading

    @tf.function(reduce_retracing=True)
    def graph(x: Any, number: int) -> Any:
        return hvd.allreduce(x, op=hvd.Sum, name=f"thread.{number}")

    found: dict[int, Any] = {}

    def work(number: int) -> None:
        for _ in range(5):
            found[number] = graph(tf.fill([2], float(number)), number)

    for number in range(4):  # traced one after the other: graphs are built in an order
        work(number)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
        assert not each.is_alive()
    for number, each in found.items():
        close(each, np.full(2, number * hvd.size()))


def check_an_error_beside_it() -> None:
    """A graph in which something else fails leaves nothing that harms the next one."""

    @tf.function
    def graph(x: Any, bad: Any) -> Any:
        y = hvd.allreduce(x, op=hvd.Sum, name="beside")
        with tf.control_dependencies([tf.debugging.assert_equal(bad, False)]):
            return y + 1.0

    for bad in (False, True, False, True, False):
        call = lambda bad=bad: graph(tf.ones(2), tf.constant(bad))  # noqa: E731
        if bad:
            raised(tf.errors.InvalidArgumentError, call)
        else:
            close(call(), np.full(2, hvd.size() + 1.0))


def check_process_sets() -> None:
    size = hvd.size()
    sets = [hvd.add_process_set([size - 1])]
    if size > 2:
        sets.append(hvd.add_process_set(range(1, size, 2)))
    for each in (*sets, hvd.global_process_set):
        exercise(each)
    for each in sets:
        assert hvd.remove_process_set(each)


def check_communicator_of_some_ranks() -> None:
    """Horovod ended, and begun again; a graph made before then works afterwards."""
    graph = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="again"))
    for _ in range(2):
        close(graph(tf.ones(2)), np.full(2, hvd.size()))
        hvd.shutdown()
        hvd.init()
