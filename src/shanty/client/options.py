"""Declares the options of a run, each once.

An option is one entry of `OPTIONS`: from it come the option of `shanty run`, the key of
shanty.toml, and the checks of both. It is a field of JobSpec; those that targets declare
(`launch.options`) are in its `options`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shanty.client.old_spellings import current_key, current_name
from shanty.launch.options.known import BUILTIN, declared, every, option_of
from shanty.launch.options.option import KINDS as KINDS
from shanty.launch.options.option import Option, choice, number, switch, time, word
from shanty.launch.options.option import seconds as seconds
from shanty.launch.options.option import size as size
from shanty.launch.settings import CHOICES, read_toml
from shanty.launch.settings import choice as setting
from shanty.launch.user_path import user_path
from shanty.runtime.errors import UsageError
from shanty.runtime.suggestions import nearest, place

WORKSPACE_FILE = "shanty.toml"
PACKAGES = ("check", "sync", "none")
SINKS = ("tensorboard", "mlflow", "wandb")  # a test holds them to `_sinks.PACKAGES`
ENGINES = ("docker", "podman", "apptainer")  # a test holds them to `engines.ENGINES`
_TIME = (int, float, str)
_SHORTEST_STALL, _LONGEST_STALL = 1.0, 30 * 86400.0  # seconds
_NOT_IN_PYTHON = ("debug_rank", "env_file", "source")
IMPORTS = "imports"  # in place of modules for --warm: those that the script imports
_MOST = 100_000  # ranks; a larger number is a typing error

# --------------------------------------------------------------------- values as people write them


def stall_after(text: str) -> float:
    """Read the time of --stall-after; 0 or "off": never."""
    wanted = 0.0 if text.strip().lower() in ("off", "0") else seconds(text)
    if wanted and not _SHORTEST_STALL <= wanted <= _LONGEST_STALL:
        raise UsageError(
            f"stalls cannot be reported after {text}",
            "healthy ranks also wait for each other for a moment",
            "write a time from 1s to 30d, or off",
        )
    return wanted


def _log_to(given: str | Sequence[str], where: str) -> tuple[str, ...]:
    words = given.split(",") if isinstance(given, str) else given
    names = [each.strip() for each in words if each.strip()]
    return tuple(dict.fromkeys(word(name, where, SINKS) for name in names))


def _warm(given: bool | str | Sequence[str], where: str) -> tuple[str, ...] | None:
    """Read the modules of --warm; true stands for those that the script imports."""
    if isinstance(given, bool):
        return (IMPORTS,) if given else None
    words = given.split(",") if isinstance(given, str) else given
    names = [each.strip() for each in words]
    for name in names:
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
            raise UsageError(
                f"{where} takes the names of modules, not {name!r}", fix="as in --warm=torch,numpy"
            )
    return tuple(dict.fromkeys(names))


def _image(text: str, folder: Path) -> str:
    from shanty.launch.containers.options import image

    return image(text, folder)


def _mounts(texts: Sequence[str], folder: Path) -> tuple[tuple[str, str, str], ...]:
    from shanty.launch.containers.options import mount

    return tuple(mount(text, folder) for text in texts)


def _gpus(word: str, where: str) -> str:
    if word in ("all", "none") or re.fullmatch(r"\d{1,4}(,\d{1,4})*", word):
        return word
    raise UsageError(f"{where} takes all, none or numbers as 0,1, not {word!r}")


def _machines(text: str, where: str) -> tuple[tuple[str, int], ...]:
    """Read machine types: TYPE[:COUNT],TYPE[:COUNT]."""
    found = []
    for part in text.split(","):
        name, colon, count = part.strip().partition(":")
        if not name or (colon and not re.fullmatch(r"[1-9]\d{0,4}", count)):
            raise UsageError(
                f"{where} takes TYPE or TYPE:COUNT, not {part!r}",
                fix="several with commas: --machines big:1,small:4",
            )
        found.append((name, int(count or 1)))
    return tuple(found)


def _folder(text: str, where: str, folder: Path) -> str:
    path = folder / user_path(text)
    if not path.is_dir():
        raise UsageError(f"folder not found: {path}", f"{where} names it")
    return str(path)


def registry_password(text: str, folder: Path) -> str:
    """Read where a password is; the password itself would be seen by all users of the machine."""
    if re.fullmatch(r"env:\w+", text):
        return text
    path = folder / user_path(text)
    if not path.is_file():
        raise UsageError(
            "--registry-password takes a file or a variable, not the password itself",
            "other users could read a password on the command line",
            "put it into a file of your own, or into the variable SHANTY_REGISTRY_PASSWORD",
        )
    return str(path)


# --------------------------------------------------------------------------- options of a run


_FIRST = (
    number("ranks", "-n -np --ranks", "Ranks in all [one a slot].", toml=(int,)),
    number("ranks_per_host", "--ranks-per-host --ppn", "Ranks on each host.", toml=(int,)),
    number(
        "cpus_per_rank", "-c --cpus-per-rank", "Cores to bind each rank to [no binding].",
        toml=(int,),
    ),
    Option(
        "memory_per_rank", "--memory-per-rank",
        "What each rank needs, as 4G; refused where it is not there.",
        (int, str), lambda text, *_: size(str(text)), 1, True, metavar="SIZE",
    ),
    number("gpus_per_rank", "--gpus-per-rank", "The same of GPUs.", 0, toml=(int,)),
    switch("oversubscribe", "--oversubscribe", "Allow more ranks than cores."),
    Option(
        "on", "--on", "Where: a,b:4,user@10.0.0.3, a group, slurm or k8s [here].",
        (str,), metavar="HOSTS", completes="hosts",
    ),
    Option(
        "hostfile", "--hostfile", "A file that names the hosts.",
        (str,), lambda path, _where, folder: str(folder / path),
        kind=Path, completes="files",
    ),
    Option(
        "machines", "--machines", "Where: such machines, once they are free.",
        (str,), lambda text, where, _: _machines(text, where),
        metavar="TYPE[:COUNT],…", completes="machine_types",
    ),
    number("priority", "--priority", "Higher is served first [0].", None, toml=(int,)),
    switch("share", "--share", "Machines may be those of runs that share, too."),
    Option(
        "mpi", "--mpi", "openmpi (default), openmpi4, mpich, intel, a prefix, or image.",
        (str,), metavar="MPI", completes="mpis",
    ),
    Option(
        "python", "--python", "Interpreter or virtual environment.",
        (str,), metavar="PATH", completes="files",
    ),
    choice(
        "packages", "--packages",
        "Hosts' Python packages: compared, made the same, or as they are [check, else sync].",
        "check|sync|none", PACKAGES,
    ),
    Option(
        "image", "--image", "Run in a container of this image on each host.",
        (str,), lambda text, _where, folder: _image(text, folder), metavar="IMAGE",
    ),
    Option(
        "master_image", "--master-image", "Another one for the lead host.",
        (str,), lambda text, _where, folder: _image(text, folder), metavar="IMAGE",
    ),
    choice(
        "runtime", "--runtime", "By docker, podman or apptainer [what is there].", "ENGINE", ENGINES
    ),
    Option(
        "mounts", "--mount", "A folder of each host in it: SRC:DST[:ro] (repeatable).",
        (list,), lambda texts, _where, folder: _mounts(texts, folder),
        repeatable=True, metavar="SRC:DST[:ro]",
    ),
    Option(
        "gpus", "--gpus", "GPUs in it: all, none, or their numbers: 0,1 [all].",
        (str,), lambda word, where, _: _gpus(word, where), metavar="GPUS",
    ),
    Option(
        "registry_user", "--registry-user", "Login for the image's registry.",
        (str,), metavar="USER",
    ),
    Option(
        "registry_password", "--registry-password",
        "Where its password is: a file, or env:VARIABLE [env:SHANTY_REGISTRY_PASSWORD].",
        (str,), lambda text, _where, folder: registry_password(text, folder),
        metavar="FILE|env:NAME", completes="files",
    ),
    Option(
        "env", "-e --env", "A variable (repeatable).",
        (dict,), repeatable=True, metavar="KEY[=VALUE]", old="--set-env",
    ),
    Option(
        "env_file", "--env-file", "A file of KEY=VALUE lines.",
        kind=Path, repeatable=True, completes="files",
    ),
    switch("tf1", "--tf1", "For scripts that are written for TensorFlow 1."),
    Option(
        "workdir", "-C --workdir", "Where to run [here].",
        kind=Path, completes="folders",
    ),
    Option(
        "source", "--workspace", "Code from git or an archive instead.",
        metavar="URL|ARCHIVE", completes="files",
    ),
)  # fmt: skip
_LAST = (
    time("time_limit", "-t --time-limit", "End the run then: 90s, 15m, 2h."),
    number("retries", "--retries", "More attempts if a host or rank is lost [0].", 0, toml=(int,)),
    Option(
        "elastic", "--elastic", "When ranks are lost, go on with at least MIN [1].", (int,),
        least=1, kind=int, metavar="[=MIN]", bare="1",
    ),
    number("spares", "--spares", "Ranks that wait to replace lost ones [0].", 0, toml=(int,)),
    Option(
        "warm", "--warm", "Fork ranks with their frameworks imported [those of the script].",
        (bool, str, list), lambda given, where, _: _warm(given, where),
        metavar="[=MODULES]", bare=IMPORTS,
    ),
    time("start_timeout", "--start-timeout", "How long ranks may take to start [60s]."),
    Option(
        "on_stall", "--on-stall", "What to do when no rank makes progress [warn].",
        (str,), lambda word, where, _: setting("on_stall", word, where), may_be_empty=True,
        metavar="warn|stop", choices=CHOICES["on_stall"],
    ),
    Option(
        "stall_after", "--stall-after", "Report ranks without progress then, or off [60s].",
        _TIME, lambda text, *_: stall_after(str(text)), metavar="TIME",
    ),
    Option(
        "alone", "--alone", "When ranks each train by themselves [warn].",
        (str,), lambda word, where, _: setting("alone", word, where), may_be_empty=True,
        metavar="warn|stop|ok", choices=CHOICES["alone"],
    ),
    Option(
        "inputs", "--inputs", "A folder that each rank finds as $SHANTY_INPUTS.",
        (str,), _folder, may_be_empty=True,
        metavar="FOLDER", completes="files",
    ),
    Option(
        "name", "--name", "A name to find the run by.", (str,), metavar="NAME",
    ),
    Option(
        "tags", "--tag", "A tag (repeatable).",
        (list,), repeatable=True, metavar="TAG", completes="tags",
    ),
    Option(
        "log_to", "--log-to", "What shanty.log says, also to: tensorboard, mlflow, wandb.",
        (str, list), lambda given, where, _: _log_to(given, where), may_be_empty=True,
        metavar="PLACE,…", choices=SINKS,
    ),
    switch("no_tty", "--no-tty", "Standard output of programs: a pipe, not a terminal."),
    switch("profile", "--profile", "A trace of all ranks, for Perfetto: artifacts/profile.json."),
    Option(
        "debug_rank", "--debug", "That rank's pdb, on this terminal.",
        kind=int, metavar="RANK",
    ),
)  # fmt: skip
_OF_TARGETS = {each.field: each for target in BUILTIN for each in target.options}
OPTIONS = {each.field: each for each in (*_FIRST, *_OF_TARGETS.values(), *_LAST)}


def _groups_of_targets() -> dict[str, tuple[str, ...]]:
    """Return the titles of targets and their options; one of several targets is in the first."""
    found: dict[str, tuple[str, ...]] = {}
    seen: set[str] = set()
    for target in BUILTIN:
        names = tuple(each.field for each in target.options if each.field not in seen)
        seen.update(names)
        if names:
            found[target.title] = names
    return found


# The options of `run` in its help.
GROUPS = {
    "Ranks": (
        "ranks", "ranks_per_host", "cpus_per_rank", "memory_per_rank", "gpus_per_rank",
        "oversubscribe",
    ),
    "Where": ("on", "hostfile", "machines", "priority", "share", "workdir", "source"),
    **_groups_of_targets(),
    "MPI": ("mpi", "raw"),
    "Containers": (
        "image", "master_image", "runtime", "mounts", "gpus", "registry_user",
        "registry_password",
    ),
    "Environment": ("python", "packages", "env", "env_file", "inputs", "tf1"),
    "When it fails, or hangs": (
        "time_limit", "retries", "elastic", "spares", "warm", "start_timeout", "on_stall",
        "stall_after", "alone", "debug_rank",
    ),
    "Name and output": (
        "name", "tags", "log_to", "no_tty", "profile", "dry_run", "detach", "quiet", "as_json",
    ),
}  # fmt: skip
# Those that `shanty run --help` shows; --help-all shows all.
COMMON = (
    "ranks", "ranks_per_host", "cpus_per_rank", "on", "hostfile", "machines", "image", "mpi",
    "python", "packages", "env", "time_limit", "retries", "elastic", "stall_after", "name",
    "dry_run", "detach", "quiet", "as_json",
)  # fmt: skip
KEYS = {each.key: each for each in OPTIONS.values() if each.toml}  # those of shanty.toml


def bare(flag: str) -> str:
    """Return the value that an option stands for without one, as it was typed; "" for none."""
    return next((each.bare for each in _LAST if each.bare and flag == each.flag), "")


def find(name: str) -> Option | None:
    """Return the option of that name; an unknown name is looked up in other packages' targets."""
    pair = None if name in OPTIONS else option_of(name)
    return pair[1] if pair else OPTIONS.get(name)


