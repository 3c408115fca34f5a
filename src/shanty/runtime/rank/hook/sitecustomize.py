"""The fallback for a Python that `rank.exec` cannot see, as in `bash -c 'python x.py'`.

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


def _arm() -> None:
    import importlib.machinery

    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    watching = type(sys)("_shanty_watch")
    watching.__file__ = os.path.join(folder, "instrumentation.py")
    sys.modules["_shanty_watch"] = watching
    importlib.machinery.SourceFileLoader("_shanty_watch", watching.__file__).exec_module(watching)
    watch = watching.start()
    if watch is not None:

        def begin(mpi) -> None:  # type: ignore[no-untyped-def]
            _claim(watch, lambda: watch.saw_mpi(mpi))

        sys.meta_path.insert(0, watching.MpiFinder(watch.loading, begin))
        sys.meta_path.insert(0, watching.OfferFinder())
        sys.meta_path.insert(0, watching.WatchedFinder(watch, lambda: _claim(watch)))


def _claim(watch, then=None) -> bool:  # type: ignore[no-untyped-def]
    """Whether this process, which initialises MPI, is the rank: no other one was before.

    `then` is called if so, and before the guard: of exit handlers the last comes first, and the
    guard's has to come before MPI_Finalize.
    """
    new = not watch.claimed
    if not watch.claim():
        return False
    if new:
        watch.allow_stacks()
    if then is not None:
        then()
    if new:
        _guard(watch)
    return True


def _guard(watch) -> None:  # type: ignore[no-untyped-def]
    """Let the watch end this process where it fails while it is in MPI."""
    import atexit
    import builtins

    code = 0
    leave, report = sys.exit, sys.excepthook

    def on_exit(status=None):  # type: ignore[no-untyped-def]
        nonlocal code
        code = 0 if status is None else status & 0xFF if isinstance(status, int) else 1
        leave(status)

    def on_error(kind, error, trace) -> None:  # type: ignore[no-untyped-def]
        report(kind, error, trace)
        if watch.in_mpi:
            watch.die(1, f"{kind.__name__}: {error}")

    def at_exit() -> None:
        if code and watch.in_mpi and not watch.failing:
            watch.die(code, f"sys.exit({code})")

    sys.exit, sys.excepthook = on_exit, on_error
    for name in ("exit", "quit"):
        if hasattr(builtins, name):
            setattr(builtins, name, on_exit)
    atexit.register(at_exit)


_chain()
if "SHANTY_REPORTS" in os.environ:
    _arm()
