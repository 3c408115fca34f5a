"""Makes the words of `shanty run` of a form, or of a run that is to be made again with changes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from pathlib import Path

from shanty.dashboard import machines
from shanty.dashboard.detail import MASK
from shanty.dashboard.models import FieldProblem, Form
from shanty.launch.command_line import (
    FLAGS,
    command_words,
    looks_secret,
    option_words,
    split,
)
from shanty.launch.user_path import user_path
from shanty.runtime.resolve import LAUNCHERS
from shanty.runtime.spec import JobSpec

# The fields of JobSpec that a field of the form stands for.
_FIELDS = {
    "name": ("name",), "source": ("workdir", "source"), "image": ("image",),
    "ranks": ("ranks",), "on": ("on", "hostfile"), "command": ("command",), "mpi": ("mpi",),
    "time_limit": ("time_limit",), "mounts": ("mounts",), "env": ("env",), "tags": ("tags",),
    "retries": ("retries",), **machines.FIELDS,
}  # fmt: skip


def words(form: Form, fields: Collection[str] = tuple(_FIELDS), *, shown: bool) -> list[str]:
    """Return the options that these fields of a form stand for.

    With `shown`, variables that look secret come without their value, as from the environment.
    """
    found: list[str] = []
    if "source" in fields:
        found += _source(form)
    for name in ("name", "on", "image", "mpi", "time_limit"):
        value = getattr(form, name)
        if name in fields and value:
            found += [FLAGS[name], value.strip()]
    for name in ("ranks", "retries"):
        value = getattr(form, name)
        if name in fields and value is not None:
            found += [FLAGS[name], str(value)]
    found += machines.words(form, fields)
    for mount in form.mounts if "mounts" in fields else ():
        text = f"{_expanded(mount.source)}:{mount.target}" + (":ro" if mount.read_only else "")
        found += [FLAGS["mounts"], text]
    for name, value in form.env.items() if "env" in fields else ():
        hidden = shown and looks_secret(name)
        found += [FLAGS["env"], name if hidden else f"{name}={value}"]
    for tag in form.tags if "tags" in fields else ():
        found += [FLAGS["tags"], tag]
    return found


def _source(form: Form) -> list[str]:
    source = form.source
    if source.kind == "git":
        below = [FLAGS["workdir"], source.path] if source.path else []
        return [FLAGS["source"], source.url or "", *below]
    return [FLAGS["workdir"], _expanded(source.path or "~")]


def _expanded(path: str) -> str:
    return str(user_path(path))


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
            say("command", "there is nothing to run", "a script, -m MODULE, or an mpirun line")
    except ValueError:
        say("command", "a quote is not closed", "add the other one")
    source = form.source
    if source.kind == "git" and not source.url:
        say("source", "there is no URL", "as https://HOST/NAME.git, or …/NAME.git@BRANCH")
    if source.kind == "folder":
        path = Path(_expanded(source.path or "~"))
        if not path.is_absolute():
            say("source", f"{path} is not absolute", "begin it with /")
        elif not path.is_dir():
            say("source", f"there is no folder {path}", "check its name")
    if form.ranks is not None and form.ranks < 1:
        say("ranks", "there has to be a rank", "leave it empty for one a slot")
    for mount in form.mounts:
        if not mount.target.startswith("/") or ":" in mount.source.removeprefix("pvc:"):
            say("mounts", f"{mount.source}:{mount.target} is no mount", "the target is absolute")
        if not mount.source.startswith(("/", "~", "pvc:")):
            say("mounts", f"{mount.source} is not absolute", "begin it with /")
    if form.mounts and not form.image:
        say("mounts", "mounts are for containers, and there is no image", "name an image")
    return found + machines.problems(form, home)


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
    without = [field for name in given for field in _FIELDS[name]]
    options = option_words(job, shown=False, without=without) + words(changes, given, shown=False)
    if "command" in given:
        return [*options, *command(changes.command)]
    parts = command_words(job)
    return [*options, *parts] if "--" in parts[:2] else [*options, "--", *parts]
