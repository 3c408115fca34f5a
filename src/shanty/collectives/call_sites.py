"""Call sites: the user's lines from which calls are made; cheap to note, spelt out when shown."""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

_LIBRARY = str(Path(os.__file__).parent) + os.sep
_PACKAGES = os.sep + "site-packages" + os.sep
_hidden = [str(Path(__file__).parent) + os.sep]  # folders whose code is not the user's

CallSite = tuple[CodeType, int] | None
"""A code object and the line in it; None where no Python is known."""

_foreign: dict[CodeType, bool] = {}
_one = threading.Lock()


def hide(*files: str | None) -> None:
    """Take code in the folders of these modules for none of the user's: a front end's."""
    _hidden.extend(str(Path(file).parent) + os.sep for file in files if file)
    _foreign.clear()


def caller() -> CallSite:
    """Return the innermost line of the user's that led here.

    In a thread without such a line (the autograd engine's) it is where the main thread is.
    """
    found = _users(sys._getframe(1))
    return found if found is not None else main_thread()


def main_thread() -> CallSite:
    """Return the line of the user's that the main thread is at now."""
    return _users(_frames().get(threading.main_thread().ident or 0))


def spell(site: CallSite) -> str:
    """Spell it: `train.py:31 in step`, the file as the interpreter knows it; "" for None."""
    if site is None:
        return ""
    code, line = site
    function = "" if code.co_name == "<module>" else f" in {code.co_name}"
    file = code.co_filename.removeprefix(str(Path.cwd()) + os.sep)
    return f"{file}:{line}{function}"


def _frames() -> dict[int, FrameType]:
    """Return each thread's frame, without a garbage collection meanwhile.

    Before Python 3.12 that could lock up the process (CPython issue 106883).
    """
    with _one:
        enabled = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if enabled:
                gc.enable()


def _users(frame: FrameType | None) -> CallSite:
    while frame is not None:
        code = frame.f_code
        foreign = _foreign.get(code)
        if foreign is None:
            path = code.co_filename  # "<string>" is the user's, "<frozen …>" is not
            foreign = path.startswith((*_hidden, "<frozen"))
            foreign = foreign or (path.startswith(_LIBRARY) and _PACKAGES not in path)
            _foreign[code] = foreign
        if not foreign:
            return code, frame.f_lineno
        frame = frame.f_back
    return None
