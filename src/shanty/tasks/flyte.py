"""A Flyte task in a rank: loaded by its module and name, as on a cluster, and called.

The content of a `FlyteFile` or `FlyteDirectory` is sent to the ranks and back, wherever it occurs
in a value; of remote files (s3://…) the address is sent. flytekit is imported when a call is made.

`python -m shanty.tasks.flyte --inputs BASE64 RESOLVER ARGS…` is a rank without a caller: the
command of an MPIJob that `shanty flyte run --dry-run -o yaml` prints.
"""

from __future__ import annotations

import atexit
import base64
import os
import shutil
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from shanty.tasks.data import Folder
from shanty.tasks.errors import ignores_outputs
from shanty.tasks.task import in_rank

CONTENT, PATH = "content", "path"  # how files travel
_way: ContextVar[str] = ContextVar("_way", default="")


class Call:
    """Calls a task in a rank. What comes back is (value,): nothing is a rank without outputs."""

    def __init__(self, name: str, resolver: str, loader_args: Sequence[str]) -> None:
        self.__qualname__ = name
        self.resolver = resolver
        self.loader_args = list(loader_args)

    def __call__(self, **inputs: Any) -> tuple[Any]:
        """Load the task and call it."""
        task = self.load()
        _remove_at_the_end()
        with in_task():
            value = task.execute(**inputs)
        let_files_travel()
        _way.set(CONTENT)  # the value is pickled when this has returned
        return (as_declared(value, task.python_interface.outputs),)

    def load(self) -> Any:
        """Return flytekit's task."""
        from flytekit.tools.module_loader import load_object_from_module

        return load_object_from_module(self.resolver).load_task(self.loader_args)


def _remove_at_the_end() -> None:
    """Have the folders removed that flytekit makes when it is imported; results are copied."""
    from flytekit.configuration import Config
    from flytekit.core import data_persistence

    for owner, name in ((Config, "local_sandbox_path"), (data_persistence, "flyte_tmp_dir")):
        folder = getattr(owner, name, None)
        if folder:
            atexit.register(shutil.rmtree, folder, ignore_errors=True)


@contextmanager
def in_task() -> Iterator[None]:
    """Have flytekit know that this is a task's process, where other tasks are plain functions."""
    from flytekit.core.context_manager import ExecutionState, FlyteContextManager

    context = FlyteContextManager.current_context()
    state = context.execution_state.with_params(mode=ExecutionState.Mode.TASK_EXECUTION)
    with FlyteContextManager.with_context(context.with_execution_state(state)):
        yield


def as_declared(value: Any, outputs: Mapping[str, Any]) -> Any:
    """Return a value with files where the task declares them, and a path will do for flytekit."""
    kinds = [*outputs.values()]
    if isinstance(value, tuple) and len(value) == len(kinds):
        return tuple(_as_file(part, kind) for part, kind in zip(value, kinds, strict=True))
    return _as_file(value, kinds[0]) if len(kinds) == 1 else value


def _as_file(value: Any, kind: Any) -> Any:
    from flytekit.types.directory import FlyteDirectory
    from flytekit.types.file import FlyteFile

    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    args = typing.get_args(kind)
    if isinstance(value, list) and typing.get_origin(kind) is list:
        return [_as_file(each, args[0]) for each in value]
    if isinstance(value, dict) and typing.get_origin(kind) is dict and len(args) > 1:
        return {name: _as_file(each, args[1]) for name, each in value.items()}
    if kind is os.PathLike:
        kind = FlyteFile
    is_path = isinstance(value, (str, os.PathLike)) and not isinstance(
        value, (FlyteFile, FlyteDirectory)
    )
    if is_path and isinstance(kind, type) and issubclass(kind, (FlyteFile, FlyteDirectory)):
        return kind(os.fspath(value))
    return value


# ------------------------------------------------------------------------- how files travel


@contextmanager
def files_travel(way: str) -> Iterator[None]:
    """Have files that are pickled in this block travel by their CONTENT, or by PATH."""
    let_files_travel()
    token = _way.set(way)
    try:
        yield
    finally:
        _way.reset(token)


def let_files_travel() -> None:
    """Teach flytekit's files to be pickled; all of their classes, which it makes as it goes."""
    from flytekit.types.directory import FlyteDirectory
    from flytekit.types.file import FlyteFile

    FlyteFile.__reduce_ex__ = FlyteDirectory.__reduce_ex__ = _reduce


def _reduce(file: Any, protocol: int) -> Any:
    from flytekit.core.context_manager import FlyteContextManager
    from flytekit.types.directory import FlyteDirectory

    way = _way.get()
    if not way:  # it is being copied
        return object.__reduce_ex__(file, protocol)
    is_folder = isinstance(file, FlyteDirectory)
    access = FlyteContextManager.current_context().file_access
    source = file.remote_source or (access.is_remote(str(file.path)) and str(file.path))
    if source:
        return _remote, (is_folder, file.extension(), str(source))
    goal = file.remote_directory if is_folder else file.remote_path
    path = os.path.abspath(os.fspath(file))  # noqa: PTH100  links stay what they are
    content = Folder(path) if way == CONTENT else path
    return _local, (is_folder, file.extension(), content, goal)


def _kind(is_folder: bool, extension: str) -> Any:
    from flytekit.types.directory import FlyteDirectory
    from flytekit.types.file import FlyteFile

    kind: Any = FlyteDirectory if is_folder else FlyteFile
    return kind[extension] if extension else kind


def _remote(is_folder: bool, extension: str, source: str) -> Any:
    return _kind(is_folder, extension).from_source(source)


def _local(is_folder: bool, extension: str, content: str | Folder, goal: Any) -> Any:
    path = os.fspath(content)
    if isinstance(content, Folder) and not in_rank() and not goal:
        # A result: it is to stay when the run is deleted, where flytekit keeps such data.
        from flytekit.core.context_manager import FlyteContextManager

        path = FlyteContextManager.current_context().file_access.put_raw_data(path)
    name = "remote_directory" if is_folder else "remote_path"
    return _kind(is_folder, extension)(path, **{name: goal})


# --------------------------------------------------------------------- a rank by itself


def main(words: Sequence[str]) -> None:
    """Call a task, and print its outputs in rank 0."""
    from flyteidl.core.literals_pb2 import LiteralMap
    from flytekit.core.context_manager import FlyteContextManager
    from flytekit.core.type_engine import TypeEngine
    from flytekit.models import literals

    from shanty import rank

    if len(words) < 3 or words[0] != "--inputs":
        sys.exit("usage: python -m shanty.tasks.flyte --inputs BASE64 RESOLVER ARGS…")
    given = literals.LiteralMap.from_flyte_idl(LiteralMap.FromString(base64.b64decode(words[1])))
    task = Call("", words[2], words[3:]).load()
    context = FlyteContextManager.current_context()
    inputs = TypeEngine.literal_map_to_kwargs(context, given, task.python_interface.inputs)
    try:
        with in_task():
            value = task.execute(**inputs)
    except Exception as error:
        if ignores_outputs(error):
            return
        raise
    if rank() == 0:
        print(value, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    main(sys.argv[1:])
