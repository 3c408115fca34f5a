"""Makes a job of Python's words, and starts it without a terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shanty.cli import jobs, options
from shanty.cli.context import Context
from shanty.cli.start import make_room
from shanty.runtime.errors import UsageError
from shanty.runtime.rundir import RunDir, new_id
from shanty.runtime.spec import Command, JobSpec, Module
from shanty.sdk.run import Run


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
    here = Context(dict(os.environ))
    folder = Path(workdir or ".").absolute()
    words = [os.fspath(command)] if isinstance(command, (str, os.PathLike)) else [*command]
    if module is not None:
        words = ["-m", module, *words]
    what = jobs.make_command([*words, *map(str, args)], folder, raw=False)
    job = make_job(what, folder, {"ranks": ranks, "on": on, **more})
    return start(here, jobs.bring_script(job))


def make_job(command: Command, workspace: Path, given: Mapping[str, Any]) -> JobSpec:
    """Make a job of options by their names; UsageError for one that there is not."""
    values: dict[str, Any] = dict.fromkeys(options.OPTIONS)
    for name, value in given.items():
        if name not in options.OPTIONS or name in ("debug_rank", "source"):
            known = ", ".join(sorted(options.KEYS))
            raise UsageError(f"there is no option {name!r}", fix=f"known are {known}")
        option = options.OPTIONS[name]
        if option.read is not None and isinstance(value, (str, list)):
            value = option.read(value, name, workspace)
        values[name] = tuple(value) if isinstance(value, list) else value
    env = {str(key): str(value) for key, value in (values.pop("env") or {}).items()}
    return jobs.make_job(command, workspace, {**values, "env": env})


def start(here: Context, job: JobSpec, *, quiet: bool = True, stdin: int | None = None) -> Run:
    """Start a job; rank 0 reads the descriptor `stdin`, or nothing."""
    here.progress.quiet = quiet
    run = RunDir(here.home / "runs" / new_id(time.time()))
    plan = here.targets.plan(job, run)
    make_room(here, job, run, plan)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        plan.submit(nothing if stdin is None else stdin)
    finally:
        os.close(nothing)
    return Run(here, run)


def task_job(given: Mapping[str, Any], inputs: Path) -> JobSpec:
    """Make the job of a call, whose folder is `inputs`."""
    import sys

    folder = Path(given.get("workdir") or ".").absolute()
    own = {name: value for name, value in given.items() if name != "workdir"}
    own = {"python": sys.executable, **own, "inputs": str(inputs)}
    return make_job(Module("shanty.tasks.rank"), folder, own)
