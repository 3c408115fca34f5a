"""What is said of an exception that ended a script."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shanty.runtime.rank.post_mortem import advice, changed, reason

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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "Message truncated, error stack:\n"
            "internal_Allreduce_c(342).: MPI_Allreduce_c(sendbuf=0x7f, count=1) failed\n"
            "MPID_Allreduce(483).......: \n(unknown)(): Message truncated",
            "MPI_Allreduce failed: Message truncated",
        ),
        (
            "Other MPI error, error stack:\n"
            "internal_Comm_connect(103): MPI_Comm_connect(port_name=a, MPI_COMM_SELF) failed\n"
            "get_tag_from_port(199)....: no port_name tag in MPI port.  Make it",
            "MPI_Comm_connect failed: no port_name tag in MPI port.  Make it",
        ),
        (
            "Invalid rank, error stack:\ninternal_Send_c(316): MPI_Send_c(count=3, 99) failed\n"
            "internal_Send_c(234): Invalid rank has value 99 but must be less than 2",
            "MPI_Send failed: Invalid rank has value 99 but must be less than 2",
        ),
        (
            "Message truncated, error stack:\ninternal_Recv_c(7): MPI_Recv_c(count=3) failed\n"
            "x(1): Message from rank 0 truncated; 800 bytes received but buffer size is 400",
            "MPI_Recv failed: Message truncated: Message from rank 0 truncated; 800 bytes received "
            "but buffer size is 400",
        ),
        ("MPI_ERR_TRUNCATE: message truncated", "Exception: MPI_ERR_TRUNCATE: message truncated"),
    ],
)
def test_of_mpi(text: str, why: str) -> None:
    """MPICH and Intel MPI add the stack of their own functions."""
    assert reason(type("Exception", (Exception,), {"__module__": "mpi4py.MPI"})(text)) == why


def test_of_others() -> None:
    error = RuntimeError(f"{SENTENCE}\n{TRACE}")
    assert reason(error) == f"RuntimeError: {error}"


def test_without_a_text_the_place_is_the_reason(tmp_path: Path) -> None:
    """The line that raised it, and the script's that led there."""
    library = tmp_path / "site-packages" / "library.py"
    library.parent.mkdir()
    library.write_text("def check(value):\n    assert value\n")
    scope: dict[str, Any] = {}
    exec(compile(library.read_text(), str(library), "exec"), scope)
    script = compile("\ncheck(0)", "/home/ann/train.py", "exec")
    with pytest.raises(AssertionError) as caught:
        exec(script, {**scope})
    assert reason(caught.value.with_traceback(caught.tb.tb_next)) == (
        "AssertionError at library.py:2: assert value (called at train.py:2)"
    )
    assert reason(KeyError()) == "KeyError"


def advised(error: Exception, size: int, place: str = "src/mpi4py/MPI.src/Comm.pyx") -> str:
    """The advice for an error that is raised in that file, for an array of so many bytes."""
    scope = {"error": error.with_traceback(None)}
    exec(compile("def call(array): raise error", place, "exec"), scope)
    array = SimpleNamespace(nbytes=size)
    try:
        scope["call"](array)  # type: ignore[operator]
    except Exception as found:  # noqa: BLE001
        return advice(found)
    raise AssertionError


def test_of_a_message_that_is_too_long() -> None:
    refused = RuntimeError("MPI_ERR_ARG: invalid argument of some other kind")
    assert "array has 2.0 GiB" in advised(refused, 2**31)
    assert "--mpi mpich" in advised(refused, 2**31)
    assert "array has 4.0 GiB" in advised(OverflowError("integer 4294967296"), 2**32)
    assert not advised(refused, 2**20)  # another argument is wrong
    assert not advised(OverflowError("math range error"), 2**31, "mine.py")
    assert "the pickled object" in advised(refused, 0, "src/mpi4py/MPI.src/msgpickle.pxi")


@pytest.mark.parametrize(
    ("home", "error", "found"),
    [
        ("/proc/1", PermissionError(13, "Permission denied", "/proc/1/.cache"), True),
        ("/no/such", PermissionError(13, "Permission denied", "/no"), True),
        ("/no/such", FileNotFoundError(2, "No such file", "/no/such/.cache/x"), True),
        ("/proc", OSError(30, "Read-only file system", "/proc/.config"), True),
        ("/no/such", PermissionError(13, "Permission denied", "/data/x"), False),
        ("/no/such", PermissionError(13, "Permission denied", "x"), False),
        ("/proc", FileNotFoundError(2, "No such file", "/proc/data.csv"), False),
        ("", PermissionError(13, "Permission denied", "/x"), False),
    ],
)
def test_a_home_that_is_not_writable(
    monkeypatch: pytest.MonkeyPatch, home: str, error: OSError, found: bool
) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr("os.access", lambda _path, _mode: False)  # the tests may be root's
    said = advice(error)
    assert (f"HOME is {home}" in said and "-e HOME=/tmp" in said) if found else not said


def test_a_file_that_hides_a_module_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random.py").write_text("import does_not_exist\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = str(tmp_path / "random.py")
    try:
        exec(compile("import does_not_exist", path, "exec"), {})
    except ModuleNotFoundError as error:
        found = advice(error)
    assert found.startswith(f"{path} hides Python's own module 'random': rename it")
    assert "take its folder out of PYTHONPATH" in found


def test_a_script_that_was_changed_while_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text("1 / 0\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    try:
        exec(compile("1 / 0", str(script), "exec"), {})
    except ZeroDivisionError as error:
        written = script.stat().st_mtime
        assert changed(error, written + 1) == ""
        assert changed(error, written - 1).startswith("train.py was changed after")