def refuse_unknown(names: Iterable[str], more: Iterable[str] = ()) -> None:
    """Raise UsageError for a name that no option in Python has; `more` are known as well."""
    for name in names:
        if name in more:
            continue
        name = current_name(name)
        if name in _NOT_IN_PYTHON or find(name) is None:
            fields = {*OPTIONS, *more}.union(*(each.fields for each in every()))
            known = sorted(fields.difference(_NOT_IN_PYTHON))
            fix = nearest(name, known, "the documentation has all, under Python, Options")
            raise UsageError(f"unknown option {name!r}", fix=fix)


def typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Make values of a job of what click has parsed; None where nothing was typed."""
    given: dict[str, Any] = {}
    for name, value in values.items():
        option = find(name)
        assert option is not None  # the parser knows it
        if value is False or (option.may_be_empty and value == ""):
            value = None
        if option.read is not None and value is not None:
            value = option.read(value, option.flag, Path.cwd())
        given[name] = value
    return given


def defaults(workspace: Path) -> dict[str, Any]:
    """Read the `[run]` table of the workspace's shanty.toml, checked; empty without one."""
    return tables(workspace).get("run", {})


def tables(workspace: Path) -> dict[str, dict[str, Any]]:
    """Read all tables of the workspace's shanty.toml, checked: `[run]`, and those of targets.

    The values of a target's table are by the fields of its options.
    """
    path = workspace / WORKSPACE_FILE
    found: dict[str, dict[str, Any]] = {}
    for name, table in read_toml(path).items():
        target = declared(name) if name != "run" else None
        is_key = name in KEYS and not isinstance(table, dict)
        if is_key or (name != "run" and not (target and target.options)):
            where = place(path, path.read_text(encoding="utf-8"), name)
            likely = [] if name in KEYS else ["run"]
            fix = nearest(name, likely, "put it under [run]")
            raise UsageError(f"{where}: unknown {name!r}", "shanty reads the table [run]", fix)
        if not isinstance(table, dict):
            raise UsageError(f"{name} in {path} must be a table", fix=f"write it as [{name}]")
        found[name] = _read(table, name, target.keys if target else KEYS, path)
    return found


