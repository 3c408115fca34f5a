"""Detects lines that start a container in each rank: `docker run IMAGE python x.py`.

A container has an environment and files of its own. Where it gets nothing of the launcher, MPI in
it is rank 0 of 1, so that N ranks are N worlds that all end well. Such a line is refused in a run
of several ranks, with the line to use instead. `--alone ok` permits it.

A container that docker or podman starts is not a child of its rank. It gets a label with the run,
by which the node agent finds and ends it.

The files in `rank/shims/engines` pass such lines to `rank/container_line.py`.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from shanty.runtime.lines.command import SHELLS, WRAPPERS
from shanty.runtime.lines.leading_options import Options, split, ssh_takes_value

RANK_LABEL = "shanty.rank"  # of a container: the folder of the run whose rank has started it
REMOVED = "shanty.rank.rm"  # of a container that is removed when it ends (`--rm`)
CODE = 2  # the exit code of a rank whose line is refused
_LABELLED = ("docker", "podman", "nerdctl")
_SHARING = ("apptainer", "singularity")  # which pass everything on, unless an option forbids it
_VERBS = {
    **dict.fromkeys(_LABELLED, ("run", "exec", "start")),
    **dict.fromkeys(("docker-compose", "podman-compose"), ("run", "exec", "up")),
    **dict.fromkeys(_SHARING, ("exec", "run", "shell")),
    **dict.fromkeys(("kubectl", "oc"), ("run", "exec")),
    "enroot": ("start",),
    "ssh": (),  # not a container, but as separate
}
_GROUPS = ("container", "compose")
_AS_ROOT = ("sudo", "doas")
BEFORE = (*_AS_ROOT, *WRAPPERS)  # what may stand before the engine


def _set(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


# Of the engines' own options, those with a value.
_VALUED = _set(
    "-H --host -c --context --config -l --log-level --tlscacert --tlscert --tlskey --connection "
    "--url --identity --root --runroot --storage-driver --storage-opt --runtime --runtime-flag "
    "--tmpdir --conmon --cgroup-manager --module --namespace -n --kubeconfig -s --server -a "
    "--address --snapshotter --data-root -f --file -p --project-name --project-directory --profile "
    "--env-file"
)
# Of the options of `run` and `exec`, those without; all others have a value.
_SWITCHES = _set(
    "--rm --rmi --detach --interactive --tty --init --privileged --read-only --publish-all "
    "--no-healthcheck --oom-kill-disable --sig-proxy --disable-content-trust --quiet --env-host "
    "--no-hosts --no-hostname --replace --http-proxy --tls-verify --passwd --attach-stdin "
    "--leave-stdin-open --stdin --use-aliases --service-ports --no-deps --build --help "
    "-d -i -t -q -P -T -h"
)
_VALUED_SHARING = _set(
    "-B --bind -H --home -W --workdir -S --scratch -o --overlay --env --env-file --pwd --cwd "
    "--network --network-args --dns --hostname --security --apply-cgroups --add-caps --drop-caps "
    "--app --mount --fusemount --blkio-weight --cpus --memory --pids-limit --docker-host"
)
# Variables by which a program may learn which rank it is.
_TELLING = re.compile(
    r"(PMI|OMPI|PRTE|RANK$|WORLD_SIZE$|LOCAL_RANK$|SLURM_PROCID$|TF_CONFIG$)|.*\*$"
)


class Line(NamedTuple):
    """A line that starts something in a container.

    In `words`, `at` is the index of the engine and `verb` that of its verb. `options` are the
    verb's, each with its value, and `rest` begins with the image.
    """

    words: Sequence[str]
    at: int
    verb: int
    options: Options
    rest: Sequence[str]
    inner: bool = False  # of the text that a shell runs

    @property
    def engine(self) -> str:
        """The name of the engine."""
        return os.path.basename(self.words[self.at])

    @property
    def title(self) -> str:
        """The engine and its verb, as they were typed."""
        return " ".join((self.engine, *self.words[self.at + 1 : self.verb + 1][-1:]))

    @property
    def program(self) -> List[str]:
        """The words that start the engine, as the same user."""
        first = os.path.basename(self.words[0])
        return [first, "-n", self.words[self.at]] if first in _AS_ROOT else [self.words[self.at]]


def find(argv: Sequence[str]) -> Optional[Line]:
    """Returns a command line that starts a container; None for other lines."""
    name = os.path.basename(argv[0])
    if name in _VERBS:
        return _line(argv, 0)
    if name in BEFORE:
        at = _wrapped(argv)
        return _line(argv, at) if at else None
    if name in SHELLS:
        return _in_text(argv)
    return None


def _wrapped(argv: Sequence[str]) -> int:
    """Returns the index of the engine that `sudo` or the like starts; 0 for other programs."""
    for at, word in enumerate(argv[1:], 1):
        name = os.path.basename(word)
        if name in _VERBS:
            return at
        of_wrapper = name in BEFORE or word[:1].isdigit() or "=" in word
        if not (of_wrapper or word.startswith("-") or argv[at - 1].startswith("-")):
            return 0
    return 0


def _in_text(argv: Sequence[str]) -> Optional[Line]:
    """Returns the line in `sh -c TEXT` that bypasses the shims."""
    options = [at for at, word in enumerate(argv) if re.fullmatch(r"-[a-z]*c", word)]
    try:
        words = shlex.split(argv[options[0] + 1]) if options else []
    except (IndexError, ValueError):  # an open quote, which the shell reports
        return None
    for at, word in enumerate(words):
        hidden = os.sep in word or set(_AS_ROOT).intersection(words[max(0, at - 3) : at])
        if hidden and os.path.basename(word) in _VERBS:
            found = _line(words[at:], 0)
            if found is not None:
                return found._replace(inner=True)
    return None


def _line(words: Sequence[str], at: int) -> Optional[Line]:
    engine = os.path.basename(words[at])
    if engine == "ssh":
        options, length = split(words[at + 1 :], ssh_takes_value)
        rest = words[at + 1 + length :]
        return Line(words, at, at, options, rest) if len(rest) > 1 else None
    verb = at + 1
    while verb < len(words) and (words[verb].startswith("-") or words[verb] in _GROUPS):
        verb += 2 if words[verb] in _VALUED else 1
    if verb >= len(words) or words[verb] not in _VERBS[engine]:
        return None
    valued = _VALUED_SHARING.__contains__ if engine in _SHARING else _takes_value
    options, length = split(words[verb + 1 :], valued)
    if any(name in ("--help", "-h") for name, _ in options):
        return None
    return Line(words, at, verb, options, words[verb + 1 + length :])


def _takes_value(name: str) -> bool:
    """Returns True where an option of `run` or `exec` has a value."""
    return name not in _SWITCHES


def is_apart(line: Line, environ: Mapping[str, str]) -> bool:
    """Returns True where a program in the container cannot know which rank it is."""
    for name, value in line.options:
        if name in ("--env-host", "--env-file"):
            return value == "false"
        sets = name == "--env" or (name == "-e" and line.engine not in _SHARING)
        if sets and _TELLING.match((value or "").partition("=")[0]):
            return False
    if line.engine not in _SHARING:
        return True
    prefix = line.engine.upper()
    given = f"{prefix}ENV_"
    if any(name.startswith(given) and _TELLING.match(name[len(given) :]) for name in environ):
        return False
    switched = (f"{prefix}_CLEANENV", f"{prefix}_CONTAINALL")
    if any(environ.get(name, "0") not in ("", "0", "false") for name in switched):
        return True
    return any(name in ("--cleanenv", "-e", "--containall", "-C") for name, _ in line.options)


def refusal(line: Line, environ: Mapping[str, str]) -> Optional[Tuple[str, str]]:
    """Returns why the line is refused in this rank, and what to do; None where it is allowed."""
    ranks = environ.get("WORLD_SIZE", "1")
    if ranks == "1" or not is_apart(line, environ) or _may_be_alone(environ):
        return None
    there = "the other host" if line.engine == "ssh" else "its container"
    why = f"cannot run `{line.title}` in each of {ranks} ranks: {there} gets nothing from the "
    why += "launcher, so MPI there would be rank 0 of 1"
    return why, f"{instead(line, ranks)}; if each rank is to work by itself there: --alone ok"


def advice(line: Line, ranks: int) -> str:
    """Returns what to do where a line that is allowed fails; "" for one rank."""
    if ranks < 2 or is_apart(line, {}):  # each rank is to work by itself then
        return ""
    needs = "MPI in a container needs everything that the launcher gives to its ranks: variables, "
    needs += "open files, /tmp, /dev/shm, the host's network and process ids"
    return f"{needs}; {instead(line, str(ranks))}"


def _may_be_alone(environ: Mapping[str, str]) -> bool:
    from pathlib import Path

    from shanty.runtime.plan import read_plan
    from shanty.runtime.rundir import RUN_DIR, RunDir

    plan = read_plan(RunDir(Path(environ.get(RUN_DIR, "/"))))
    return plan is not None and plan.limits.alone == "ok"


def instead(line: Line, ranks: str) -> str:
    """Returns the line by which shanty starts the ranks there."""
    engine, rest = line.engine, list(line.rest)
    if engine == "ssh":
        host = rest[0].rpartition("@")[2]
        return f"have shanty start the ranks there: {_shown('--on', host, '-n', ranks, *rest[1:])}"
    if engine in ("kubectl", "oc"):
        line_of_pods = _shown("--on", "k8s", "-n", ranks, *_after_dashes(rest))
        return f"have shanty start the pods: {line_of_pods}"
    named = rest.pop(0) if rest else ""
    verb = line.words[line.at + 1 : line.verb + 1]
    runs = engine in _LABELLED and verb[-1] == "run" and "compose" not in verb
    has_image = engine in _SHARING or runs
    image = named if has_image and named else "IMAGE"  # else it is an existing container
    if engine in _SHARING and named == os.path.basename(image) and not image.endswith(".sif"):
        image = f"./{image}"
    words = ["--image", image.replace("docker://", "")]
    if engine in ("podman", *_SHARING):
        words += ["--runtime", "podman" if engine == "podman" else "apptainer"]
    for name, value in line.options:
        words += _same_option(name, value or "")
    entry = [value for name, value in line.options if name == "--entrypoint" and value]
    program = [*entry, *rest] or ["PROGRAM"]
    start = f"have shanty start the containers: {_shown(*words, '-n', ranks, *program)}"
    keep = f"leave out the options that clear the environment, or {start}"
    return keep if engine in _SHARING else start


def _same_option(name: str, value: str) -> List[str]:
    """Returns shanty's words for an option of an engine; none where it is not needed."""
    if name in ("-v", "--volume", "-B", "--bind") and value.startswith(("/", "./", "../", "~")):
        if value.startswith(("/tmp:", "/dev/shm:")):  # which shanty mounts itself
            return []
        source, _, target = value.partition(":")
        target, _, mode = (target or source).partition(":")
        return ["--mount", f"{source}:{target}" + (":ro" if "ro" in mode.split(",") else "")]
    if name == "--mount":
        fields = dict(part.partition("=")[::2] for part in value.split(","))
        source = fields.get("source") or fields.get("src", "")
        target = fields.get("target") or fields.get("dst") or fields.get("destination", "")
        mode = ":ro" if {"readonly", "ro"} & set(fields) else ""
        return ["--mount", f"{source}:{target}{mode}"] if source.startswith("/") and target else []
    if name in ("-e", "--env") and value:  # of apptainer, -e is --cleanenv
        return ["-e", value]
    if name == "--gpus":
        return ["--gpus", value.strip('"').replace("device=", "")]
    return []


