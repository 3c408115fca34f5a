"""What a script needs of its run: where it stands, and a place for what it makes.

Everything works without a run too, as a world of one. Importing this is light: no framework,
no MPI. `shanty.torch` and its kin are separate imports.
"""

from __future__ import annotations

from shanty import _starter
from shanty._version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path
    from types import ModuleType
    from typing import Any, TypeVar

    from shanty.client.future import Future as Future
    from shanty.client.runs import Run as Run
    from shanty.client.runs import find as find
    from shanty.client.runs import runs as runs
    from shanty.sdk.submit import submit as submit
    from shanty.tasks.data import Folder as Folder
    from shanty.tasks.errors import IgnoreOutputs as IgnoreOutputs
    from shanty.tasks.errors import RunError as RunError
    from shanty.tasks.task import each as each
    from shanty.tasks.task import task as task

    T = TypeVar("T")

__all__ = ["Folder", "Future", "IgnoreOutputs", "Run", "RunError", "__version__", "artifacts"]
__all__ += ["each", "find", "local_rank", "log", "progress", "rank", "runs", "size", "submit"]
__all__ += ["task"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    home = _home(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(home, name)
    globals()[name] = found
    return found


def _home(name: str) -> ModuleType | None:
    """Load the module of a name at its first use. Some are for the machine that starts runs."""
    home: ModuleType
    if name in ("task", "each"):
        from shanty.tasks import task as home
    elif name == "Folder":
        from shanty.tasks import data as home
    elif name in ("IgnoreOutputs", "RunError"):
        from shanty.tasks import errors as home
    elif name == "submit":
        from shanty.sdk import submit as home
    elif name in ("Run", "find", "runs"):
        from shanty.client import runs as home
    elif name == "Future":
        from shanty.client import future as home
    elif name in ("load_ipython_extension", "unload_ipython_extension"):
        from shanty.integrations.notebook import magic as home
    else:
        return None
    return home


def _starts_runs() -> ModuleType:
    from shanty.sdk import tasks

    return tasks


_starter.load = _starts_runs


def rank() -> int:
    """This process's rank in its run, 0 … size() - 1; 0 without a run."""
    from shanty import _script

    return _script.place(_script.RANK, "RANK", 0)


def size() -> int:
    """How many ranks the run has; 1 without a run."""
    from shanty import _script

    return _script.place(_script.SIZE, "WORLD_SIZE", 1)


def local_rank() -> int:
    """This process's number among the ranks of its host, counted from 0."""
    from shanty import _script

    return _script.place(_script.LOCAL_RANK, "LOCAL_RANK", 0)


def log(values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
    """Keep numbers or texts with the run, one line of its metrics.jsonl a call.

    `log(step=10, loss=0.3)`, or `log({"train/loss": 0.3})`. Scalars of NumPy or a framework count
    as numbers; those that JSON has no word for are "NaN", "Infinity" and "-Infinity". Each line
    also has the time and the rank. Without a run the values are printed.
    """
    from shanty import _script

    _script.log({**(values or {}), **more})


def artifacts() -> Path:
    """The folder for what the script saves; it is kept with the run.

    The same folder for all ranks of a host: let one rank write a file, or give each rank a
    name of its own. Without a run it is `artifacts` in the current folder.
    """
    from shanty import _script

    return _script.artifacts()


def progress(items: Iterable[T], total: int | None = None, label: str = "") -> Iterator[T]:
    """Loop over `items` and show how far the loop is: one bar for the whole run, of rank 0.

    `total` is the number of items where `len(items)` does not tell it; `label` stands before
    the numbers.
    """
    from shanty import _script

    return _script.progress(items, total, label)
