"""Instruments a Python that `rank.exec` cannot see, as in `bash -c 'python x.py'`.

Python imports it at start-up because the folder stands in PYTHONPATH. It hands over to the
sitecustomize that it hides, and then does nothing until the process imports `mpi4py.MPI` or joins a
world by MLX.
"""

import os
import sys


def _chain() -> None:
    """Import the next sitecustomize on the path, as Python would have done."""
    import importlib.machinery

    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = type(sys)("sitecustomize")
        module.__spec__, module.__file__ = spec, spec.origin
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _meet_launcher(core) -> None:  # type: ignore[no-untyped-def]
    """Become the shim where this process is a launcher, as `python -m torch.distributed.run` is.

    In a rank the shim refuses; in a run's own line it makes ranks of the launcher's processes.
    """
    command = core.load_part("lines/command")
    found = command.launcher_of(getattr(sys, "orig_argv", None) or command.argv_of_this_process())
    if found is None:
        return
    name, words, _ = found
    if core.processes.number(os.environ, core.processes.RANK) is None:
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            if command.is_shim(os.path.join(folder, name)):
                os.environ[command.INTERPRETER] = sys.executable
                os.execv(os.path.join(folder, name), [name, *words])
    elif command.starts_a_world(words, os.environ):
        rank = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        os.execv(os.path.join(rank, "shims", name), [name, *words])


def _arm() -> None:
    import importlib.machinery

    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    module = type(sys)("_shanty_instrumentation")
    module.__file__ = path = os.path.join(folder, "instrumentation.py")
    sys.modules[module.__name__] = module
    importlib.machinery.SourceFileLoader(module.__name__, path).exec_module(module)
    _meet_launcher(module)
    process = module.start()
    if process is not None:

        def begin(mpi) -> None:  # type: ignore[no-untyped-def]
            _claim(process, lambda: process.saw_mpi(mpi))

        sys.meta_path.insert(0, module.ImportFollower(process, begin, lambda: _claim(process)))


def _claim(process, then=None) -> bool:  # type: ignore[no-untyped-def]
    """Tell whether this process, which initialises MPI, is the rank: no other one was before.

    `then` is called if so, and before the guard: of exit handlers the last comes first, and the
    guard's has to come before MPI_Finalize.
    """
    new = not process.claimed
    if not process.claim():
        return False
    if new:
        process.allow_stacks()
    if then is not None:
        then()
    if new:
        _guard(process)
    return True


def _guard(process) -> None:  # type: ignore[no-untyped-def]
    """Have this process ended where it fails while it is in MPI."""
    import atexit
    import builtins

    code, why, left = 0, "", False
    leave, report, register = sys.exit, sys.excepthook, atexit.register
    later = []  # exit handlers that have run when `at_exit` does

    def remember(handler, *args, **kwargs):  # type: ignore[no-untyped-def]
        later.append(handler)
        return register(handler, *args, **kwargs)

    def on_exit(status=None):  # type: ignore[no-untyped-def]
        nonlocal code, why, left
        left = True
        code, why = sys.modules["_shanty_instrumentation"].exit_status(status)
        leave(status)

    def on_error(kind, error, trace) -> None:  # type: ignore[no-untyped-def]
        try:
            report(kind, error, trace)
        finally:
            if process.in_mpi:
                process.die(1, sys.modules["_shanty_instrumentation"].words(error))

    def at_exit() -> None:
        nonlocal code, why
        # Where the script has a hook of its own. pytest sets it, too, as for tests that may fail.
        error = getattr(sys, "last_value", None) if sys.excepthook is not on_error else None
        if error is not None and not left and not hasattr(sys, "ps1"):
            code, why = 1, sys.modules["_shanty_instrumentation"].words(error)
        if code and process.in_mpi and not process.failing:
            for handler in later:  # else they run twice
                atexit.unregister(handler)
            process.die(code, why)

    sys.exit, sys.excepthook = on_exit, on_error
    for name in ("exit", "quit"):
        if hasattr(builtins, name):
            setattr(builtins, name, on_exit)
    atexit.register(at_exit)
    vars(atexit)["register"] = remember


_chain()
if "SHANTY_REPORTS" in os.environ:
    _arm()
