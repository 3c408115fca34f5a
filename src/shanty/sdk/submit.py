"""Starts a run from Python, without a terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from shanty.client.command import bring_script, make_command, refuse_in_ranks
from shanty.client.context import Context
from shanty.client.jobs import folder_of, job_of
from shanty.client.runs import Run, start_job
from shanty.runtime.errors import UsageError


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
    of `shanty run` by their names in Python: time_limit="2h", env={"A": "1"}, image=…

    Raises UsageError, NotFoundError and PrepareError, as `shanty run` says them; nothing has been
    started then.
    """
    refuse_in_ranks(os.environ)
    if isinstance(args, str):
        raise UsageError("args is a list of words, not one text", fix=f"args={args.split()!r}")
    here = Context(dict(os.environ))
    folder = folder_of(workdir)
    words = [os.fspath(command)] if isinstance(command, (str, os.PathLike)) else [*command]
    if module is not None:
        words = ["-m", module, *words]
    what = make_command([*words, *map(str, args)], folder, raw=False)
    job = job_of(what, folder, {"ranks": ranks, "on": on, **more})
    return start_job(here, bring_script(job))
