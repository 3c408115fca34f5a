"""Declares the options of verbs: those of a run, each once, and those that several verbs share.

An option of a run is a field of JobSpec and one entry of `OPTIONS`: from it come the option of
`shanty run`, the key of shanty.toml, and the checks of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from shanty.cli.context import Errors
from shanty.launch.settings import CHOICES, KUBERNETES_KEYS, SLURM_KEYS, choice, read_toml
from shanty.launch.user_path import user_path
from shanty.runtime.errors import UsageError
from shanty.runtime.unknown import nearest, place

WORKSPACE_FILE = "shanty.toml"
ENVIRONMENTS = ("check", "sync", "none")
OPERATORS = ("mpijob", "trainjob")
SINKS = ("tensorboard", "mlflow", "wandb")  # a test holds them to `_sinks.PACKAGES`
ENGINES = ("docker", "podman", "apptainer")  # a test holds them to `engines.ENGINES`
KINDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "a table",
}
_TIME = (int, float, str)
_SHORTEST_STALL, _LONGEST_STALL = 1.0, 30 * 86400.0  # seconds
_NUMBER = r"\d{1,18}(?:\.\d+)?"  # with hundreds of digits there is no such number
_MOST = 100_000  # ranks; more is a slip of the finger

# -------------------------------------------------------------------- shared by several verbs


def as_json(help: str) -> Callable[[Any], Any]:
    """Make the option --json, which turns errors into JSON, too."""

    def remember(_ctx: click.Context, _param: click.Parameter, wanted: bool) -> bool:
        Errors.as_json = Errors.as_json or wanted
        return wanted

    return click.option(
        "--json", "as_json", is_flag=True, is_eager=True, callback=remember, help=help
    )


def completed(kind: str) -> Callable[[click.Context, click.Parameter, str], Any]:
    """Return what completes words as the function `kind` of `completion` does, for shells."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        from shanty.cli import completion

        return getattr(completion, kind)(ctx, param, incomplete)

    return complete


# Its id, the start of it, its name, or last.
run_argument = click.argument(
    "run", metavar="[RUN]", default="last", shell_complete=completed("runs")
)
json_option = as_json("As JSON, for programs.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Only the ranks' own output.")
detach_option = click.option("-d", "--detach", is_flag=True, help="Start it and come back at once.")


