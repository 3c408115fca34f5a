"""Makes a JobSpec of what was typed and of the workspace's shanty.toml."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shanty.cli import options
from shanty.cli.context import Context, note
from shanty.launch.settings import KUBERNETES_KEYS
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.mpi.processes import RANK
from shanty.runtime.mpi.processes import number as first_number
from shanty.runtime.rank.reports import FIFO
from shanty.runtime.spec import Command, JobSpec, Module, Program, Raw, Script

_TRACKER = "dmlc-submit"
_TRACKER_IN_TEXT = re.compile(r"(?<!\S)(?:python[\d.]*\s+)?[\w./~${}-]*/dmlc-submit(?=\s)")


def make_command(words: Sequence[str], workspace: Path, *, raw: bool) -> Command:
    """Tell what the words after the options mean; NotFoundError for a script that is not there."""
    from shanty.runtime.rank.command import is_python
    from shanty.runtime.resolve import LAUNCHERS

    words = _by_name(words)
    if not words or not words[0].strip():
        raise UsageError(
            "nothing to run", fix="give a script, -m MODULE, a program or an mpirun line"
        )
    first, rest = words[0], tuple(words[1:])
    if first == "-m":
        if not rest:
            raise UsageError("-m needs the name of a module")
        return _make_module(rest[0], rest[1:], workspace)
    exists = (workspace / first).exists()
    if not rest and not exists and any(space in first.strip() for space in " \t\n"):
        script, _, more = first.strip().partition(" ")
        if script.endswith(".py") and (workspace / script).is_file():
            raise UsageError(
                f"{first!r} is one word, and no script's name",
                "a script's arguments are words of their own",
                f"write it without quotes: shanty run {first.strip()}; in Python: "
                f'submit("{script}", args={more.split()!r})',
            )
        return shell_line(first)
    if raw or os.path.basename(first) in LAUNCHERS:
        return Raw(tuple(words))
    path = workspace / first
    if path.is_dir() and not (path / "__main__.py").is_file() and not _is_program(first):
        raise NotFoundError(
            f"{first!r} in {workspace} is a folder without __main__.py",
            "there is no program of that name either",
            "give the script in it, or -m MODULE",
        )
    if first.endswith(".ipynb"):
        raise UsageError(
            f"{first!r} is a notebook, no script",
            fix=f"make a script of it: jupyter nbconvert --to script {first}",
        )
    if first.endswith(".py") or (path / "__main__.py").is_file():
        return make_script(first, rest, workspace)
    if first.startswith("-") and not exists:
        raise UsageError(
            f"{first!r} is no script and no program",
            "what is run comes after the options of shanty run",
            f"for Python: shanty run {shlex.join(['python', *words])}",
        )
    if is_python(first) and rest and rest[0].endswith(".py") and not Path(rest[0]).is_absolute():
        make_script(rest[0], rest[1:], workspace)  # raises where it is not there
    return Program(tuple(words))


def shell_line(text: str) -> Raw:
    """Return the command of a line for a shell."""
    return Raw((_TRACKER_IN_TEXT.sub(_TRACKER, text),), shell=True)


def _make_module(name: str, args: tuple[str, ...], workspace: Path) -> Module:
    if name.endswith(".py") and (workspace / name).is_file():
        raise UsageError(
            f"{name!r} is a script, no module",
            fix=f"leave -m out, or write -m {name[:-3].replace(os.sep, '.')}",
        )
    return Module(name, args)


def make_script(path: str, args: Sequence[str], workspace: Path) -> Script:
    """Return the script; an error where it is not there, or cannot be read."""
    full = workspace / path
    if not full.exists():
        why, fix = _missing(path, full)
        raise NotFoundError(f"there is no script {path!r} in {workspace}", why, fix)
    if not os.access(full, os.R_OK):
        raise UsageError(f"{path!r} cannot be read", "Permission denied", f"see: ls -l {full}")
    return Script(f"./{path}" if path.startswith("-") else path, tuple(args))


def _missing(path: str, full: Path) -> tuple[str, str]:
    """Return why a script may not be there, and what to do."""
    if full.is_symlink():
        return f"it is a link to {full.readlink()}, which is not there", ""
    if "://" in path:
        return "what is run has to be a file", f"fetch it first: curl -LO {path}"
    if path.startswith(("~", "$")):
        return "quotes keep the shell from reading it", "write it without quotes"
    return "", _nearest(full) or "check the name, or give the folder with --workdir"


def _nearest(path: Path) -> str:
    """Return a question for the script with the nearest name in that folder; "" for none."""
    from difflib import get_close_matches

    names = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
    found = get_close_matches(path.name, names, 1)
    return f"did you mean {found[0]}?" if found else ""


def refuse_in_ranks(environ: Mapping[str, str]) -> None:
    """Raise UsageError in a rank of several: each of them would start a run."""
    size = environ.get("WORLD_SIZE", "1")
    if FIFO in environ and size != "1" and first_number(environ, RANK) is not None:
        raise UsageError(
            "this is a rank of a run, and shanty run starts ranks itself",
            f"it would be started as often as the run has ranks: {size} times",
            "give the script to the run as its line: shanty run --raw bash x.sh",
        )


def bring_script(job: JobSpec) -> JobSpec:
    """Return the job with the script's folder as its workspace, if that is outside of it.

    What is sent to hosts is the workspace.
    """
    if not (job.on or job.hostfile or job.image) or not isinstance(job.command, Script):
        return job
    path = Path(os.path.normpath(Path(job.workdir, job.command.path)))
    if path.is_relative_to(job.workdir):
        return job
    folder = path.parent
    if Path("~").expanduser().is_relative_to(folder) or folder in (Path("/tmp"), Path("/var/tmp")):
        raise UsageError(
            f"{path} is not in {job.workdir}, and its own folder cannot be sent to the hosts",
            f"all that is in {folder} would go with it",
            "put it into a folder of its own, or name the one to send with --workdir",
        )
    done = "sent to the hosts" if job.on or job.hostfile else "what the container has"
    note(f"{path} is not in {job.workdir}: its own folder is {done}, and it runs there")
    return replace(job, workdir=str(path.parent), command=Script(path.name, job.command.args))


_OURS = ("-n", "-np", "--ranks", "--on", "--ppn", "--mpi", "--hostfile", "--oversubscribe")


def note_late_options(job: JobSpec) -> None:
    """Say that an option of ours after the script went to the script, unless that knows it."""
    if not isinstance(job.command, Script) or not job.command.args:
        return
    late = next((word for word in job.command.args if word.partition("=")[0] in _OURS), None)
    if late is None:
        return
    name = late.partition("=")[0]
    try:
        text = Path(job.workdir, job.command.path).read_text(errors="replace")
    except OSError:  # a folder
        return
    if f'"{name}"' not in text and f"'{name}'" not in text:
        note(
            f"{name} after {job.command.path} is an option of the script; "
            f"for shanty, write it before: shanty run {name} … {job.command.path}"
        )


def _is_program(name: str) -> bool:
    """Return true where a folder's name is that of a program, or of one that we stand in for."""
    from shanty.runtime.rank.command import stand_in

    return shutil.which(name) is not None or stand_in([name], "") != [name]


