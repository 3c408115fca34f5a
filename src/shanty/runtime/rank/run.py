"""Runs a Python program as a rank: `python run.py SCRIPT ARGS…` (or -m NAME, -c CODE).

It does what Python itself would do with SCRIPT, and handles its end: a script that fails or calls
sys.exit in one rank ends the world before MPI_Finalize could wait for the others.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Callable


_BEGAN = time.time()
_ADVISED = (
    *(ImportError, AttributeError, TypeError, KeyError, ValueError, OSError, RuntimeError),
    OverflowError,
)
_OF_CALLS = ("shanty.tasks.rank", "shanty.tasks.cells")  # which import from where the caller does


def _work(kind: str, what: str) -> Callable[[], object]:
    """Returns a call that runs a script, with kind "-m" a module, with "-c" code.

    Sets sys.path[0].
    """
    archive = not kind and (os.path.isdir(what) or what.endswith((".zip", ".pyz")))
    if archive or kind == "-m":
        import runpy  # before sys.path changes: the script's folder may have one of its own
    folder = os.path.dirname(os.path.realpath(what))
    if kind:
        folder = os.getcwd() if kind == "-m" else ""
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path[0] = folder
        if kind == "-m" and what in _OF_CALLS:
            del sys.path[0]
    if archive:
        return lambda: runpy.run_path(what, run_name="__main__")
    if kind == "-m":
        return lambda: runpy.run_module(what, run_name="__main__", alter_sys=True)
    return lambda: _execute("<string>", what) if kind else _execute(what, None)


def _execute(path: str, text: str | None) -> None:
    """Run a file, or `text`, in a fresh `__main__`."""
    main = type(sys)("__main__")
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    source: str | bytes | None = text
    if source is None:
        import io

        main.__file__ = path
        main.__cached__ = None  # type: ignore[attr-defined]
        try:
            with io.open_code(path) as file:
                source = file.read()
        except OSError as error:
            sys.exit(f"{sys.executable}: can't open file {path!r}: {error.strerror}")
    sys.modules["__main__"] = main
    code = compile(source, path, "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102  that is its purpose


def _own_frames_off(trace: TracebackType | None) -> TracebackType | None:
    """Returns the traceback from the user's first line on."""
    ours = (__file__, "<frozen runpy>", "<frozen importlib.util>")
    while trace and (
        trace.tb_frame.f_code.co_filename in ours
        or "/shanty/tasks/" in trace.tb_frame.f_code.co_filename
        or trace.tb_frame.f_code.co_filename.endswith("/runpy.py")
    ):
        trace = trace.tb_next
    return trace


def _is_child(process: Any) -> bool:
    """Returns True in a child that the script has forked: its end is not the end of the rank."""
    return process is not None and os.getpid() != process.pid


def _debugged(work: Callable[[], object], terminal: str) -> None:
    """Run `work` under pdb on `terminal`, with breakpoint() and a post-mortem there as well."""
    import bdb
    import io
    import pdb

    screen = open(terminal, "r+b", buffering=0)  # noqa: SIM115  lives as long as the process
    reader = io.TextIOWrapper(screen, line_buffering=True)
    writer = io.TextIOWrapper(open(terminal, "wb", buffering=0), write_through=True)  # noqa: SIM115  # type: ignore[arg-type]
    debugger = pdb.Pdb(stdin=reader, stdout=writer)
    debugger.prompt = f"(pdb rank {os.environ['RANK']}) "
    if os.path.exists(sys.argv[0]):  # stop first in the script, as `python -m pdb` does
        vars(debugger).update(mainpyfile=debugger.canonic(sys.argv[0]), _wait_for_mainpyfile=True)
    sys.breakpointhook = lambda *_, **__: debugger.set_trace(sys._getframe(1))

    def until_quit() -> None:  # `runcall` would go on as if the script had ended
        try:
            work()
        except bdb.BdbQuit:
            sys.exit("shanty: the debugger was left, and with it the rank")

    try:
        debugger.runcall(until_quit)
    except SystemExit:
        raise
    except BaseException as error:
        debugger.interaction(None, _own_frames_off(error.__traceback__))
        raise


