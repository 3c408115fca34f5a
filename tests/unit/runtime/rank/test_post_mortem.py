"""What is said of an exception that ended a script."""

from __future__ import annotations

import pytest

from shanty.runtime.rank.post_mortem import reason

SENTENCE = "HorovodInternalError: The ranks differ:\n  rank 0: x\n  rank 1: y"
TRACE = (
    "Traceback (most recent call last):\n\n"
    '  File "/lib/script_ops.py", line 269, in __call__\n    ret = func(*args)\n\n'
    f"shanty.collectives.errors.{SENTENCE}\n\n\n\t [[{{{{node PyFunc}}}}]] [Op:__inference_g_8]"
)
WHERE = (
    "Graph execution error:\n\nDetected at node PyFunc defined at (most recent call last):\n"
    '  File "/work/train.py", line 13, in <module>\n\n'
)


class UnknownError(Exception):
    """As TensorFlow has it."""

    __module__ = "tensorflow.python.framework.errors_impl"


@pytest.mark.parametrize(
    "text",
    [
        f"{WHERE}{SENTENCE}\n{TRACE}",
        f"{WHERE}Node: 'PyFunc'\n{SENTENCE}\n{TRACE}",
        f"{SENTENCE}\n{TRACE}",
        f"{{{{function_node __inference_graph_1349}}}} {SENTENCE}\n{TRACE}",
        f"2 root error(s) found.\n  (0) UNKNOWN:  {SENTENCE}\n{TRACE}\n  (1) UNKNOWN:  Other: x",
    ],
)
def test_of_a_function_in_a_graph(text: str) -> None:
    assert reason(UnknownError(text)) == SENTENCE


def test_of_tensorflow_itself() -> None:
    text = f"{WHERE}assertion failed: [1] [2]\n\t [[{{{{node Assert}}}}]]"
    assert reason(UnknownError(text)) == f"UnknownError: {text}"


class JaxRuntimeError(Exception):
    """As JAX has it."""

    __module__ = "jaxlib._jax"


def test_of_a_collective_in_a_compiled_step() -> None:
    text = f"INTERNAL: CpuCallback error calling callback: {TRACE}"
    assert reason(JaxRuntimeError(text)) == SENTENCE
    assert reason(JaxRuntimeError("INTERNAL: else")) == "JaxRuntimeError: INTERNAL: else"


def test_of_others() -> None:
    error = RuntimeError(f"{SENTENCE}\n{TRACE}")
    assert reason(error) == f"RuntimeError: {error}"
