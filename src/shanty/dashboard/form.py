"""Makes the words of `shanty run` of a form, or of a run that is to be made again with changes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any

from shanty.client.command_line import (
    command_words,
    looks_secret,
    one_line,
    option_words,
    split,
    words_of,
)
from shanty.dashboard import machines, target_options
from shanty.dashboard.detail import MASK
from shanty.dashboard.models import FieldProblem, Form, Mount, Source
from shanty.launch.user_path import user_path
from shanty.runtime.resolve import LAUNCHERS
from shanty.runtime.spec import JobSpec

# The fields of JobSpec that a field of the form stands for.
_FIELDS = {
    "name": ("name",), "source": ("workdir", "source"), "image": ("image",),
    "ranks": ("ranks",), "on": ("on", "hostfile"), "command": ("command",), "mpi": ("mpi",),
    "time_limit": ("time_limit",), "mounts": ("mounts",), "env": ("env",), "tags": ("tags",),
    "retries": ("retries",), "options": ("options",), **machines.FIELDS,
}  # fmt: skip


def words(form: Form, fields: Collection[str] = tuple(_FIELDS), *, shown: bool) -> list[str]:
    """Return the options that these fields of a form stand for.

    With `shown`, variables that look secret come without their value, as from the environment.
    """
    values: dict[str, Any] = _source(form) if "source" in fields else {}
    for name in ("name", "on", "image", "mpi", "time_limit", "ranks", "retries", "env", "tags"):
        value = getattr(form, name) if name in fields else None
        values[name] = (value.strip() or None) if isinstance(value, str) else value
    values |= machines.values(form, fields)
    if "mounts" in fields:
        modes = {True: "ro", False: "rw"}
        values["mounts"] = [
            (str(user_path(each.source)), each.target, modes[each.read_only])
            for each in form.mounts
        ]
    if "options" in fields:
        values |= target_options.values(form)
    return words_of(values, shown=shown)


def _source(form: Form) -> dict[str, Any]:
    source = form.source
    if source.kind == "git":
        return {"source": source.url or "", "workdir": source.path or None}
    return {"workdir": str(user_path(source.path or "~"))}


def command(text: str) -> list[str]:
    """Return `--` and the words of a command; ValueError where a quote is not closed."""
    return ["--", *split(text)]


def line(form: Form) -> str:
    """Return the line that does the same; the command as it was typed where it cannot be read."""
    first = ["shanty", "run", *words(form, shown=True)]
    try:
        parts = split(form.command)
    except ValueError:
        return f"{shlex.join(first)} {form.command}"
    own = parts and not parts[0].startswith("-") and " " not in parts[0]
    launcher = own and os.path.basename(parts[0]) in LAUNCHERS
    dashes = ["--"] if parts and parts[0] != "-m" and (launcher or not own) else []
    return shlex.join([*first, *dashes, *parts])


def problems(form: Form, home: Path) -> list[FieldProblem]:
    """Return what is wrong with a form, as far as it shows without looking at hosts."""
    found: list[FieldProblem] = []

    def say(field: str, what: str, fix: str = "") -> None:
        found.append(FieldProblem(field=field, what=what, fix=fix))

    try:
        if not split(form.command):
            say("command", "the command is empty", "a script, -m MODULE, or an mpirun line")
    except ValueError:
        say("command", "a quote is not closed", "add the other one")
    source = form.source
    if source.kind == "git" and not source.url:
        say("source", "the URL is missing", "as https://HOST/NAME.git, or …/NAME.git@BRANCH")
    if source.kind == "folder":
        path = user_path(source.path or "~")
        if not path.is_absolute():
            say("source", f"{path} is not absolute", "begin it with /")
        elif not path.is_dir():
            say("source", f"folder not found: {path}", "check its name")
    if form.ranks is not None and form.ranks < 1:
        say("ranks", "a run has at least one rank", "leave it empty for one rank a slot")
    for mount in form.mounts:
        if not mount.target.startswith("/") or ":" in mount.source.removeprefix("pvc:"):
            what = f"invalid mount: {mount.source}:{mount.target}"
            say("mounts", what, "the target has to be an absolute path")
        if not mount.source.startswith(("/", "~", "pvc:")):
            say("mounts", f"{mount.source} is not absolute", "begin it with /")
    if form.mounts and not form.image:
        say("mounts", "mounts are for containers, and the image is missing", "name an image")
    return [*found, *machines.problems(form, home), *target_options.problems(form)]


def _is_unset(job: JobSpec, changes: Form, name: str) -> bool:
    """Return true where a field is null and was: a file of hosts, say, stays then."""
    first = next(iter(_FIELDS[name]), "")
    return getattr(changes, name) is None and getattr(job, first, None) is None


def again(job: JobSpec, changes: Form) -> list[str]:
    """Return the words of a run like `job`, but for the fields of the form that were given."""
    given = {name for name in changes.model_fields_set if not _is_unset(job, changes, name)}
    if "env" in given:  # what was masked is as it was
        known = {k: job.env[k] if v == MASK and k in job.env else v for k, v in changes.env.items()}
        changes = changes.model_copy(update={"env": known})
    changes = machines.with_those_of(job, changes)
    without = {field for name in given for field in _FIELDS[name]}
    if "options" in given:
        without |= job.options.keys() - target_options.kept(job)
    options = option_words(job, shown=False, without=without) + words(changes, given, shown=False)
    if "command" in given:
        return [*options, *command(changes.command)]
    parts = command_words(job)
    return [*options, *parts] if "--" in parts[:2] else [*options, "--", *parts]


def form_of(job: JobSpec) -> Form:
    """Return the form that makes a run like `job`; a mask stands for values that look secret.

    Raises ValueError or TypeError for a job with values that no form has.
    """
    source = Source(kind="git", url=job.source) if job.source else Source(path=job.workdir)
    (kind, count), master = (job.machines or [(None, job.nodes)])[-1], job.machines[:-1]
    mounts = [Mount(source=a, target=b, read_only=mode == "ro") for a, b, mode in job.mounts]
    return Form(
        name=job.name,
        source=source,
        image=job.image,
        machine_type=kind,
        machines=count,
        ranks=job.ranks,
        master_type=master[0][0] if master else None,
        on=None if job.machines else job.on,
        command=one_line(job),
        mpi=job.mpi,
        time_limit=f"{job.time_limit:.10g}s" if job.time_limit else None,
        mounts=mounts,
        env={key: MASK if looks_secret(key) else value for key, value in job.env.items()},
        tags=list(job.tags),
        retries=job.retries,
        priority=job.priority or None,
        options=target_options.of_job(job),
    )