def _show(error: BaseException) -> None:
    """Print a traceback, by the script's own hook; where that fails, as Python does."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as failed:  # noqa: BLE001  the rank has to end all the same
        failed.__context__ = None
        for each in (failed, error):
            with contextlib.suppress(Exception):
                trace = _own_frames_off(each.__traceback__)
                sys.__excepthook__(type(each), each.with_traceback(trace), trace)


def _explained(module: Any, error: BaseException, why: str) -> tuple[str, str]:
    """Return why a rank failed, and the line of the user's own that it was in."""
    post_mortem = module.load_part("rank/post_mortem")
    # Perhaps a framework's text around the cause, or no text at all.
    if "\n" in why or why.endswith(": "):
        why = post_mortem.reason(error)
    now = post_mortem.changed(error, _BEGAN)
    why += f"; {now}" if now else ""
    if type(error).__module__ == "mpi4py.MPI" and post_mortem.spawned(error):
        why = f"{module.reports.UNSPAWNED}: {why}"
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = post_mortem.place(trace.tb_frame)
        trace = trace.tb_next
    return why, place


def finish(process: Any) -> None:
    """Report that the script has come to its end, before Python ends and closes connections."""
    if process is not None and process.size > 1 and not _is_child(process):
        process.tell("finished", at=time.monotonic())


def load_instrumentation() -> Any:
    """Load `instrumentation.py`, under a private name."""
    import importlib.machinery

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "instrumentation.py")
    module = type(sys)("_shanty_instrumentation")
    module.__file__ = path
    sys.modules[module.__name__] = module
    importlib.machinery.SourceFileLoader(module.__name__, path).exec_module(module)
    return module


def run_forked(words: list[str], module: Any, process: Any, frozen: int) -> None:
    """Run a program in a rank that was forked; hooks of imported modules know its `process`.

    frozen: how many objects are frozen, none of which is an open file.
    """
    global _BEGAN
    _BEGAN = time.time()
    process.__init__(*module.place(os.environ))
    process.frozen = frozen
    if process.claim():
        process.allow_stacks()
    else:
        process = None
    _run(words, module, process)


def _start(words: list[str]) -> None:
    module = load_instrumentation()
    process = module.start()
    if process is not None and not process.claim():
        process = None  # a helper of a rank, started by the same command line
    if process is not None:
        follower = module.ImportFollower(process, process.saw_mpi, process.claim)
        sys.meta_path.insert(0, follower)
        process.allow_stacks()
    _run(words, module, process)


def _run(words: list[str], module: Any, process: Any) -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    kind, rest = (words[0], words[1:]) if words[0] in ("-m", "-c") else ("", words)
    if kind == "-m" and rest[0].startswith("shanty."):  # of the version that wrote its input
        module.prefer_own(os.environ.get("SHANTY_PACKAGE", ""))
    sys.argv = [kind or rest[0], *rest[1:]]
    work = _work(kind, rest[0])
    if "SHANTY_JOINS" in os.environ:  # those that started it wait until it has started MPI
        import mpi4py.MPI  # noqa: F401
    fix = place = ""
    debug = os.environ.get("SHANTY_DEBUG_RANK", "")
    try:
        if process is not None and debug == os.environ.get("RANK"):
            _debugged(work, os.environ["SHANTY_DEBUG_TTY"])
        else:
            work()
        finish(process)
        return
    except SystemExit as error:
        if _is_child(process):
            raise
        code, why = module.exit_status(error.code)
        hidden = isinstance(error.code, int) and code != error.code & 0xFF  # 0 to the system
        if code == 0:
            finish(process)
        if process is None or not (process.in_mpi or hidden):
            if process is not None and isinstance(error.code, str):
                process.tell("failed", code=code, why=why, at=time.monotonic())
            raise
        if code == 0:
            return
        if not isinstance(error.code, int):  # as Python does
            with contextlib.suppress(Exception):  # the script may have closed its standard error
                print(error.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001  whatever ends the script
        if process is not None:
            process.close_spare()
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        error = error.with_traceback(_own_frames_off(error.__traceback__))
        unfound = kind == "-m" and isinstance(error, ImportError) and error.__traceback__ is None
        unfound = unfound and rest[0] in str(error)  # else what is imported for a task
        why = f"{sys.executable}: {error}" if unfound else module.words(error)
        if unfound:
            print(why, file=sys.stderr)  # as Python says it
        else:
            _show(error)
        if process is not None:
            with contextlib.suppress(Exception):  # the script may have broken what this needs
                why, place = _explained(module, error, why)
            with contextlib.suppress(Exception):
                post_mortem = module.load_part("rank/post_mortem")
                if isinstance(error, _ADVISED):
                    fix = post_mortem.no_module(rest[0]) if unfound else post_mortem.advice(error)
    if process is not None and process.in_mpi:
        process.die(code, why, fix)
    if process is not None and not _is_child(process):
        process.tell("failed", code=code, why=why, fix=fix, at=time.monotonic(), place=place)
    sys.exit(code)


if __name__ == "__main__":
    _start(sys.argv[1:])
