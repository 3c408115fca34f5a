"""Calls a function in a rank: `python -m shanty.tasks.rank`, with the call in $SHANTY_INPUTS."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def enter(refusal: str) -> tuple[Path, dict[str, Any]]:
    """Import from the caller's folders, and cloudpickle from the call if it is not installed.

    Returns the call's folder, and what must be known before the call is read. Without a call, the
    rank ends with the `refusal`; with another Python than the caller's, it ends with that cause.
    """
    folder = Path(os.environ.get("SHANTY_INPUTS", ""))
    if not (folder / "call.json").is_file():
        sys.exit(refusal)
    about: dict[str, Any] = json.loads((folder / "call.json").read_text())
    if list(sys.version_info[:2]) != about["python"]:
        there, here = ".".join(map(str, about["python"])), ".".join(map(str, sys.version_info[:2]))
        sys.exit(
            f"the call comes from Python {there}, and this rank's Python is {here}: they cannot "
            f"read each other's functions. Call from Python {here}, or give the ranks your Python "
            "(python=…, packages='sync')"
        )
    first, others = map(os.path.abspath, about["first"]), map(os.path.abspath, about["paths"])
    sys.path[:0] = [path for path in first if path not in sys.path]
    sys.path += [path for path in [*others, str(Path.cwd())] if path not in sys.path]
    sys.path.append(str(folder / "lib"))  # the last: an installed cloudpickle comes first
    return folder, about


def main() -> None:
    """Read the call, make it, and keep its outcome."""
    folder, about = enter(
        "shanty.tasks.rank is started by `shanty.task`; by itself it has no call to make"
    )
    from shanty import _script
    from shanty.runtime.rundir import RunDir
    from shanty.tasks import call, outcome
    from shanty.tasks.errors import ignores_outputs

    rank = _script.place(_script.RANK, "RANK", 0)
    attempt = Path(os.environ.get("SHANTY_ATTEMPT_DIR", "1")).name
    run = RunDir(Path(os.environ["SHANTY_RUN_DIR"]), int(attempt))

    own = os.getpid()

    def keep(value: object) -> None:
        if about["each"] or rank == 0:
            outcome.write_value(run, rank, value, f"the value of {about['name']}()")

    try:
        func, args, kwargs = call.read(folder)
        value = func(*args, **kwargs)
        if os.getpid() != own:  # a child that the function has forked: its end does not count
            return
        keep(value)
        if "shanty.collectives.world" in sys.modules:  # while all are here
            sys.modules["shanty.collectives.world"].shutdown()
    except BaseException as error:
        if os.getpid() != own:
            raise
        if ignores_outputs(error):
            keep(None)
            return
        if not isinstance(error, SystemExit):
            outcome.write_error(run, rank, error)
        elif not error.code:  # sys.exit() is a normal end
            keep(None)
        error.__traceback__ = outcome.own_frames_off(error)
        raise


if __name__ == "__main__":
    main()
