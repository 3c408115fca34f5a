"""A call as it is sent to the ranks: a folder that each of them finds as $SHANTY_INPUTS.

call.json      what a rank must know before it can read the call
call.pickle    the function and its arguments
lib/           cloudpickle, for a Python that has none
data/HASH/     the content of a `Folder` among the arguments
"""

from __future__ import annotations

import json
import os
import shutil
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from shanty.tasks import data, pickling

reading = False  # a rank imports what the call names
_SHANTY = Path(__file__).parents[1]
_registry = threading.Lock()  # cloudpickle's, of modules by value, is one for all threads


def write(
    folder: Path,
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    workspace: Path,
    each: bool,
    elsewhere: bool,
    modules: Sequence[str] = (),
) -> None:
    """Write a call into a folder.

    workspace: the folder of the code that goes to the hosts. each: all ranks' values are wanted.
    elsewhere: the ranks do not see this machine's files, so modules outside the workspace are sent
    with the call. modules: names of modules that are always sent, so that ranks do not import them.
    Raises NotPicklableError, which names what cannot be sent.
    """
    along = by_value(workspace if elsewhere else None, modules)
    with data.packed(folder / "data"), along, (folder / "call.pickle").open("wb") as file:
        pickling.dump_call(func, args, kwargs, file)
    name = getattr(func, "__qualname__", type(func).__qualname__)
    equip(folder, workspace, name=name, each=each)


def equip(folder: Path, workspace: Path, **more: Any) -> None:
    """Write what a rank must know before it can read what is sent, and cloudpickle for it."""
    first, paths = _paths(workspace)
    about = {"python": list(sys.version_info[:2]), "first": first, "paths": paths, **more}
    (folder / "call.json").write_text(json.dumps(about))
    own = Path(cloudpickle.__file__).parent
    shutil.copytree(own, folder / "lib" / own.name, ignore=shutil.ignore_patterns("__pycache__"))


def _paths(workspace: Path) -> tuple[list[str], list[str]]:
    """Return where this process imports from: below the workspace by a path in it.

    The first of the two are those below it that come before Python's own modules.
    """
    first: dict[str, None] = {}
    others: dict[str, None] = {}
    library = sysconfig.get_path("stdlib")
    before = library in sys.path
    for entry in sys.path:
        path = Path(entry or ".").absolute()
        before = before and entry != library
        if path.is_relative_to(workspace):
            (first if before else others)[str(path.relative_to(workspace))] = None
        elif not _is_installed(str(path)):
            others[str(path)] = None
    return [*first], [*others]


def _is_installed(path: str) -> bool:
    """Return whether a path is the standard library's, or among installed packages.

    shanty's own count, too, with its stand-ins (`horovod`): every host has them.
    """
    if Path(path).is_relative_to(_SHANTY):
        return True
    known = any(path == place or path.startswith(place + os.sep) for place in _installations())
    return known or "site-packages" in path or "dist-packages" in path or path.endswith(".zip")


@cache
def _installations() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    places = [sysconfig.get_path(name) for name in names]
    return (*places, *site.getsitepackages(), site.getusersitepackages())


@contextmanager
def by_value(workspace: Path | None, more: Sequence[str] = ()) -> Iterator[None]:
    """Pickle user modules outside the workspace by value in this block: hosts lack them."""
    with _registry:
        own = cloudpickle.list_registry_pickle_by_value()
        names = {name for name in more if name in sys.modules and name != "__main__"} - own
        modules = {sys.modules[name] for name in names}
        modules |= set() if workspace is None else {*_strangers(workspace)}
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def _strangers(workspace: Path) -> Iterator[ModuleType]:
    own = cloudpickle.list_registry_pickle_by_value()
    modules: dict[str, Any] = {**sys.modules}  # in which may be anything
    for name, module in modules.items():
        if not isinstance(module, ModuleType) or vars(module).get("__name__") != name:
            continue
        file = vars(module).get("__file__")  # getattr would have lazy ones imported
        if name in ("__main__", "__mp_main__") or name in own or name.partition(".")[0] == "shanty":
            continue
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        path = os.path.abspath(file)  # noqa: PTH100  as it is written; a link may lead elsewhere
        if not Path(path).is_relative_to(workspace) and not _is_installed(path):
            yield module


def read(folder: Path) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the function, its arguments and keyword arguments, in a rank."""
    global reading
    reading = True
    try:
        with data.packed(folder / "data"), (folder / "call.pickle").open("rb") as file:
            func, args, kwargs = pickling.load(file)
    finally:
        reading = False
    return func, args, kwargs
