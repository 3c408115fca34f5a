"""Where in the user's code a call was made: cheap to note, spelt out only when shown."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

import torch

_OURS, _TORCH, _LIBRARY = (
    str(Path(file).parent) + os.sep for file in (__file__, torch.__file__, os.__file__)
)
_PACKAGES = os.sep + "site-packages" + os.sep

Site = tuple[CodeType, int] | None
"""A code object and the line in it; None where no Python is known."""

_foreign: dict[CodeType, bool] = {}


def caller() -> Site:
    """The innermost line outside of torch and this package that led here.

    In a thread without such a line (the autograd engine's) it is where the main thread is.
    """
    found = _users(sys._getframe(1))
    return found if found is not None else main_thread()


def main_thread() -> Site:
    """Where the main thread is now, in the user's code."""
    return _users(sys._current_frames().get(threading.main_thread().ident or 0))


def spell(site: Site) -> str:
    """`train.py:31 in step`, with the file as the interpreter knows it; empty for None."""
    if site is None:
        return ""
    code, line = site
    function = "" if code.co_name == "<module>" else f" in {code.co_name}"
    return f"{_short(code.co_filename)}:{line}{function}"


def _users(frame: FrameType | None) -> Site:
    while frame is not None:
        code = frame.f_code
        foreign = _foreign.get(code)
        if foreign is None:
            foreign = _foreign[code] = _is_foreign(code.co_filename)
        if not foreign:
            return code, frame.f_lineno
        frame = frame.f_back
    return None


def _is_foreign(path: str) -> bool:
    if path.startswith("<"):  # "<string>" is the user's, "<frozen …>" is not
        return path.startswith("<frozen")
    if path.startswith((_OURS, _TORCH)):
        return True
    return path.startswith(_LIBRARY) and _PACKAGES not in path


def _short(path: str) -> str:
    """Relative to the working directory where that is shorter."""
    return path.removeprefix(str(Path.cwd()) + os.sep)
