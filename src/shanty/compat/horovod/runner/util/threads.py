"""`horovod.runner.util.threads`: `in_thread`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


def in_thread(
    target: Callable[..., object],
    args: Sequence[object] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start a thread that calls target(*args), and return it.

    silent: an exception in it is not shown.
    """
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, not {type(args).__name__}: for one, write (x,).")

    def call() -> None:
        try:
            target(*args)
        except Exception:
            if not silent:
                raise

    thread = threading.Thread(target=call, name=name, daemon=daemon)
    thread.start()
    return thread