def _read(
    table: Mapping[str, Any], name: str, known: Mapping[str, Option], path: Path
) -> dict[str, Any]:
    """Return the values of one table, by their fields."""
    found: dict[str, Any] = {}
    for given, value in table.items():
        key = given if given in known else current_key(given, name, known, str(path))
        if key not in known:
            where = place(path, path.read_text(encoding="utf-8"), key)
            fix = nearest(key, known, f"known are {', '.join(known)}")
            raise UsageError(f"{where}: unknown key {key!r} in [{name}]", fix=fix)
        option = known[key]
        if key != given and key in table:
            raise UsageError(f"{given} in [{name}] of {path} is {key}, which stands there, too")
        if type(value) not in option.toml:  # an int is a bool's parent, hence no isinstance
            names = " or ".join(KINDS[kind] for kind in option.toml)
            raise UsageError(f"{key} in [{name}] of {path} must be {names}, not {value!r}")
        for item in value if isinstance(value, list) else ():
            if not isinstance(item, str):
                raise UsageError(f"{key} in [{name}] of {path} must be texts, not {item!r}")
        if option.read is not None:
            found[option.field] = option.read(value, f"{key} in {path}", path.parent)
        else:
            found[option.field] = value
    return found


def check(values: Mapping[str, Any]) -> None:
    """Raise UsageError for values that are out of bounds, typed or from shanty.toml."""
    for name, value in values.items():
        each = find(name) if value is not None else None
        if each is not None and each.least is not None and value < each.least:
            what = name.replace("_", " ")
            raise UsageError(f"{what} must be at least {each.least}, not {value}")
    if (values.get("ranks") or 0) > _MOST:
        raise UsageError(f"{values['ranks']} ranks are too many", fix=f"at most {_MOST}")
    if values.get("time_limit") is not None and values["time_limit"] <= 0:
        raise UsageError("the time limit must be more than 0", fix="leave it out for none")
    run_name = values.get("name")
    plain = re.sub("[._-]", "", run_name or "x")
    if run_name is not None and not (
        plain.isalnum() and run_name[0].isalnum() and run_name != "last"
    ):
        raise UsageError(
            f"{run_name!r} cannot be the name of a run",
            "a name has letters, digits, '.', '_' and '-', begins with one of the first two, "
            "and is not `last`",
        )
    if not all(values.get("tags") or ()):
        raise UsageError("a tag must not be empty")
