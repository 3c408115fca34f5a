"""Makes a job of what was typed for Clusterone's `create job`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shanty.client import jobs, options
from shanty.client.command import make_command
from shanty.client.context import Context
from shanty.integrations.clusterone.flags import DISTRIBUTED, OWN, SINGLE
from shanty.integrations.platforms import parts
from shanty.integrations.platforms.flags import Flag, left_out, note_left_out
from shanty.runtime.errors import UsageError
from shanty.runtime.spec import Command, JobSpec, Program

_WORKERS = 2  # as the platform had it where nobody said


def distributed(values: Mapping[str, Any], here: Context) -> JobSpec:
    """Return the job of workers and a master."""
    parts.required(dict(values), worker_type="--worker-type")
    workers = (values["worker_type"], values["worker_replicas"] or _WORKERS)
    machines = ((values["ps_type"] or workers[0], 1), workers)
    return _job(values, here, DISTRIBUTED, machines)


def single(values: Mapping[str, Any], here: Context) -> JobSpec:
    """Return the job of one machine."""
    parts.required(dict(values), instance_type="--instance-type")
    return _job(values, here, SINGLE, ((values["instance_type"], 1),))


def _job(
    values: Mapping[str, Any],
    here: Context,
    flags: Sequence[Flag],
    machines: tuple[tuple[str, int], ...],
) -> JobSpec:
    own = parts.job_options(dict(values), OWN)
    image, master = values["docker_image"], values.get("ps_docker_image")
    if master and not image:
        raise UsageError(
            "--docker-image must be given, too", "a run is in containers on all machines, or none"
        )
    command = _command(values)
    mounts = _datasets(values["datasets"] or "", image)
    parts.check_types(here, machines)
    folder, source = _code(values, here)
    count = sum(number for _, number in machines)
    setup = _setup(values, folder)
    left = left_out(flags, values)
    if setup and image is None:
        left.append(f"--setup-command (hosts get the packages of here: run it once, `{setup}`)")
        setup = ""
    each: dict[str, Any] = {}
    what: Command
    if count == 1 or starts_ranks(command):
        if setup and count > 1:
            setup = everywhere(setup, count)
        what = parts.line(command, None, setup)
    else:
        left.append("parameter servers (each machine runs the command as one rank)")
        each = {"ranks": count, "ranks_per_host": 1}
        what = _ranks(command, setup, folder)
    note_left_out(left)
    job = jobs.job_typed(
        what,
        folder,
        {
            **own,
            **each,
            "machines": machines,
            "image": image,
            "master_image": master if master != image else None,
            "mounts": (*(own["mounts"] or ()), *mounts),
            "source": source,
            "time_limit": options.seconds(values["limit"]) if values["limit"] else None,
            "name": jobs.run_name(values["name"]),
            "tags": parts.tags_of((), values["tags_comma"], values["project"]),
            "env": {},
        },
    )
    return _with_gpus(job, values["gpu_count"])


def starts_ranks(command: str) -> bool:
    """Return true for a line in which a launcher is called."""
    from shanty.runtime.resolve import LAUNCHERS

    names = "|".join(map(re.escape, LAUNCHERS))
    return re.search(rf"(?<![\w./-])(?:[\w./~${{}}-]*/)?(?:{names})(?=\s|$)", command) is not None


def _command(values: Mapping[str, Any]) -> str:
    """Return the line to run, of --command or of --module and the words for it."""
    command, module, words = values["command"], values["module"], values["words"]
    if command and module:
        raise UsageError("--command and --module both say what to run", fix="leave one of them out")
    if command and words:
        raise UsageError(
            f"unknown flag {words[0]}",
            "with --command, all arguments of the program are in it",
            "write it into --command, or see --help",
        )
    line = command or f"python -m {module or 'main'}"
    line = f"{line} {shlex.join(words)}" if words else line
    if values["package_path"]:
        line = f"cd {shlex.quote(values['package_path'])} && {line}"
    return line


def _code(values: Mapping[str, Any], here: Context) -> tuple[Path, str | None]:
    """Return the folder of the code, and the source that `JobSpec` keeps."""
    path, commit = values["project_path"], values["commit"]
    if commit and (path is None or Path(path).is_dir()):
        path = f"git+file://{Path(path or '.').resolve()}"
    return parts.workspace(path or ".", commit, None, None, here)


def _setup(values: Mapping[str, Any], folder: Path) -> str:
    lines = [values["setup_command"]] if values["setup_command"] else []
    if values["requirements"]:
        if not (folder / values["requirements"]).is_file():
            raise UsageError(f"{values['requirements']} not found in {folder}")
        lines.append(f"pip install -r {shlex.quote(values['requirements'])}")
    return " && ".join(lines)


def everywhere(setup: str, count: int) -> str:
    """Return the line that runs a line once on each machine of the run."""
    return f'mpirun -np {count} -npernode 1 --hostfile "$HOSTFILE" sh -c {shlex.quote(setup)}'


def _ranks(command: str, setup: str, folder: Path) -> Command:
    """Return a line as the program of each rank, by a shell where that is needed."""
    plain = not re.search(r"[|&;<>()$`\\\"'*?#~=%\n]", command)
    if plain and not setup:
        return make_command(shlex.split(command), folder, raw=False)
    before = f"({setup}) || exit; " if setup else ""
    return Program(("sh", "-c", before + command))


def _datasets(text: str, image: str | None) -> tuple[tuple[str, str, str], ...]:
    folders = [each.strip() for each in text.split(",") if each.strip()]
    for each in folders:
        if not each.startswith(("/", "./", "~", "s3://", "gs://")):
            raise UsageError(
                f"--datasets {each} is one of Clusterone's datasets, which are not here",
                "shanty has no datasets of its own: data is a folder that all machines have",
                "name that folder: --datasets /data/mnist",
            )
    found = [(each, os.path.abspath(os.path.expanduser(each))) for each in folders]  # noqa: PTH100, PTH111
    return parts.data_mounts(found, image, "--datasets")


def _with_gpus(job: JobSpec, count: int | None) -> JobSpec:
    """Return the job with the first `count` GPUs of each machine; None: all."""
    if count is None:
        return job
    numbers = ",".join(map(str, range(count)))
    if job.image is not None:
        return replace(job, gpus=numbers or "none")
    return replace(job, env={"CUDA_VISIBLE_DEVICES": numbers, **job.env})
