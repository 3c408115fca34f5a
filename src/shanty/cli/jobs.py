"""Makes a JobSpec of what was typed and of the workspace's shanty.toml."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shanty.cli.context import Context
from shanty.launch.settings import on_stall, read_toml
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.spec import Command, JobSpec, Module, Program, Raw, Script

WORKSPACE_FILE = "shanty.toml"
_KINDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "a table",
}
ENVIRONMENTS = ("check", "sync", "none")
_TIME = (int, float, str)
_SHORTEST_STALL, _LONGEST_STALL = 1.0, 30 * 86400.0  # seconds
_TRACKER = "dmlc-submit"
_TRACKER_IN_TEXT = re.compile(r"(?<!\S)(?:python[\d.]*\s+)?[\w./~${}-]*/dmlc-submit(?=\s)")
_NUMBER = r"\d{1,18}(?:\.\d+)?"  # with hundreds of digits there is no such number
_MOST = 100_000  # ranks; more is a slip of the finger
_KEYS: dict[str, tuple[type, ...]] = {
    "ranks": (int,),
    "ranks_per_host": (int,),
    "cpus_per_rank": (int,),
    "memory_per_rank": (int, str),
    "oversubscribe": (bool,),
    "python": (str,),
    "mpi": (str,),
    "on": (str,),
    "hostfile": (str,),
    "environment": (str,),
    "time_limit": _TIME,
    "start_timeout": _TIME,
    "on_stall": (str,),
    "stall_after": _TIME,
    "name": (str,),
    "tags": (list,),
    "env": (dict,),
}


def defaults(workspace: Path) -> dict[str, Any]:
    """The `[run]` table of the workspace's shanty.toml, checked; empty without one."""
    path = workspace / WORKSPACE_FILE
    tables = read_toml(path)
    for name in set(tables) - {"run"}:
        raise UsageError(
            f"unknown {name!r} in {path}", "shanty reads the table [run]", "put it under [run]"
        )
    table: dict[str, Any] = tables.get("run", {})
    if not isinstance(table, dict):
        raise UsageError(f"run in {path} must be a table", fix="write it as [run]")
    for key, value in table.items():
        if key not in _KEYS:
            raise UsageError(
                f"unknown key {key!r} in [run] of {path}", fix="known are " + ", ".join(_KEYS)
            )
        if type(value) not in _KEYS[key]:  # an int is a bool's parent, hence no isinstance
            names = " or ".join(_KINDS[kind] for kind in _KEYS[key])
            raise UsageError(f"{key} in [run] of {path} must be {names}, not {value!r}")
    for tag in table.get("tags", ()):
        if not isinstance(tag, str):
            raise UsageError(f"tags in [run] of {path} must be texts, not {tag!r}")
    if "environment" in table:
        environment_mode(table["environment"])
    if "hostfile" in table:
        table["hostfile"] = str(workspace / table["hostfile"])
    for key in ("time_limit", "start_timeout"):
        if key in table:
            table[key] = seconds(str(table[key]))
    if "stall_after" in table:
        table["stall_after"] = stall_after(str(table["stall_after"]))
    if "on_stall" in table:
        on_stall(table["on_stall"], f"on_stall in {path}")
    if "memory_per_rank" in table:
        table["memory_per_rank"] = size(str(table["memory_per_rank"]))
    return table


def make_command(words: Sequence[str], workspace: Path, *, raw: bool) -> Command:
    """What the words after the options mean; NotFoundError for a script that is not there."""
    from shanty.launch.targets.plan import LAUNCHERS

    words = _by_name(words)
    if not words or not words[0]:
        raise UsageError(
            "nothing to run", fix="give a script, -m MODULE, a program or an mpirun line"
        )
    first, rest = words[0], tuple(words[1:])
    if first == "-m":
        if not rest:
            raise UsageError("-m needs the name of a module")
        return Module(rest[0], rest[1:])
    exists = (workspace / first).exists()
    if not rest and not exists and any(space in first.strip() for space in " \t\n"):
        return Raw((_TRACKER_IN_TEXT.sub(_TRACKER, first),), shell=True)
    if raw or os.path.basename(first) in LAUNCHERS:
        return Raw(tuple(words))
    path = workspace / first
    if path.is_dir() and not (path / "__main__.py").is_file() and not _is_program(first):
        raise NotFoundError(
            f"{first!r} in {workspace} is a folder without __main__.py",
            "there is no program of that name either",
            "give the script in it, or -m MODULE",
        )
    if first.endswith(".py") or (path / "__main__.py").is_file():
        if not path.exists():
            raise NotFoundError(
                f"there is no script {first!r} in {workspace}",
                fix="check the name, or give the folder with --workdir",
            )
        return Script(first, rest)
    return Program(tuple(words))


def _is_program(name: str) -> bool:
    """Whether a name, which a folder has too, is that of a program or of one that we stand in for.

    A folder itself is none, whatever may be done with it.
    """
    from shanty.runtime.rank.command import stand_in

    return shutil.which(name) is not None or stand_in([name], "") != [name]


def _by_name(words: Sequence[str]) -> Sequence[str]:
    """A line that starts dmlc-submit by a path, or by `python PATH`, with its name only.

    The program need not be there: what it does, the shim of that name does in a run.
    """
    from shanty.runtime.rank.command import is_python

    at = 1 if len(words) > 1 and is_python(words[0]) else 0
    if words and os.path.basename(words[at]) == _TRACKER:
        return [_TRACKER, *words[at + 1 :]]
    return words


