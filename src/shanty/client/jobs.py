"""Makes a JobSpec of options, and of the workspace's shanty.toml."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shanty.client import options
from shanty.client.context import Context, folder_is_gone, note
from shanty.client.old_spellings import current_name
from shanty.client.spawning import let_spawn
from shanty.launch.options.known import BUILTIN
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.spec import Command, JobSpec, Module, Raw


def environment(
    pairs: Sequence[str], files: Sequence[Path], environ: Mapping[str, str]
) -> dict[str, str]:
    """Read the variables of --env-file and -e; `KEY` alone takes its value from `environ`."""
    values: dict[str, str] = {}
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise NotFoundError(f"cannot read the env file {file}", str(error)) from error
        for number, line in enumerate(text.splitlines(), 1):
            line = line.strip().removeprefix("export ")
            if line and not line.startswith("#"):
                found = _pair(line, environ, f"{file}, line {number}")
                if not found:
                    note(f"{file}, line {number}: {line} is not set here, so ranks do not get it")
                values.update(found)
    for pair in pairs:
        found = _pair(pair, environ, "-e")
        if not found:
            note(f"-e {pair}: {pair} is not set here, so ranks get none from here")
        values.update(found)
    return values


def workspace_folder(source: str | None, workdir: Path | None, here: Context) -> Path:
    """Return the folder to run in; a git repository or an archive (`source`) is fetched first."""
    folder = (workdir or Path.cwd()).absolute()
    if source is not None:
        base = fetched_workspace(source, here)
        folder = base / workdir if workdir is not None else base
    if not folder.is_dir():
        raise UsageError(f"folder not found: {folder}", fix="check --workdir")
    return folder


def fetched_workspace(source: str, here: Context, login: tuple[str, str] | None = None) -> Path:
    """Fetch a git repository or an archive; return its folder. `login` is for an http URL."""
    from shanty.launch.content.sources import open_workspace

    found = open_workspace(source, here.home, here.progress, login)
    here.progress("")
    return found


def is_archive(source: str) -> bool:
    """Return true for the name or the URL of an archive."""
    from shanty.launch.content.sources import ARCHIVES

    return source.lower().endswith(ARCHIVES)


def fetched_script(url: str, here: Context) -> Path:
    """Fetch the Python script at a URL; return where it is, in a folder of its own."""
    from shanty.launch.content.sources import open_script

    found = open_script(url, here.home, here.progress)
    here.progress("")
    return found


def _pair(text: str, environ: Mapping[str, str], where: str) -> dict[str, str]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not key or any(c.isspace() or c == "\0" for c in key):
        why = "" if where == "-e" else "a value ends at the end of its line"
        raise UsageError(f"{where}: {text!r} is not KEY=VALUE", why)
    if not equals:
        return {key: environ[key]} if key in environ else {}
    value = value.strip() if where != "-e" else value
    if where != "-e" and len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    if "\0" in value:
        raise UsageError(f"{where}: the value of {key} has a NUL byte, which no variable can have")
    return {key: value}


def run_name(text: str | None) -> str | None:
    """Make the name of a run of another program's name, without what it may not hold."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text or "").strip("._-")
    return None if name in ("", "last") else name


