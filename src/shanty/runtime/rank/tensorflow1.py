"""Gives a script the names of TensorFlow 1 where it imports `tensorflow`, and no library.

Loaded by path before the script of a run with `--tf1`. Libraries need the names of the installed
TensorFlow, and `sys.modules` has one module for both; so the importing module decides. The script
gets `shanty.compat.tensorflow1`.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Mapping, Sequence

STAND_IN = "shanty.compat.tensorflow1"
LEGACY_KERAS = "TF_USE_LEGACY_KERAS"  # has TensorFlow take tf_keras, which is Keras 2
_REPLACED = ("tensorflow", "keras")
_OURS = ("shanty", "horovod")  # what stands in for Horovod needs the installed TensorFlow
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_NEEDS = (3, 11)  # the Python of all that a script imports of shanty


def install() -> None:
    """Has `import` statements of the script find TensorFlow 1's names, from now on."""
    own = builtins.__import__
    prepared = False

    def find(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        nonlocal prepared
        try:
            if level or name.partition(".")[0] not in _REPLACED:
                return own(name, globals, locals, fromlist, level)
            if not prepared:
                prepared = True
                choose_keras()
            if not is_script(globals or {}):
                return own(name, globals, locals, fromlist, level)
            return _stand_in().imported(name, tuple(fromlist or ()))
        except BaseException as error:
            error.__traceback__ = _without_us(error.__traceback__)
            raise

    builtins.__import__ = find


def is_script(names: Mapping[str, Any]) -> bool:
    """Returns whether a module with these globals is of the script, and not of a library.

    The script's are those outside of the folders for packages, and those in the package of
    `python -m PACKAGE`, wherever that is.
    """
    name = str(names.get("__name__") or "")
    if name in ("__main__", "__mp_main__"):
        return True
    package = name.partition(".")[0]
    if package in (*_OURS, *_REPLACED) or not names.get("__file__"):
        return False
    main = getattr(sys.modules.get("__main__"), "__package__", "") or ""
    if package and package == main.partition(".")[0]:
        return True
    path = os.path.abspath(str(names["__file__"]))
    if any(each in path for each in _LIBRARIES) or path.startswith(_STANDARD):
        return False
    beside = _packages()
    return not beside or not path.startswith(beside)


def _packages() -> str:
    """Returns the folder that TensorFlow is in, which holds packages whatever it is called."""
    module = sys.modules.get("tensorflow")
    if module is not None:
        path = getattr(module, "__file__", None) or ""
    else:
        path = getattr(importlib.util.find_spec("tensorflow"), "origin", None) or ""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.dirname(folder) + os.sep if name == "__init__.py" else ""


def choose_keras() -> None:
    """Has TensorFlow take Keras 2 where both are installed: Keras 3 has nothing of TensorFlow 1."""
    from importlib import metadata

    if LEGACY_KERAS in os.environ or importlib.util.find_spec("tf_keras") is None:
        return
    try:
        version = metadata.version("keras")
    except metadata.PackageNotFoundError:
        return
    if not version.startswith("2."):
        os.environ[LEGACY_KERAS] = "1"


def _stand_in() -> Any:
    if sys.version_info < _NEEDS:
        python, wanted = (".".join(map(str, each[:2])) for each in (sys.version_info, _NEEDS))
        raise ImportError(f"--tf1 needs Python {wanted}, this is {python}", name="tensorflow")
    if STAND_IN not in sys.modules:
        instrumentation = sys.modules.get("_shanty_instrumentation")
        if instrumentation is not None:
            instrumentation.hook_children()
    return importlib.import_module(STAND_IN)


def _without_us(trace: TracebackType | None) -> TracebackType | None:
    """Returns the traceback from the first line on that does not belong to an import by us."""
    folder = f"{os.sep}{STAND_IN.replace('.', os.sep)}{os.sep}"
    ours = (__file__, importlib.__file__)
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file not in ours and folder not in file and not file.startswith("<frozen importlib"):
            break
        trace = trace.tb_next
    return trace