def _by_name(words: Sequence[str]) -> Sequence[str]:
    """Replace the path of dmlc-submit, or `python PATH`, at the start of a line by its name.

    The program need not be there: in a run the shim of that name does its work.
    """
    from shanty.runtime.rank.command import is_python

    at = 1 if len(words) > 1 and is_python(words[0]) else 0
    if words and os.path.basename(words[at]) == _TRACKER:
        return [_TRACKER, *words[at + 1 :]]
    return words


def environment(
    pairs: Sequence[str], files: Sequence[Path], environ: Mapping[str, str]
) -> dict[str, str]:
    """Read the variables of --env-file and -e; `KEY` alone takes its value from `environ`."""
    values: dict[str, str] = {}
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
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
        from shanty.launch.cluster.sources import open_workspace

        base = open_workspace(source, here.home, here.progress)
        here.progress("")
        folder = base / workdir if workdir is not None else base
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", fix="check --workdir")
    return folder


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


# The options of queues, which stand in shanty.toml for runs that go there.
_OF_QUEUES = {"slurm": options.OF_SLURM, "k8s": ("nodes", *KUBERNETES_KEYS)}


def _queue(given: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    """The first part of `--on`, typed or from shanty.toml: slurm, k8s, or hosts."""
    return str(given.get("on") or table.get("on", "")).partition(":")[0]


def of_manifest(
    path: Path, command: Sequence[str], folder: Path, given: Mapping[str, Any]
) -> JobSpec:
    """Make the job of an MPIJob's file; what was typed comes before what that says."""
    from shanty.launch.kubernetes import mpijob, objects

    typed = {key: value for key, value in given.items() if value not in (None, (), {})}
    table = options.defaults(folder)
    on_cluster = _queue(typed, table) == "k8s"
    if typed.get("operator"):
        raise UsageError(
            f"--as {typed['operator']} makes an object, and -f {path} has one",
            fix=f"kubectl apply -f {path} hands it to the operator; without --as shanty runs it",
        )
    usual = {key: str(value) for key, value in table.get("env", {}).items()}
    found = mpijob.read(path, cluster=on_cluster, env=given["env"], usual=usual)
    own = dict(found.given)
    if "ranks" in typed or "nodes" in typed:  # then the other follows
        own = {key: value for key, value in own.items() if key not in ("ranks", "nodes")}
    if not on_cluster:
        own = {key: value for key, value in own.items() if key not in KUBERNETES_KEYS}
        own.pop("nodes", None)
        if not any(each.get(key) for each in (typed, table) for key in ("on", "hostfile")):
            # all of it is on this machine
            own |= {"ranks_per_host": None, "oversubscribe": True}
    else:
        own["k8s_patch"] = mpijob.without(own["k8s_patch"], typed)
        on = str(typed.get("on") or table["on"])
        if found.namespace and "/" not in on:
            typed["on"] = f"{on}{'' if ':' in on else ':'}/{found.namespace}"
        if "k8s_patch" in typed:
            both = objects.merged(json.loads(own["k8s_patch"]), json.loads(typed["k8s_patch"]))
            typed["k8s_patch"] = json.dumps(both)
    for each in filter(None, (*found.notes, found.notice())):
        note(f"-f {path.name}: {each}")
    what = make_command(command, folder, raw=False) if command else found.command
    if what is None:
        raise UsageError(
            "the launcher of the MPIJob has no command",
            "it is what the image's entry point makes of its arguments, which only a cluster sees",
            "give the line after --, as: shanty run -f FILE -- mpirun python train.py",
        )
    values = {**dict.fromkeys(given), **own, **typed}
    return make_job(what, folder, {**values, "env": {**own["env"], **given["env"]}})


# What says where things are on a machine: each host has its own.
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


def make_job(command: Command, workspace: Path, given: Mapping[str, Any]) -> JobSpec:
    """Make the job: what was typed (`given`, None where nothing was) over the defaults."""
    table = options.defaults(workspace)
    env = {**{key: str(value) for key, value in table.pop("env", {}).items()}, **given["env"]}
    if given.get("on") or given.get("hostfile"):  # what was typed is not added to, but replaces
        table = {key: value for key, value in table.items() if key not in ("on", "hostfile")}
    queue = _queue(given, table)
    foreign = [key for name, keys in _OF_QUEUES.items() if name != queue for key in keys]
    foreign = [key for key in foreign if key not in _OF_QUEUES.get(queue, ())]
    table = {key: value for key, value in table.items() if key not in foreign}
    values = {**table, **{key: value for key, value in given.items() if value is not None}}
    if any(values.get(key) for key in ("on", "hostfile", "image", "machines")):
        env = {**_exported(command, os.environ), **env}
    several_of = ("tags", "mounts", "node_selector", "tolerations", "pull_secrets", "labels")
    for several in (*several_of, "log_to"):
        values[several] = tuple(given.get(several) or table.get(several, ()))
    options.check(values)
    return JobSpec(command=command, workdir=str(workspace), **{**values, "env": env})
