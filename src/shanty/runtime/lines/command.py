"""Rewrites the command line of a rank.

`run.py` goes into a command line of Python: `python -u x.py` becomes `python -u run.py x.py`. A
program that no longer exists becomes a Python module that replaces it: XGBoost had a program,
`xgboost train.conf key=value`, up to version 3.1.

It also knows the launchers of frameworks by their command lines, `torchrun …` and `python -m
torch.distributed.run …` alike.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

LOCAL_RANK = "@SHANTY_LOCAL_RANK@"  # in a rank's words: replaced by its local rank
INTERPRETER = "SHANTY_LINE_PYTHON"  # the variable with the Python that a launcher was started by
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_LETTERS = frozenset("bBdEiIOPqRsSuvx")
_MODULES = {"xgboost": "shanty.compat.xgboost_program"}
_LAUNCHERS = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate-launch",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
# The launchers that know no MPI, by the names of their shims.
NO_MPI = (*dict.fromkeys(_LAUNCHERS.values()),)
_NODES = ("--nnodes", "--num_machines", "--num-machines")
SHELLS = ("sh", "bash", "dash", "ash", "ksh", "zsh")
# The programs that may start a container in a rank; those with a shim, and others.
ENGINES = (
    "docker", "podman", "nerdctl", "docker-compose", "podman-compose", "apptainer", "singularity",
    "enroot", "kubectl", "oc", "sudo", "doas",
)  # fmt: skip
WRAPPERS = ("env", "nice", "nohup", "time", "timeout", "stdbuf", "numactl", "taskset")
STARTERS = (*ENGINES, *SHELLS, *WRAPPERS, "ssh")
_INPUT = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_MARK = "\0"


def is_python(program: str) -> bool:
    """Returns True for the file name of a Python interpreter: python, python3, python3.12."""
    name = os.path.basename(program)
    for known in ("python", "pypy"):
        if name.startswith(known):
            return name[len(known) :].replace(".", "").isdigit() or name == known
    return False


def insert_runner(argv: list[str], runner: str) -> list[str]:
    """Returns `argv` with `runner` before the script, `-m` or `-c` of a Python command line.

    A line that is not Python, or has nothing to run (`python --version`, a prompt, a script on
    standard input), is returned as it is.
    """
    if not argv or not is_python(argv[0]):
        return argv
    index = 1
    while index < len(argv):
        word = argv[index]
        if word in _WITH_VALUE:
            index += 2
        elif word.startswith(("-W", "-X", "--check-hash-based-pycs=")):
            index += 1
        elif not word.startswith("-"):
            return [*argv[:index], runner, *argv[index:]]
        elif word == "-" or word.startswith("--"):
            return argv
        else:
            letters = word[1:]
            flags = letters[: next((i for i, c in enumerate(letters) if c in "mc"), len(letters))]
            if not set(flags) <= _LETTERS:
                return argv
            rest = letters[len(flags) :]
            if rest:  # -m NAME, -mNAME, -c CODE; flags may stand before it in the same word
                kept = ["-" + flags] if flags else []
                value = [rest[1:]] if rest[1:] else []
                return [*argv[:index], *kept, runner, "-" + rest[0], *value, *argv[index + 1 :]]
            index += 1
    return argv


def reads_its_script(argv: list[str]) -> bool:
    """Returns True for a Python, or a shell, that reads its script from standard input."""
    words = argv[1:]
    if is_python(argv[0]):
        while words and words[0].startswith("-") and words[0] != "-":
            if words[0] not in _WITH_VALUE and not set(words[0][1:]) <= _LETTERS:
                return words[0].startswith(("-W", "-X")) and reads_its_script([argv[0], *words[1:]])
            words = words[2:] if words[0] in _WITH_VALUE else words[1:]
        return not words or words[0] in ("-", *_INPUT)
    if os.path.basename(argv[0]) not in SHELLS:
        return False
    while words and words[0].startswith("-") and "c" not in words[0] and words[0] != "-s":
        words = words[1:]
    return not words or words[0] in ("-s", *_INPUT)


def launcher_of(argv: list[str]) -> tuple[str, list[str], str] | None:
    """Returns the launcher of processes that a command line starts; None for other programs.

    The name is that of its shim. It is followed by the words of the launcher's own line, and by the
    interpreter or the launcher's path with which the command line begins.
    """
    words = argv
    if not argv:
        return None
    if is_python(argv[0]):
        marked = insert_runner(argv, _MARK)
        if marked is argv:
            return None
        words = marked[marked.index(_MARK) + 1 :]
        if words[0] == "-m" and len(words) > 1:
            words = [_LAUNCHERS.get(words[1], ""), *words[2:]]
        elif words[0] == "-c":
            return None
    name, rest = os.path.basename(words[0]), words[1:]
    if name == "accelerate":  # its other subcommands start no ranks
        return ("accelerate-launch", rest[1:], argv[0]) if rest[:1] == ["launch"] else None
    return (name, rest, argv[0]) if name in NO_MPI else None


def starts_a_world(words: list[str], environ: Mapping[str, str]) -> bool:
    """Returns True where a launcher's line, started by each of the ranks, makes a world in each.

    It does not in a run of one rank, nor where each rank starts one node of as many as there are
    ranks. `shims/refuse.sh` has the same rule.
    """
    world = environ.get("WORLD_SIZE", "1")
    nodes, before = "1", ""
    for word in words:
        name, equals, value = word.partition("=")
        if name in _NODES and equals:
            nodes = value
        elif before in _NODES:
            nodes = word
        before = word
    return world != "1" and nodes != world


def engine_shims(shims: str, path: str) -> list[str]:
    """Returns the folders with the shims of the engines on `path`, one for each engine.

    So `command -v sudo` finds nothing where sudo is not installed.
    """
    folders = path.split(os.pathsep)
    there = (n for n in ENGINES if any(os.access(f"{folder}/{n}", os.X_OK) for folder in folders))
    return [f"{shims}/engines/{name}" for name in there]


def argv_of_this_process() -> list[str]:
    """Returns how this process was started; empty where that is unknown."""
    try:
        with open("/proc/self/cmdline") as file:
            return file.read().split("\0")[:-1]
    except OSError:
        return []


def is_shim(path: str) -> bool:
    """Returns True for a file that is a shim of a run, not the launcher itself."""
    try:
        with open(path, "rb") as file:
            return b" rank.shim " in file.read(4096)
    except OSError:
        return False


def stand_in(argv: list[str], python: str) -> list[str]:
    """Returns `argv`, or a line for `python` with the module for a program that is missing."""
    module = _MODULES.get(os.path.basename(argv[0]))
    if module is None:
        return argv
    import shutil

    if shutil.which(argv[0]) is not None:
        return argv
    return [python, "-m", module, *argv[1:]]


def become_next(name: str, words: list[str], own: str) -> None:
    """Becomes the program `name` on PATH outside of the folder `own`, if it is found."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        file = os.path.join(folder, name)
        if os.path.abspath(folder) != os.path.abspath(own) and os.access(file, os.X_OK):
            try:
                os.execv(file, [name, *words])
            except OSError as error:  # it does not name the file, whose interpreter may be missing
                raise OSError(error.errno, error.strerror, file) from None
