"""Calls a Python function on each rank of `horovod.run`: `python -m shanty.compat.task`.

The call comes pickled from another process, and so do the results go back.
"""

from __future__ import annotations

import pickle
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import shanty

RESULTS = "horovod-run.pickle"  # among the run's artifacts: a list of pickles, by rank
_MAIN = "__mp_main__"  # what multiprocessing calls a script in its children, and people know
_loading = False  # a rank imports the script


def dump(value: Any) -> bytes:
    """Return `value`, pickled; by cloudpickle where it is installed, which takes lambdas, too."""
    data: bytes = _pickler().dumps(value)
    return data


def _pickler() -> ModuleType:
    try:
        import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return pickle
    found: ModuleType = cloudpickle
    return found


def refuse_while_loading() -> None:
    """Raise RuntimeError in a rank that imports the script, which has no business to call us."""
    if _loading:
        raise RuntimeError(
            "horovod.run is called again where a rank imports the script to find its function. "
            "Put the call under `if __name__ == '__main__':`, or `pip install cloudpickle`, with "
            "which the script is not imported."
        )


def dump_call(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Return a call, with what another process needs to find its function.

    Raises ValueError for what cannot be pickled.
    """
    # cloudpickle takes what the script has by value, pickle by name.
    main = getattr(sys.modules["__main__"], "__file__", None) if _pickler() is pickle else None
    folders = [str(Path(folder or ".").absolute()) for folder in sys.path]
    try:
        call = dump((func, tuple(args), dict(kwargs)))
    except Exception as error:
        raise ValueError(
            f"the function and its arguments must be such that pickle takes them: {error}. "
            "With `pip install cloudpickle`, lambdas and inner functions are."
        ) from error
    return pickle.dumps((folders, main and str(Path(main).absolute()), call))


def load_call(data: bytes) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the function, its arguments and keyword arguments of what `dump_call` made."""
    global _loading
    folders, main, call = pickle.loads(data)
    sys.path += [folder for folder in folders if folder not in sys.path and Path(folder).is_dir()]
    if b"__main__" in call and main and Path(main).is_file():
        module = ModuleType(_MAIN)
        module.__file__ = main
        sys.modules["__main__"] = sys.modules[_MAIN] = module
        _loading = True
        try:
            module.__dict__.update(runpy.run_path(main, run_name=_MAIN))
        finally:
            _loading = False
        module.__name__ = _MAIN
    func, args, kwargs = pickle.loads(call)
    return func, args, kwargs


def main() -> None:
    """Take the call from rank 0's standard input, make it, and give the results to rank 0."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    given = sys.stdin.buffer.read() if world.rank == 0 else None
    func, args, kwargs = load_call(world.bcast(given))
    result = dump(func(*args, **kwargs))
    if "shanty.collectives.world" in sys.modules:
        from shanty.collectives import world as horovod

        horovod.shutdown()
    results = world.gather(result)
    if results is not None:
        (shanty.artifacts() / RESULTS).write_bytes(dump(results))


if __name__ == "__main__":
    main()