def _complete(*words: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    return lambda _ctx, _param, incomplete: [w for w in words if w.startswith(incomplete)]


# --------------------------------------------------------------------- values as people write them


def seconds(text: str) -> float:
    """Read a time: 90, 90s, 15m, 2h, 1h30m, 1:30:00."""
    clock = re.fullmatch(r"(?:(\d{1,9}):)?(\d{1,9}):(\d{2})", text)
    if clock:
        hours, minutes, rest = (int(part or 0) for part in clock.groups())
        return hours * 3600.0 + minutes * 60 + rest
    units = re.fullmatch(
        "".join(rf"(?:({_NUMBER}){unit})?" for unit in ("d", "h", "m", "s?")), text.strip()
    )
    if not text.strip() or not units:
        raise UsageError(f"{text!r} is no time", fix="write 90, 90s, 15m, 2h, 1h30m or 1:30:00")
    parts = [float(part or 0) for part in units.groups()]
    return parts[0] * 86400 + parts[1] * 3600 + parts[2] * 60 + parts[3]


def stall_after(text: str) -> float:
    """Read the time of --stall-after; 0 or "off": never."""
    wanted = 0.0 if text.strip().lower() in ("off", "0") else seconds(text)
    if wanted and not _SHORTEST_STALL <= wanted <= _LONGEST_STALL:
        raise UsageError(
            f"a stall cannot be told after {text}",
            "ranks need a moment to get to each other",
            "write a time from 1s to 30d, or off",
        )
    return wanted


def size(text: str) -> int:
    """Read a number of bytes: 500000000, 800M, 4G, 4GiB, 1.5T; all are powers of 1024."""
    found = re.fullmatch(rf"({_NUMBER})\s*([KMGTP]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise UsageError(f"{text!r} is no size", fix="write 800M, 4G or 1.5T")
    return int(float(found[1]) * 1024 ** " KMGTP".index(found[2].upper() or " "))


def _environment(word: str, _where: str, _folder: Path) -> str:
    if word in ENVIRONMENTS:
        return word
    fix = f"a variable is set with -e {word}" if "=" in word else ""
    raise UsageError(f"--env takes check, sync or none, not {word!r}", fix=fix)


def _word(word: str, where: str, words: Collection[str]) -> str:
    if word not in words:
        raise UsageError(f"{where} takes {', '.join(words)}, not {word!r}")
    return word


def _log_to(given: str | Sequence[str], where: str) -> tuple[str, ...]:
    words = given.split(",") if isinstance(given, str) else given
    names = [word.strip() for word in words if word.strip()]
    return tuple(dict.fromkeys(_word(name, where, SINKS) for name in names))


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
        raise UsageError(f"there is no folder {path}", f"{where} names it")
    return str(path)


def _patch(path: Path) -> str:
    from shanty.launch.kubernetes.objects import read_patch

    return read_patch(path)


def registry_password(text: str, folder: Path) -> str:
    """Read where a password is; the password itself would be seen by all users of the machine."""
    if re.fullmatch(r"env:\w+", text):
        return text
    path = folder / user_path(text)
    if not path.is_file():
        raise UsageError(
            "--registry-password takes no password",
            "others could read it on the command line; it names a file, or env:VARIABLE",
            "put it into a file of your own, or into the variable SHANTY_REGISTRY_PASSWORD",
        )
    return str(path)


# --------------------------------------------------------------------------- options of a run


@dataclass(frozen=True)
class Option:
    """Declares one option of a run.

    `flags` and `help` are for the command line, `click` is what else click has to know. `field` is
    the field of JobSpec, and the key in shanty.toml where that takes it, with a value of one of
    the types `toml`. `read` makes the field's value of what was written, of where that was (for
    errors) and of the folder of relative paths there. A number is at least `least`. An empty text
    that was typed stands for nothing if `may_be_empty`.
    """

    field: str
    flags: str
    help: str
    toml: tuple[type, ...] = ()
    read: Callable[[Any, str, Path], Any] | None = None
    least: int | None = None
    may_be_empty: bool = False
    click: Mapping[str, Any] | None = None

    def click_option(self, **changes: Any) -> Callable[[Any], Any]:
        """Make click's option of it, with another `help` or other `flags` where a verb wants."""
        flags = changes.pop("flags", self.flags).split()
        return click.option(
            *flags, self.field, **{"help": self.help, **(self.click or {}), **changes}
        )


def _number(name: str, flags: str, help: str, least: int | None = 1, toml: Any = ()) -> Option:
    return Option(name, flags, help, toml, least=least, click={"type": int, "metavar": "N"})


def _time(name: str, flags: str, help: str) -> Option:
    def read(value: Any, _where: str, _folder: Path) -> float:
        return seconds(str(value))

    return Option(name, flags, help, _TIME, read, may_be_empty=True, click={"metavar": "TIME"})


def _text(name: str, flags: str, help: str, what: str) -> Option:
    return Option(name, flags, help, (str,), may_be_empty=True, click={"metavar": what})


def _texts(name: str, flags: str, help: str, what: str) -> Option:
    def read(texts: Any, _where: str, _folder: Path) -> tuple[str, ...]:
        return tuple(texts)

    more = {"multiple": True, "metavar": what}
    return Option(name, flags, f"{help[:-1]} (repeatable).", (list,), read, click=more)


_ALL = (
    _number("ranks", "-n -np --ranks", "Ranks in all [one a slot].", toml=(int,)),
    _number("ranks_per_host", "--ranks-per-host --ppn", "Ranks on each host.", toml=(int,)),
    _number(
        "cpus_per_rank", "-c --cpus-per-rank", "Cores to bind each rank to [no binding].",
        toml=(int,),
    ),
    Option(
        "memory_per_rank", "--memory-per-rank",
        "What each rank needs, as 4G; refused where it is not there.",
        (int, str), lambda text, *_: size(str(text)), 1, True, {"metavar": "SIZE"},
    ),
    _number("gpus_per_rank", "--gpus-per-rank", "The same of GPUs.", 0),
    Option(
        "oversubscribe", "--oversubscribe", "Allow more ranks than cores.",
        (bool,), click={"is_flag": True},
    ),
    Option(
        "on", "--on", "Where: a,b:4,user@10.0.0.3, a group, slurm or k8s [here].",
        (str,), click={"metavar": "HOSTS", "shell_complete": completed("hosts")},
    ),
    Option(
        "hostfile", "--hostfile", "A file that names the hosts.",
        (str,), lambda path, _where, folder: str(folder / path),
        click={"type": Path, "shell_complete": completed("files")},
    ),
    Option(
        "machines", "--machines", "Where: machines of these types, once they are free.",
        (str,), lambda text, where, _: _machines(text, where),
        click={"metavar": "TYPE[:COUNT],…", "shell_complete": completed("machine_types")},
    ),
    _number("priority", "--priority", "Higher is served first [0].", None, toml=(int,)),
    Option(
        "share", "--share", "Machines may be those of runs that share, too.",
        (bool,), click={"is_flag": True},
    ),
    Option(
        "mpi", "--mpi", "openmpi (default), openmpi4, mpich, intel, a prefix, or image.",
        (str,), click={"metavar": "MPI", "shell_complete": completed("mpis")},
    ),
    Option(
        "python", "--python", "Interpreter or virtual environment.",
        (str,), click={"metavar": "PATH", "shell_complete": completed("files")},
    ),
    Option(
        "environment", "--env",
        "Hosts' Python packages: compared, made the same, or as they are [check, else sync].",
        (str,), _environment,
        click={"metavar": "check|sync|none", "shell_complete": _complete(*ENVIRONMENTS)},
    ),
    Option(
        "image", "--image", "Run in a container of this image on each host.",
        (str,), lambda text, _where, folder: _image(text, folder), click={"metavar": "IMAGE"},
    ),
    Option(
        "master_image", "--master-image", "Another one for the lead host.",
        (str,), lambda text, _where, folder: _image(text, folder), click={"metavar": "IMAGE"},
    ),
    Option(
        "runtime", "--runtime", "By docker, podman or apptainer [what is there].",
        (str,), lambda word, where, _: _word(word, where, ENGINES),
        click={"metavar": "ENGINE", "shell_complete": _complete(*ENGINES)},
    ),
    Option(
        "mounts", "--mount", "A folder of each host in it: SRC:DST[:ro] (repeatable).",
        (list,), lambda texts, _where, folder: _mounts(texts, folder),
        click={"multiple": True, "metavar": "SRC:DST[:ro]"},
    ),
    Option(
        "gpus", "--gpus", "GPUs in it: all, none, or their numbers: 0,1 [all].",
        (str,), lambda word, where, _: _gpus(word, where), click={"metavar": "GPUS"},
    ),
    Option(
        "registry_user", "--registry-user", "Login for the image's registry.",
        (str,), click={"metavar": "USER"},
    ),
    Option(
        "registry_password", "--registry-password",
        "Where its password is: a file, or env:VARIABLE [env:SHANTY_REGISTRY_PASSWORD].",
        (str,), lambda text, _where, folder: registry_password(text, folder),
        click={"metavar": "FILE|env:NAME", "shell_complete": completed("files")},
    ),
    Option(
        "env", "-e --set-env", "A variable (repeatable).",
        (dict,), click={"multiple": True, "metavar": "KEY[=VALUE]"},
    ),
    Option(
        "env_file", "--env-file", "A file of KEY=VALUE lines.",
        click={"type": Path, "multiple": True, "shell_complete": completed("files")},
    ),
    Option(
        "tf1", "--tf1", "For scripts that are written for TensorFlow 1.",
        (bool,), click={"is_flag": True},
    ),
    Option(
        "workdir", "-C --workdir", "Where to run [here].",
        click={"type": Path, "shell_complete": completed("folders")},
    ),
    Option(
        "source", "--workspace", "Code from git or an archive instead.",
        click={"metavar": "URL|ARCHIVE", "shell_complete": completed("files")},
    ),
    _text("partition", "--partition", "The partition of Slurm.", "NAME"),
    _text("account", "--account", "The account that pays.", "NAME"),
    _text("qos", "--qos", "The quality of service.", "NAME"),
    _number("nodes", "--nodes", "How many nodes [as many as the ranks need].", toml=(int,)),
    _text("constraint", "--constraint", "Features that the nodes must have.", "FEATURES"),
    _text("reservation", "--reservation", "A reservation of nodes.", "NAME"),
    Option(
        "exclusive", "--exclusive", "Whole nodes, with nobody else on them.",
        (bool,), click={"is_flag": True},
    ),
    Option(
        "requeue", "--requeue", "Queue it again when it was preempted, or a node failed.",
        (bool,), click={"is_flag": True},
    ),
    _text("slurm", "--slurm", "More options of sbatch, in one text.", '"OPTIONS"'),
    _number("uid", "--uid", "The user that the pods' processes have.", 0, toml=(int,)),
    _texts("node_selector", "--node-selector", "A label that nodes must have.", "KEY=VALUE"),
    _texts("tolerations", "--toleration", "A taint that pods tolerate.", "KEY[=VALUE][:EFFECT]"),
    _text("service_account", "--service-account", "The pods' service account.", "NAME"),
    _text("priority_class", "--priority-class", "The pods' priority class.", "NAME"),
    _texts("pull_secrets", "--pull-secret", "A Secret to pull the image with.", "NAME"),
    _texts("labels", "--k8s-label", "A label for the Job and its pods.", "KEY=VALUE"),
    _text("queue", "--queue", "A queue of Kueue's.", "NAME"),
    Option(
        "k8s_patch", "--k8s-patch", "A file that changes the Job: YAML, merged.",
        (str,), lambda path, _where, folder: _patch(folder / user_path(str(path))),
        click={"metavar": "FILE", "shell_complete": completed("files")},
    ),
    Option(
        "operator", "--as", "By Kubeflow's operator: mpijob or trainjob.",
        (str,), lambda word, where, _: _word(word, where, OPERATORS),
        click={"metavar": "KIND", "shell_complete": _complete(*OPERATORS)},
    ),
    _time("schedule_timeout", "--schedule-timeout", "In which all pods have to run [5m]."),
    Option(
        "keep", "--keep", "Leave the pods there after the end.", (bool,), click={"is_flag": True},
    ),
    _time("time_limit", "-t --time-limit", "End the run then: 90s, 15m, 2h."),
    _number("retries", "--retries", "More attempts if a host is lost [0].", 0, toml=(int,)),
    _time("start_timeout", "--start-timeout", "How long ranks may take to start [60s]."),
    Option(
        "on_stall", "--on-stall", "When no rank makes progress [warn].",
        (str,), lambda word, where, _: choice("on_stall", word, where), may_be_empty=True,
        click={"metavar": "warn|stop", "shell_complete": _complete(*CHOICES["on_stall"])},
    ),
    Option(
        "stall_after", "--stall-after", "How long that takes, or off [60s].",
        _TIME, lambda text, *_: stall_after(str(text)), click={"metavar": "TIME"},
    ),
    Option(
        "alone", "--alone", "When ranks each train by themselves [warn].",
        (str,), lambda word, where, _: choice("alone", word, where), may_be_empty=True,
        click={"metavar": "warn|stop|ok", "shell_complete": _complete(*CHOICES["alone"])},
    ),
    Option(
        "inputs", "--inputs", "A folder that each rank finds as $SHANTY_INPUTS.",
        (str,), _folder, may_be_empty=True,
        click={"metavar": "FOLDER", "shell_complete": completed("files")},
    ),
    Option(
        "name", "--name", "A name to find the run by.", (str,), click={"metavar": "NAME"},
    ),
    Option(
        "tags", "--tag", "A tag (repeatable).",
        (list,), click={"multiple": True, "metavar": "TAG", "shell_complete": completed("tags")},
    ),
    Option(
        "log_to", "--log-to", "What shanty.log says, also to: tensorboard, mlflow, wandb.",
        (str, list), lambda given, where, _: _log_to(given, where), may_be_empty=True,
        click={"metavar": "PLACE,…", "shell_complete": _complete(*SINKS)},
    ),
    Option(
        "profile", "--profile", "A trace of all ranks, for Perfetto: artifacts/profile.json.",
        (bool,), click={"is_flag": True},
    ),
    Option(
        "debug_rank", "--debug", "That rank's pdb, on this terminal.",
        click={"type": int, "metavar": "RANK"},
    ),
)  # fmt: skip
OPTIONS = {each.field: each for each in _ALL}
OF_SLURM = tuple(SLURM_KEYS)
# The options of `run` in its help.
GROUPS = {
    "Ranks": (
        "ranks", "ranks_per_host", "cpus_per_rank", "memory_per_rank", "gpus_per_rank",
        "oversubscribe",
    ),
    "Where": ("on", "hostfile", "machines", "priority", "share", "workdir", "source"),
    "Slurm": OF_SLURM,
    "Kubernetes": (*KUBERNETES_KEYS, "manifest", "form"),
    "MPI": ("mpi", "raw"),
    "Containers": (
        "image", "master_image", "runtime", "mounts", "gpus", "registry_user",
        "registry_password",
    ),
    "Environment": ("python", "environment", "env", "env_file", "inputs", "tf1"),
    "When it fails, or hangs": (
        "time_limit", "retries", "start_timeout", "on_stall", "stall_after", "alone",
        "debug_rank",
    ),
    "Name and output": (
        "name", "tags", "log_to", "profile", "dry_run", "detach", "quiet", "as_json",
    ),
}  # fmt: skip
KEYS = {each.field: each for each in OPTIONS.values() if each.toml}  # those of shanty.toml


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command all options of a run, in the order of the table."""
    for each in reversed(OPTIONS.values()):
        command = each.click_option()(command)
    return command


def typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Make fields of JobSpec of what click has parsed; None where nothing was typed."""
    given: dict[str, Any] = {}
    for name, value in values.items():
        option = OPTIONS[name]
        if value is False or (option.may_be_empty and value == ""):
            value = None
        if option.read is not None and value is not None:
            value = option.read(value, option.flags.split()[-1], Path.cwd())
        given[name] = value
    return given


def defaults(workspace: Path) -> dict[str, Any]:
    """Read the `[run]` table of the workspace's shanty.toml, checked; empty without one."""
    path = workspace / WORKSPACE_FILE
    tables = read_toml(path)
    for name in set(tables) - {"run"}:
        where = place(path, path.read_text(encoding="utf-8"), name)
        fix = "put it under [run]" if name in KEYS else nearest(name, ["run"], "put it under [run]")
        raise UsageError(f"{where}: unknown {name!r}", "shanty reads the table [run]", fix)
    table: dict[str, Any] = tables.get("run", {})
    if not isinstance(table, dict):
        raise UsageError(f"run in {path} must be a table", fix="write it as [run]")
    for key, value in table.items():
        if key not in KEYS:
            where = place(path, path.read_text(encoding="utf-8"), key)
            fix = nearest(key, KEYS, f"known are {', '.join(KEYS)}")
            raise UsageError(f"{where}: unknown key {key!r} in [run]", fix=fix)
        option = KEYS[key]
        if type(value) not in option.toml:  # an int is a bool's parent, hence no isinstance
            names = " or ".join(KINDS[kind] for kind in option.toml)
            raise UsageError(f"{key} in [run] of {path} must be {names}, not {value!r}")
        for item in value if isinstance(value, list) else ():
            if not isinstance(item, str):
                raise UsageError(f"{key} in [run] of {path} must be texts, not {item!r}")
        if option.read is not None:
            table[key] = option.read(value, f"{key} in {path}", workspace)
    return table


def check(values: Mapping[str, Any]) -> None:
    """Raise UsageError for values that are out of bounds, typed or from shanty.toml."""
    for each in OPTIONS.values():
        value = values.get(each.field)
        if each.least is not None and value is not None and value < each.least:
            what = each.field.replace("_", " ")
            raise UsageError(f"{what} must be at least {each.least}, not {value}")
    if (values.get("ranks") or 0) > _MOST:
        raise UsageError(f"{values['ranks']} ranks are too many", fix=f"at most {_MOST}")
    if values.get("time_limit") is not None and values["time_limit"] <= 0:
        raise UsageError("the time limit must be more than 0", fix="leave it out for none")
    name = values.get("name")
    if name is not None and not _is_name(name):
        raise UsageError(
            f"{name!r} cannot be the name of a run",
            "a name has letters, digits, '.', '_' and '-', begins with one of the first two, "
            "and is not `last`",
        )
    if not all(values.get("tags") or ()):
        raise UsageError("a tag must not be empty")


def _is_name(name: str) -> bool:
    plain = name.replace(".", "").replace("_", "").replace("-", "")
    return plain.isalnum() and name[0].isalnum() and name != "last"
