"""Makes directories of runs for the command line to find, and reads what it has printed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from shanty.runtime import platform
from shanty.runtime.rundir import RunDir, write_json
from shanty.runtime.spec import JobSpec, Script, State, Status

LONG_AGO = 1_700_000_000.0


class Done(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Done]


def make_run(
    home: Path,
    number: int,
    state: State | None = State.SUCCEEDED,
    *,
    suffix: str = "bcdf",
    name: str | None = None,
    tags: Sequence[str] = (),
    **status: Any,
) -> RunDir:
    """A run as its directory shows it, without status for the state None; alive unless ended.

    It appears whole: a server that reads the home meanwhile would see a run without agents.
    """
    run = RunDir(home / "runs" / f"20240101-0000{number:02d}-{suffix}")
    made = RunDir(home / f"{run.id}.made")
    made.create()
    _fill(made, state, name, tags, status)
    run.path.parent.mkdir(exist_ok=True)
    made.path.rename(run.path)
    return run


def _fill(
    run: RunDir, state: State | None, name: str | None, tags: Sequence[str], status: dict[str, Any]
) -> None:
    job = JobSpec(Script("train.py"), workdir="/home/ann/digits", name=name, tags=tuple(tags))
    write_json(run.job, job.to_json())
    if state is None:
        return
    ended = LONG_AGO + 5 if state.final else None
    written = Status(state, 2, created=LONG_AGO, ended=ended, exit_code=0 if ended else None)
    write_json(run.status, replace(written, **status).to_json())
    if not state.final:
        me = platform.process(os.getpid())
        assert me is not None
        agent = {"pid": me.pid, "born": me.born}
        write_json(
            run.agents, {"controller": agent, "node_agent": agent, "boot": platform.boot_id()}
        )


def listed(done: Done) -> dict[str, str]:
    """The states of the runs that `ps --json` printed."""
    assert done.code == 0, done.err
    entries = [json.loads(line) for line in done.out.splitlines()]
    return {entry["id"][-11:-5]: entry["state"] for entry in entries}
