"""The framework with which checks of Horovod's API run in this launch, and what they expect of it.

`fw` is the module on_FRAMEWORK.py. Any of these has `begin`, `barrier`, `end`, and `BOUND`, the
seconds that one check may take. on_torch and on_tensorflow also have:

    hvd                     shanty's module
    EVERY, REDUCED          names of types that can be sent, and reduced
    WITHOUT_AVERAGE         those of the latter that cannot be averaged
    SAME_ON_ALL             the errors of calls that differ between ranks, by way
    IN_GRAPHS               the errors that a graph raises instead of any other
    tensor(values, dtype)   a tensor; `array` is what `given` makes of them
    wide(value), raw(value) a value in float64 or complex128, and its bytes, as NumPy has them
    unreducible()           tensors that cannot be reduced
    sum(tensor)             its sum, which has a gradient
    more_that_needs_init()  calls besides those that both have
    both(call)              each way to run a call, as pairs of a word and a function
    ways(cases, call)       the way, the case and the result of `call(*case)`
    forms(name)             functions that do what hvd's function of this name does
    grouped(name)           the same for a grouped call, with the type of what each returns
    splits_as(splits)       splits as all that alltoall takes, and the type of what it returns
    gradients(call, w, *xs) the way and the gradients of sum(call(*xs) * w)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from checks import Kinds, raised, some

fw: Any = import_module(f"on_{os.environ['FRAMEWORK']}")
hvd: Any = fw.hvd
REFUSED = (ValueError, hvd.HorovodInternalError)
"""What Horovod raises for an argument that is wrong by itself: one or the other."""


def forms_of(name: str, cases: Sequence[Any], step: int) -> Iterator[tuple[Any, Sequence[Any]]]:
    """The call of this name with all cases, and each other form of it with every `step`-th: others
    each day, so that each form has had all of them after `step` days."""
    for number, form in enumerate(fw.forms(name)):
        yield form, some(cases, step) if number else cases


def ones(*shape: int, dtype: str = "float32") -> Any:
    return fw.tensor(np.ones(shape or (4,)), dtype)


def all_equal(tensor: Any, value: float) -> bool:
    return bool((fw.wide(tensor) == value).all())


def goes_on() -> None:
    """The ranks still understand each other."""
    assert all_equal(hvd.allreduce(ones(3), op=hvd.Sum, name="goes.on"), hvd.size())


def is_last() -> bool:
    return bool(hvd.rank() == hvd.size() - 1)


def differs(call: Callable[[bool], object], *words: str) -> None:
    """`call(odd)` on all ranks, odd on the last one: one and the same error on all of them, with
    these words. Then the call by the same name succeeds, as it should have at first."""
    for way, attempt in fw.both(call):
        for kind in fw.SAME_ON_ALL[way]:
            message = raised(kind, lambda attempt=attempt: attempt(is_last()), *words)
        if way == "graph":  # TensorFlow adds to it where the operation is
            assert "HorovodInternalError: " in message, message
        else:
            assert set(hvd.allgather_object(message)) == {message}
        attempt(False)
        goes_on()


def refused(call: Callable[[], object], *words: str, kinds: Kinds = REFUSED) -> None:
    """`call` is refused on every rank with these words, and the ranks go on."""
    for way, attempt in fw.both(call):
        kind = kinds if isinstance(kinds, tuple) else (kinds,)
        raised((*kind, *fw.IN_GRAPHS) if way == "graph" else kind, attempt, *words)
        goes_on()