def queue_of(given: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    """The first part of `--on`, typed or from shanty.toml: slurm, k8s, or hosts."""
    return str(given.get("on") or table.get("on", "")).partition(":")[0]


# Variables that name places on a machine: each host has its own.
_OF_HOSTS = frozenset((
    "PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV",
    "CONDA_PREFIX", "HOME", "PWD", "OLDPWD", "SHELL", "USER", "LOGNAME", "HOSTNAME", "TMPDIR",
))  # fmt: skip


def _exported(command: Command, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a launcher's line hands on by name (-x NAME), as they are here.

    The line runs on another host, or in a container, which does not have them.
    """
    from shanty.runtime.mpi.parser import exported
    from shanty.runtime.resolve import LAUNCHERS

    if not isinstance(command, Raw):
        return {}
    words = list(command.argv)
    if command.shell:
        try:
            words = shlex.split(command.argv[0])
        except ValueError:  # only a shell knows
            return {}
    wanted: set[str] = set()
    for at, word in enumerate(words):
        if os.path.basename(word) in LAUNCHERS:
            wanted |= exported(words[at + 1 :])
    starts = tuple(name[:-1] for name in wanted if name.endswith("*"))
    names = [name for name in environ if name in wanted or (starts and name.startswith(starts))]
    return {name: environ[name] for name in names if name not in _OF_HOSTS}


def job_typed(command: Command, workspace: Path, given: Mapping[str, Any]) -> JobSpec:
    """Make a job of values by the names of options: those `given`, over those of shanty.toml.

    None stands for nothing. `options.typed` makes such values of typed words.
    """
    tables = options.tables(workspace)
    table = tables.get("run", {})
    env = {**{key: str(value) for key, value in table.pop("env", {}).items()}, **given["env"]}
    if given.get("on") or given.get("hostfile"):  # what was typed is not added to, but replaces
        table = {key: value for key, value in table.items() if key not in ("on", "hostfile")}
    scheme = queue_of(given, table)
    foreign: set[str] = set()
    foreign = foreign.union(*(each.fields for each in BUILTIN if each.scheme != scheme))
    foreign = foreign.difference(*(each.fields for each in BUILTIN if each.scheme == scheme))
    table = {key: value for key, value in table.items() if key not in foreign}
    table |= tables.get(scheme, {})
    values = {**table, **{key: value for key, value in given.items() if value is not None}}
    if any(values.get(key) for key in ("on", "hostfile", "image", "machines")):
        env = {**_exported(command, os.environ), **env}
    for name, value in values.items():
        if isinstance(value, (list, tuple)):
            values[name] = tuple(value or table.get(name, ()))
    options.check(values)
    own = {name: value for name, value in values.items() if name in JobSpec.__dataclass_fields__}
    of_target = {
        name: value
        for name, value in values.items()
        if name not in own and value is not False and value != ()
    }
    job = JobSpec(command, workdir=str(workspace), options=of_target, **{**own, "env": env})
    if job.warm == (options.IMPORTS,):
        from shanty.client.imports import heavy_imports

        job = replace(job, warm=heavy_imports(job))
    return let_spawn(job)


def job_of(command: Command, workspace: Path, given: Mapping[str, Any]) -> JobSpec:
    """Make a job of options by their names, with values as Python and shanty.toml write them.

    UsageError for an unknown option.
    """
    values: dict[str, Any] = dict.fromkeys(options.OPTIONS)
    options.refuse_unknown(given)
    for given_name, value in given.items():
        name = current_name(given_name)
        if name != given_name and name in given:
            raise UsageError(f"{given_name}= is {name}= now, which is given, too")
        option = options.find(name)
        assert option is not None  # else it was refused
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
            raise UsageError(
                f"env={{{key!r}: {value!r}}} is not a variable that a process can have"
            )
    values["env"] = {str(key): str(value) for key, value in env.items()}
    return job_typed(command, workspace, values)


def task_job(given: Mapping[str, Any], inputs: Path | None, name: str = "") -> JobSpec:
    """Make the job of a call, whose folder is `inputs`; None: to see where it would be.

    name: the function's, which stands in the run's command to be seen.
    """
    folder = folder_of(given.get("workdir"))
    own = {key: value for key, value in given.items() if key != "workdir"}
    own = {"python": sys.executable, **own, "inputs": inputs and str(inputs)}
    return job_of(Module("shanty.tasks.rank", (name,) if name else ()), folder, own)


def folder_of(workdir: str | os.PathLike[str] | None) -> Path:
    """Return the folder of the code; None: the current one."""
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
