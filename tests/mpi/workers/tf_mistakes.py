"""Deliberate mistakes, each of which must end in its own error on every rank, after which the
ranks go on; eagerly and in graphs. Run through ../test_tf_mistakes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tf_harness import IN_GRAPHS, REFUSED, differs, goes_on, raised, refused, run

import shanty.tensorflow as hvd

v1 = tf.compat.v1


def ones(*shape: int) -> Any:
    return tf.ones(shape or (4,))


# ------------------------------------------------------------------- the ranks disagree


def check_shape() -> None:
    words = ("grad.w", "(4)", "(5)", "rank")
    differs(lambda odd: hvd.allreduce(ones(5 if odd else 4), name="grad.w"), *words)


def check_dtype() -> None:
    kinds = {True: tf.int32, False: tf.float32}  # of one size: MPI would mix them up
    differs(lambda odd: hvd.allreduce(tf.ones(4, kinds[odd]), name="t"), "int32", "float32")


def check_operation() -> None:
    differs(lambda odd: hvd.allreduce(ones(), name="o", op=hvd.Max if odd else hvd.Sum), "MAX")


def check_factor() -> None:
    differs(lambda odd: hvd.allreduce(ones(), name="p", prescale_factor=1 + odd), "prescale")


def check_root() -> None:
    differs(lambda odd: hvd.broadcast(ones(), int(odd), name="b"), "root 0", "root 1", ".b")


def check_number_in_group() -> None:
    differs(
        lambda odd: hvd.grouped_allreduce([ones()] * (3 if odd else 2), name="g"), "grouped", ".g"
    )


def check_columns() -> None:
    differs(lambda odd: hvd.allgather(ones(2, 4 if odd else 3), name="a"), "4", "3", ".a")
    rows = hvd.size()
    differs(lambda odd: hvd.alltoall(ones(rows, 4 if odd else 3), name="a"), "4", "3", ".a")
    differs(lambda odd: hvd.reducescatter(ones(rows + odd, 2), name="r"), f"({rows}, 2)")


def gradients(columns: int) -> Any:
    w, b = tf.Variable(ones(3, columns)), tf.Variable(ones(columns))
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(ones(1, 3) @ w + b)
    return tape.gradient(loss, [w, b])


def check_models_that_differ() -> None:
    """A layer that is wider on one rank: the shapes are named."""
    odd = hvd.rank() == hvd.size() - 1
    for attempt, kind in ((gradients, hvd.HorovodInternalError), (in_a_graph, IN_GRAPHS)):
        error = raised(kind, lambda attempt=attempt: attempt(2 if odd else 1))
        for word in ("DistributedGradientTape.gradients", "(3, 1)", "(3, 2)"):
            assert word in error, (word, error)
        goes_on()
        attempt(1)


def in_a_graph(columns: int) -> Any:
    w, b = tf.Variable(ones(3, columns)), tf.Variable(ones(columns))

    @tf.function
    def compute() -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(ones(1, 3) @ w + b)
        return tape.gradient(loss, [w, b])

    return compute()


def check_models_of_other_depth() -> None:
    odd = hvd.rank() == hvd.size() - 1
    variables = [tf.Variable(ones(2)) for _ in range(3 if odd else 2)]

    def compute() -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.add_n([tf.reduce_sum(each) for each in variables])
        return tape.gradient(loss, variables)

    error = raised(hvd.HorovodInternalError, compute)
    assert "gradients.0" in error, error
    error = raised(IN_GRAPHS, tf.function(compute))
    assert "HorovodInternalError: " in error and "gradients.0" in error, error
    goes_on()


def check_variables_of_other_shape() -> None:
    def call(odd: bool) -> None:
        hvd.broadcast_variables([made[odd]], root_rank=0)

    made = {odd: tf.Variable(ones(2 + odd)) for odd in (True, False)}
    differs(call, "variables", "(3)", "(2)")


# --------------------------------------------------------------- wrong by themselves


def check_splits() -> None:
    size = hvd.size()
    wrong = tf.errors.InvalidArgumentError
    refused(lambda: hvd.alltoall(ones(size), splits=[2] * size), "split", kinds=wrong)
    refused(lambda: hvd.alltoall(ones(size), splits=[2] * size), "split")
    refused(lambda: hvd.alltoall(ones(size + 1), splits=[1] * (size + 1)), "split")
    refused(lambda: hvd.alltoall(ones(size), splits=[-1, 2] + [1] * (size - 2)), "split")
    refused(lambda: hvd.alltoall(ones(size + 1)), "split")


def check_broadcast_from_nobody() -> None:
    for root in (hvd.size(), -1):
        refused(lambda root=root: hvd.broadcast(ones(), root), str(root))


def check_a_number_has_no_rows() -> None:
    for call in (hvd.reducescatter, hvd.allgather, hvd.alltoall):
        refused(lambda call=call: call(tf.constant(1.0)), "dimension")


def check_operation_not_for_this_type() -> None:
    refused(lambda: hvd.allreduce(tf.constant([1j]), op=hvd.Max), "complex128", "Max")
    refused(lambda: hvd.allreduce(tf.constant([True])), "bool", "Average")
    refused(lambda: hvd.allreduce(tf.constant(["text"])), "string")
    kinds = (*REFUSED, NotImplementedError)
    refused(lambda: hvd.reducescatter(ones(hvd.size()), op=hvd.Adasum), "Adasum", kinds=kinds)
    refused(lambda: hvd.reducescatter(ones(hvd.size()), op=hvd.Min), "Min")


def check_sets() -> None:
    first = hvd.add_process_set([0])
    last = hvd.size() - 1
    if hvd.rank() != 0:
        error = raised(REFUSED, lambda: hvd.allreduce(ones(), process_set=first))
        assert str(hvd.rank()) in error, error
        call = tf.function(lambda: hvd.allreduce(ones(), process_set=first))
        assert str(hvd.rank()) in raised((*REFUSED, IN_GRAPHS), call)
    else:
        error = raised(REFUSED, lambda: hvd.broadcast(ones(), last, process_set=first))
        assert f"rank {last}" in error, error
    goes_on()
    assert hvd.remove_process_set(first)
    refused(lambda: hvd.allreduce(ones(), process_set=first), "not registered")


# ------------------------------------------------------------------ tapes and optimizers


def check_wrapped_twice() -> None:
    def tape() -> Any:
        return hvd.DistributedGradientTape(hvd.DistributedGradientTape(tf.GradientTape()))

    refused(tape, "once", kinds=ValueError)

    def optimizer() -> Any:
        return hvd.DistributedOptimizer(
            hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))
        )

    refused(optimizer, "once", kinds=ValueError)


def check_options_that_contradict() -> None:
    for options in (
        {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
        {"groups": 0},
        {"groups": -1},
        {"groups": "all"},
    ):
        word = next(iter(options))
        for call in (
            lambda how=options: hvd.DistributedGradientTape(tf.GradientTape(), **how),
            lambda how=options: hvd.DistributedOptimizer(
                v1.train.GradientDescentOptimizer(0.1), **how
            ),
        ):
            assert word in raised(ValueError, call)


def check_variables_that_are_not_built() -> None:
    layer = tf.keras.layers.Dense(2)
    hvd.broadcast_variables(layer.variables, root_rank=0)  # there are none
    error = raised(ValueError, lambda: hvd.broadcast_variables([1.0], root_rank=0))
    assert "built" in error, error
    model = tf.keras.Sequential([layer])
    error = raised(ValueError, lambda: hvd.elastic.TensorFlowKerasState(model))
    assert "built" in error, error


def check_slices_without_sparse_as_dense() -> None:
    rows = tf.IndexedSlices(ones(1, 2), tf.constant([0]), tf.constant([3, 2]))
    error = raised(NotImplementedError, lambda: hvd.allreduce(rows, op=hvd.Adasum))
    assert "sparse_as_dense" in error, error


# ------------------------------------------------------------------------------ join


def check_what_goes_on_while_a_rank_has_joined() -> None:
    last = hvd.size() - 1
    if hvd.rank() != last:
        gather = lambda: hvd.allgather(ones(), name="j")  # noqa: E731
        for call, kind in ((gather, hvd.HorovodInternalError), (tf.function(gather), IN_GRAPHS)):
            error = raised(kind, call)
            assert "join" in error and ".j" in error and str(last) in error, error
        assert hvd.allreduce(ones(), op=hvd.Sum).numpy().tolist() == [last] * 4
    hvd.join()
    goes_on()


# ------------------------------------------------------------------- before and after


def check_before_init() -> None:
    """What is asked for before `init`, or after `shutdown`, names init."""
    for question in (hvd.rank, hvd.size, hvd.local_rank, hvd.rank_op):
        assert "init" in raised(ValueError, question)
    calls: list[Callable[[], object]] = [
        lambda: hvd.allreduce(ones()),
        lambda: hvd.broadcast_variables([tf.Variable(1.0)], 0),
        lambda: hvd.alltoall(ones()),
        lambda: hvd.grouped_allgather([ones()]),
        lambda: hvd.broadcast_object(1),
        lambda: hvd.add_process_set([0]),
        hvd.join,
        lambda: gradients(1),
    ]
    for call in calls:
        assert "init" in raised(REFUSED, call)
    for call in (calls[0], calls[2]):
        assert "init" in raised((*REFUSED, IN_GRAPHS), tf.function(call))
    assert not hvd.is_initialized()


def check_after_shutdown() -> None:
    hvd.shutdown()
    check_before_init()
    hvd.init()
    goes_on()


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]

if __name__ == "__main__":
    run([check_before_init])
    hvd.init()
    run([each for each in CHECKS if each is not check_before_init])
    hvd.shutdown()
