"""`python run.py SCRIPT ARGS…` (or -m NAME, -c CODE): runs a Python program as a rank.

It does what Python itself would do with SCRIPT, but stands around it: a script that fails or
calls sys.exit in one rank ends the world before MPI_Finalize could wait for the others.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType, TracebackType
    from typing import Any, Callable


def _load_instrumentation() -> ModuleType:
    import importlib.machinery

    here = os.path.dirname(os.path.abspath(__file__))
    module = type(sys)("_shanty_watch")
    module.__file__ = os.path.join(here, "instrumentation.py")
    sys.modules["_shanty_watch"] = module
    importlib.machinery.SourceFileLoader("_shanty_watch", module.__file__).exec_module(module)
    return module


def _script(path: str) -> Callable[[], object]:
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        import runpy

        return lambda: runpy.run_path(path, run_name="__main__")
    return lambda: _execute(path, None)


def _module(name: str) -> Callable[[], object]:
    import runpy

    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path[0] = os.getcwd()
    return lambda: runpy.run_module(name, run_name="__main__", alter_sys=True)


def _code(text: str) -> Callable[[], object]:
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path[0] = ""
    return lambda: _execute("<string>", text)


def _execute(path: str, text: str | None) -> None:
    """Run a file, or `text`, in a fresh `__main__`."""
    main = type(sys)("__main__")
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    if text is None:
        import io

        main.__file__ = path
        main.__cached__ = None  # type: ignore[attr-defined]
        try:
            with io.open_code(path) as file:
                source: str | bytes = file.read()
        except OSError as error:
            sys.exit(f"{sys.executable}: can't open file {path!r}: {error.strerror}")
    else:
        source = text
    sys.modules["__main__"] = main
    code: CodeType = compile(source, path, "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102  that is its purpose


def _own_frames_off(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the user's first line on."""
    ours = (__file__, "<frozen runpy>", "<frozen importlib.util>")
    while trace and (
        trace.tb_frame.f_code.co_filename in ours
        or trace.tb_frame.f_code.co_filename.endswith("/runpy.py")
    ):
        trace = trace.tb_next
    return trace


def _exit_code(value: Any) -> int:
    """What Python would end with for `SystemExit(value)`; a message is printed, as it does."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    print(value, file=sys.stderr)
    return 1


def _debugged(work: Callable[[], object], terminal: str) -> None:
    """Run `work` under pdb on `terminal`, with breakpoint() and a post-mortem there as well."""
    import bdb
    import pdb

    screen = open(terminal, "r+b", buffering=0)  # noqa: SIM115  lives as long as the process
    import io

    reader = io.TextIOWrapper(screen, line_buffering=True)
    writer = io.TextIOWrapper(open(terminal, "wb", buffering=0), write_through=True)  # noqa: SIM115  # type: ignore[arg-type]
    debugger = pdb.Pdb(stdin=reader, stdout=writer)
    debugger.prompt = f"(pdb rank {os.environ['RANK']}) "
    if os.path.exists(sys.argv[0]):  # stop first in the script, as `python -m pdb` does
        vars(debugger).update(mainpyfile=debugger.canonic(sys.argv[0]), _wait_for_mainpyfile=True)
    sys.breakpointhook = lambda *_, **__: debugger.set_trace(sys._getframe(1))
    try:
        debugger.runcall(work)
    except bdb.BdbQuit:
        sys.exit(1)
    except SystemExit:
        raise
    except BaseException as error:
        debugger.interaction(None, _own_frames_off(error.__traceback__))
        raise


def _run(words: list[str]) -> None:
    watching = _load_instrumentation()
    watch = watching.start()
    if watch is not None and not watch.claim():
        watch = None  # a helper of a rank, started by the same command line
    if watch is not None:
        sys.meta_path.insert(0, watching.MpiFinder(watch.loading, watch.saw_mpi))
        sys.meta_path.insert(0, watching.OfferFinder())
        sys.meta_path.insert(0, watching.WatchedFinder(watch, watch.claim))
        watch.allow_stacks()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    kind, rest = (words[0], words[1:]) if words[0] in ("-m", "-c") else ("", words)
    sys.argv = [kind or rest[0], *rest[1:]]
    work = {"-m": _module, "-c": _code, "": _script}[kind](rest[0])
    debug = os.environ.get("SHANTY_DEBUG_RANK", "")
    why = ""
    try:
        if watch is not None and debug == os.environ.get("RANK"):
            _debugged(work, os.environ["SHANTY_DEBUG_TTY"])
        else:
            work()
        return
    except SystemExit as error:
        if watch is None or not watch.in_mpi:
            raise
        code = _exit_code(error.code)
        if code == 0:
            return
        why = f"sys.exit({error.code!r})" if isinstance(error.code, int) else str(error.code)
    except BaseException as error:  # noqa: BLE001  whatever ends the script
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        error = error.with_traceback(_own_frames_off(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        why = f"{type(error).__name__}: {error}"
    if watch is None or not watch.in_mpi:
        if watch is not None:
            watch.tell("failed", code=code, why=why, at=time.monotonic())
        sys.exit(code)
    watch.die(code, why)


if __name__ == "__main__":
    _run(sys.argv[1:])
