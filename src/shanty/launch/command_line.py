"""Writes a job as the words of `shanty run` that would make it again."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from shanty.runtime.spec import JobSpec, Raw

# The option of each field of JobSpec; a test holds them to those of the command line.
FLAGS = {
    "ranks": "-n", "ranks_per_host": "--ppn", "cpus_per_rank": "-c",
    "memory_per_rank": "--memory-per-rank", "gpus_per_rank": "--gpus-per-rank",
    "oversubscribe": "--oversubscribe", "on": "--on", "hostfile": "--hostfile", "mpi": "--mpi",
    "python": "--python", "environment": "--env", "image": "--image",
    "master_image": "--master-image", "runtime": "--runtime", "mounts": "--mount",
    "gpus": "--gpus", "registry_user": "--registry-user",
    "registry_password": "--registry-password", "env": "-e", "tf1": "--tf1", "workdir": "-C",
    "source": "--workspace", "partition": "--partition", "account": "--account", "qos": "--qos",
    "nodes": "--nodes", "constraint": "--constraint", "reservation": "--reservation",
    "exclusive": "--exclusive", "requeue": "--requeue", "slurm": "--slurm", "uid": "--uid",
    "node_selector": "--node-selector", "tolerations": "--toleration",
    "service_account": "--service-account", "priority_class": "--priority-class",
    "pull_secrets": "--pull-secret", "labels": "--k8s-label", "queue": "--queue",
    "k8s_patch": "--k8s-patch", "operator": "--as", "schedule_timeout": "--schedule-timeout",
    "keep": "--keep", "time_limit": "-t", "retries": "--retries",
    "start_timeout": "--start-timeout", "on_stall": "--on-stall", "stall_after": "--stall-after",
    "alone": "--alone", "name": "--name", "tags": "--tag", "machines": "--machines",
    "priority": "--priority", "share": "--share", "log_to": "--log-to", "profile": "--profile",
    "inputs": "--inputs",
}  # fmt: skip
_FIRST = ("workdir", "source", "ranks")  # what one wants to see at the beginning of a line
_LEFT_OUT = ("command", "debug_rank")
_SECRET = re.compile(
    r"pass(word|wd|phrase)?($|_)|_pwd($|_)|secret|token(?!iz)|credential|cookie|dsn$"
    r"|(api|access|private|^|_)_?key$|(^|_)auth($|_)",
    re.IGNORECASE,
)
_DEBUGGER = "SHANTY_DEBUG_TTY"  # the terminal of a rank that is debugged: it is gone


def looks_secret(name: str) -> bool:
    """Return true where the variable of that name probably holds what others are not to see."""
    return bool(_SECRET.search(name))


def line(job: JobSpec) -> str:
    """Return the line for a shell; of variables that look secret only the names are in it.

    `-e NAME` takes the value from the environment of who types it.
    """
    text = shlex.join(["shanty", "run", *option_words(job, shown=True), *command_words(job)])
    if job.k8s_patch is not None:  # the option takes a file
        quoted = shlex.quote(job.k8s_patch)
        text = text.replace(f"--k8s-patch {quoted}", f"--k8s-patch <(echo {quoted})")
    return text


def option_words(job: JobSpec, *, shown: bool, without: Collection[str] = ()) -> list[str]:
    """Return the options of `shanty run`, but for those of the fields `without`.

    With `shown`, values that look secret are left out. A patch of a Kubernetes Job stands there
    itself, where the option takes a file.
    """
    plain = JobSpec(job.command)
    names = [each.name for each in fields(JobSpec) if each.name not in _LEFT_OUT]
    words: list[str] = []
    for name in [*_FIRST, *(name for name in names if name not in _FIRST)]:
        value = getattr(job, name)
        if name in without:
            continue
        if name == "workdir":
            words += _folder(job)
        elif name == "env":
            words += _variables(job, shown=shown)
        elif name in FLAGS and value != getattr(plain, name):
            for text in _texts(name, value):
                words += [FLAGS[name], text] if text is not None else [FLAGS[name]]
    return words


def _texts(name: str, value: Any) -> Iterator[str | None]:
    """Yield what stands after the option, once for each time that it is given."""
    if value is True:
        yield None
    elif name == "mounts":
        for source, target, mode in value:
            yield f"{source}:{target}" + (":ro" if mode == "ro" else "")
    elif name == "machines":
        yield ",".join(f"{kind}:{count}" for kind, count in value)
    elif name == "log_to":
        yield ",".join(value)
    elif isinstance(value, tuple):
        yield from value
    elif name == "stall_after" and not value:
        yield "off"
    elif isinstance(value, float):
        yield f"{value:.6f}".rstrip("0").rstrip(".")
    else:
        yield str(value)


def _folder(job: JobSpec) -> list[str]:
    if job.source is None:
        return [FLAGS["workdir"], job.workdir]
    # What was fetched lies in a folder of the cache; of it, the part that was asked for is said.
    parts = Path(job.workdir).parts
    if "sources" not in parts:
        return []
    base = Path(*parts[: parts.index("sources") + 2])
    try:
        entries = list(base.iterdir())
    except OSError:
        entries = []
    if len(entries) == 1 and entries[0].is_dir() and not base.name.startswith("git-"):
        base = entries[0]
    below = os.path.relpath(job.workdir, base)
    return [] if below == "." or below.startswith("..") else [FLAGS["workdir"], below]


def _variables(job: JobSpec, *, shown: bool) -> Iterator[str]:
    for name, value in job.env.items():
        if name != _DEBUGGER:
            hidden = shown and looks_secret(name)
            yield from (FLAGS["env"], name if hidden else f"{name}={value}")


def command_words(job: JobSpec) -> list[str]:
    """Return what comes after the options: the command, and what says how it is read."""
    from shanty.runtime.rank.command import launcher_of
    from shanty.runtime.resolve import LAUNCHERS

    words = list(job.words())
    if isinstance(job.command, Raw):
        known = os.path.basename(words[0]) in LAUNCHERS and launcher_of(words) is None
        return ["--", *words] if job.command.shell or known else ["--raw", "--", *words]
    return words if words[0] == "-m" else ["--", *words] if words[0].startswith("-") else words


def split(text: str) -> list[str]:
    """Return the words of a command as a person has written it; one word where a shell is needed.

    Then `shanty run` has `sh -c` run it once, and the ranks are what it starts by mpirun.
    ValueError where a quote is not closed.
    """
    words = shlex.split(text, comments=False)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    lexer.commenters = ""
    signs = any(set(token) <= set("();<>|&") for token in lexer if token)
    quoted = re.sub(r"'[^']*'", "", text)
    if signs or "`" in quoted or "$(" in quoted or "\n" in text.strip():
        return [text.strip()]
    return words
