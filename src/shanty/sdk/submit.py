"""Makes a job of Python's words, and starts it without a terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from shanty.cli import jobs, options
from shanty.cli.context import Context, folder_is_gone
from shanty.cli.start import make_room
from shanty.runtime.errors import UsageError
from shanty.runtime.rundir import RunDir, new_id
from shanty.runtime.spec import Command, JobSpec, Module
from shanty.sdk.run import Run
from shanty.tasks.task import refuse_unknown


def submit(
    command: str | os.PathLike[str] | Sequence[str] = (),
    args: Sequence[Any] = (),
    *,
    module: str | None = None,
    ranks: int | None = None,
    on: str | None = None,
    workdir: str | os.PathLike[str] | None = None,
    **more: Any,
) -> Run:
    """Start a run, as `shanty run -d` does, and come back.

    command: a script, or all words of a program or of an mpirun line; `module`: one in its place,
    as for `python -m`. args: for the script. ranks: how many; None: one for each slot. on: where;
    None: this machine. workdir: the folder of the code; None: the current one. All other options
    of `shanty run` by their names in shanty.toml: time_limit="2h", env={"A": "1"}, image=…

    Raises UsageError, NotFoundError and PrepareError, as `shanty run` says them; nothing has been
    started then.
    """
    jobs.refuse_in_ranks(os.environ)
    if isinstance(args, str):
        raise UsageError("args is a list of words, not one text", fix=f"args={args.split()!r}")
    here = Context(dict(os.environ))
    folder = _folder(workdir)
    words = [os.fspath(command)] if isinstance(command, (str, os.PathLike)) else [*command]
    if module is not None:
        words = ["-m", module, *words]
    what = jobs.make_command([*words, *map(str, args)], folder, raw=False)
    job = make_job(what, folder, {"ranks": ranks, "on": on, **more})
    return start(here, jobs.bring_script(job))


def make_job(command: Command, workspace: Path, given: Mapping[str, Any]) -> JobSpec:
    """Make a job of options by their names; UsageError for one that there is not."""
    values: dict[str, Any] = dict.fromkeys(options.OPTIONS)
    refuse_unknown(given)
    for name, value in given.items():
        option = options.OPTIONS[name]
        value = _plain(value)
        if value is not None and option.toml and type(value) not in option.toml:
            kinds = " or ".join(options.KINDS[kind] for kind in option.toml)
            raise UsageError(f"{name} must be {kinds}, not {value!r}")
        if option.read is not None and isinstance(value, (str, list, int, float)):
            try:
                value = option.read(value, name, workspace)
            except UsageError as error:
                what = error.what if name in error.what else f"{name}={value!r}: {error.what}"
                raise UsageError(what, error.why, error.fix) from error
        values[name] = tuple(value) if isinstance(value, list) else value
    env = values["env"] or {}
    for key, value in env.items():
        if value is None or not str(key) or "=" in str(key) or "\0" in f"{key}{value}":
            raise UsageError(f"env={{{key!r}: {value!r}}} is no variable that a process can have")
    values["env"] = {str(key): str(value) for key, value in env.items()}
    return jobs.make_job(command, workspace, values)


def _folder(workdir: str | os.PathLike[str] | None) -> Path:
    try:
        return Path.cwd() / (workdir or ".")
    except FileNotFoundError:
        raise folder_is_gone() from None


def _plain(value: Any) -> Any:
    """Return a path as a text, and several values as a list: what shanty.toml could have."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def start(
    here: Context,
    job: JobSpec,
    *,
    quiet: bool = True,
    stdin: int | None = None,
    began: Callable[[Run], None] = lambda _run: None,
) -> Run:
    """Start a job; rank 0 reads the descriptor `stdin`, or nothing.

    `began` gets the run before Ctrl-C can come between.
    """
    here.progress.quiet = quiet
    folder = RunDir(here.home / "runs" / new_id(time.time()))
    plan = here.targets.plan(job, folder)
    run = Run(here, folder, plan.settle)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        make_room(here, job, folder, plan)
        with contextlib.nullcontext() if plan.takes_long else _uninterrupted():
            plan.submit(nothing if stdin is None else stdin)
            began(run)
    except BaseException:
        plan.drop()
        raise
    finally:
        os.close(nothing)
    return run


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C: a run is there as a whole, and can be stopped, or is not."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    pressed: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _number, frame: pressed.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            before(signal.SIGINT, pressed[0])


def task_job(given: Mapping[str, Any], inputs: Path | None, name: str = "") -> JobSpec:
    """Make the job of a call, whose folder is `inputs`; None: to see where it would be.

    name: the function's, which stands in the run's command to be seen.
    """
    folder = _folder(given.get("workdir"))
    own = {key: value for key, value in given.items() if key != "workdir"}
    own = {"python": sys.executable, **own, "inputs": inputs and str(inputs)}
    return make_job(Module("shanty.tasks.rank", (name,) if name else ()), folder, own)