def environment(
    pairs: Sequence[str], files: Sequence[Path], environ: Mapping[str, str]
) -> dict[str, str]:
    """The variables of --env-file and -e; `KEY` alone takes its value from `environ`."""
    values: dict[str, str] = {}
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise NotFoundError(f"cannot read the env file {file}", str(error)) from error
        for number, line in enumerate(text.splitlines(), 1):
            line = line.strip().removeprefix("export ")
            if line and not line.startswith("#"):
                values.update(_pair(line, environ, f"{file}:{number}"))
    for pair in pairs:
        values.update(_pair(pair, environ, "-e"))
    return values


def environment_mode(word: str | None) -> str | None:
    """What --env asks for, checked."""
    if word is None or word in ENVIRONMENTS:
        return word
    fix = f"a variable is set with -e {word}" if "=" in word else ""
    raise UsageError(f"--env takes check, sync or none, not {word!r}", fix=fix)


def workspace_folder(source: str | None, workdir: Path | None, here: Context) -> Path:
    """The folder to run in; a git repository or an archive (`source`) is fetched first."""
    folder = (workdir or Path.cwd()).absolute()
    if source is not None:
        from shanty.launch.cluster.sources import open_workspace

        base = open_workspace(source, here.home, here.preparing)
        here.preparing("")
        folder = base / workdir if workdir is not None else base
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", fix="check --workdir")
    return folder


def _pair(text: str, environ: Mapping[str, str], where: str) -> dict[str, str]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not key or any(c.isspace() or c == "\0" for c in key):
        raise UsageError(f"{where}: {text!r} is no KEY=VALUE")
    if not equals:
        return {key: environ[key]} if key in environ else {}
    value = value.strip() if where != "-e" else value
    if where != "-e" and len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return {key: value}


def seconds(text: str) -> float:
    """A time as people write it: 90, 90s, 15m, 2h, 1h30m, 1:30:00."""
    clock = re.fullmatch(r"(?:(\d{1,9}):)?(\d{1,9}):(\d{2})", text)
    if clock:
        hours, minutes, rest = (int(part or 0) for part in clock.groups())
        return hours * 3600.0 + minutes * 60 + rest
    units = re.fullmatch(
        "".join(rf"(?:({_NUMBER}){unit})?" for unit in ("d", "h", "m", "s?")),
        text.strip(),
    )
    if not text.strip() or not units:
        raise UsageError(f"{text!r} is no time", fix="write 90, 90s, 15m, 2h, 1h30m or 1:30:00")
    parts = [float(part or 0) for part in units.groups()]
    return parts[0] * 86400 + parts[1] * 3600 + parts[2] * 60 + parts[3]


def stall_after(text: str) -> float:
    """The time of --stall-after; 0 or "off": never."""
    wanted = 0.0 if text.strip().lower() in ("off", "0") else seconds(text)
    if wanted and not _SHORTEST_STALL <= wanted <= _LONGEST_STALL:
        raise UsageError(
            f"a stall cannot be told after {text}",
            "ranks need a moment to get to each other",
            "write a time from 1s to 30d, or off",
        )
    return wanted


def size(text: str) -> int:
    """Bytes as people write them: 500000000, 800M, 4G, 4GiB, 1.5T; all of them powers of 1024."""
    found = re.fullmatch(rf"({_NUMBER})\s*([KMGTP]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise UsageError(f"{text!r} is no size", fix="write 800M, 4G or 1.5T")
    return int(float(found[1]) * 1024 ** " KMGTP".index(found[2].upper() or " "))


def _is_name(name: str) -> bool:
    plain = name.replace(".", "").replace("_", "").replace("-", "")
    return plain.isalnum() and name[0].isalnum() and name != "last"


def make_job(command: Command, workspace: Path, given: Mapping[str, Any]) -> JobSpec:
    """The job: what was typed (`given`, None where nothing was) over the workspace's defaults."""
    table = defaults(workspace)
    env = {**{key: str(value) for key, value in table.pop("env", {}).items()}, **given["env"]}
    values = {**table, **{key: value for key, value in given.items() if value is not None}}
    values["tags"] = tuple(given.get("tags") or table.get("tags", ()))
    values["env"] = env
    for key in ("ranks", "ranks_per_host", "cpus_per_rank", "memory_per_rank"):
        if values.get(key) is not None and values[key] < 1:
            raise UsageError(f"{key.replace('_', ' ')} must be at least 1, not {values[key]}")
    if (values.get("gpus_per_rank") or 0) < 0:
        raise UsageError(f"gpus per rank must be at least 0, not {values['gpus_per_rank']}")
    if (values.get("ranks") or 0) > _MOST:
        raise UsageError(f"{values['ranks']} ranks are too many", fix=f"at most {_MOST}")
    if values.get("time_limit") is not None and values["time_limit"] <= 0:
        raise UsageError("the time limit must be more than 0", fix="leave it out for none")
    if given.get("on") or given.get("hostfile"):  # what was typed is not added to, but replaces
        for key in ("on", "hostfile"):
            if not given.get(key):
                values.pop(key, None)
    name = values.get("name")
    if name is not None and not _is_name(name):
        raise UsageError(
            f"{name!r} cannot be the name of a run",
            "a name has letters, digits, '.', '_' and '-', begins with one of the first two, "
            "and is not `last`",
        )
    if not all(values["tags"]):
        raise UsageError("a tag must not be empty")
    return JobSpec(command=command, workdir=str(workspace), **values)
