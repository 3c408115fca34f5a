"""Makes the directories of very many ended runs, as `shanty run` would have left them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from shanty.runtime.rundir import RunDir, write_json
from shanty.runtime.spec import Failure, JobSpec, Script, State, Status

_STATES = (State.SUCCEEDED,) * 7 + (State.FAILED,) * 2 + (State.STOPPED,)
_NAMES = ("resnet50", "bert-base", "gpt2-small", "digits", "unet", "dlrm")
_TAGS = ("nightly", "sweep", "baseline", "paper", "debug")
_FIRST = 1_760_000_000.0  # when the first of them was made
_EVERY = 600.0  # seconds from one to the next
_LETTERS = "bcdfghjkmnpqrstvwxz23456789"


def make_many(home: Path, number: int) -> None:
    """Make `number` runs; the same ones each time."""
    chance = random.Random(20)
    for index in range(number):
        created = _FIRST + index * _EVERY
        suffix = "".join(chance.choice(_LETTERS) for _ in range(4))
        day, second = divmod(index, 86_400)
        stamp = f"{20240101 + day}-{second // 3600:02d}{second // 60 % 60:02d}{second % 60:02d}"
        run = RunDir(home / "runs" / f"{stamp}-{suffix}")
        run.path.mkdir(parents=True)
        name = f"{chance.choice(_NAMES)}-{index}"
        rate = f"{10 ** chance.uniform(-4, -1):.5f}"
        job = JobSpec(
            Script("train.py", ("--lr", rate, "--epochs", str(chance.randint(1, 90)))),
            ranks=chance.choice((1, 2, 4, 8, 16)),
            workdir="/home/ann/project",
            name=name,
            tags=tuple(sorted(set(chance.choices(_TAGS, k=2)))),
        )
        write_json(run.job, job.to_json())
        write_json(run.status, _status(job, created, chance).to_json())


def _status(job: JobSpec, created: float, chance: random.Random) -> Status:
    state = chance.choice(_STATES)
    ended = created + chance.uniform(5, 20_000)
    status = Status(state, job.ranks, created=created, started=created + 2, ended=ended)
    if state is State.SUCCEEDED:
        return replace(status, exit_code=0)
    if state is State.STOPPED:
        return replace(status, exit_code=143)
    rank, host = chance.randrange(job.ranks or 1), f"gpu{chance.randint(1, 8)}"
    what = f"rank {rank} on {host} ended with exit code 1"
    failure = Failure(what, why="CUDA out of memory", fix="a smaller batch")
    return replace(status, exit_code=1, failure=failure)