def _after_dashes(words: List[str]) -> List[str]:
    return words[words.index("--") + 1 :] if "--" in words else ["PROGRAM"]


def _shown(*words: str) -> str:
    return shlex.join(["shanty", "run", *words])


def bypasses_shims(line: Line) -> bool:
    """Returns True for a line whose container no shim will label."""
    by_path = os.path.basename(line.words[0]) in _AS_ROOT and os.sep in line.words[0]
    return can_be_ended(line) and (by_path or os.sep in line.words[line.at])


def labelled(line: Line, environ: Mapping[str, str]) -> List[str]:
    """Returns the words with a label by which the node agent finds the container."""
    words = list(line.words)
    if can_be_ended(line):
        labels = ["--label", label(environ["SHANTY_RUN_DIR"])]
        if any(name == "--rm" for name, _ in line.options):
            labels += ["--label", REMOVED]
        words[line.verb + 1 : line.verb + 1] = labels
    return words


def can_be_ended(line: Line) -> bool:
    """Returns True for a line whose container the node agent can find and end."""
    return line.engine in _LABELLED and line.words[line.verb] == "run" and not line.inner


def label(run_dir: str) -> str:
    """Returns the label of the containers that the ranks of a run have started on a host."""
    return f"{RANK_LABEL}={run_dir}"
