"""Completes values for a shell: files, runs, MPIs, groups and hosts.

A shell starts the program each time that the key is pressed, so only what the answer needs is
loaded: runs are read from their files, and no host is reached.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from shanty.runtime.errors import ShantyError
from shanty.runtime.rundir import RunDir, home, is_run_id, read_json
from shanty.runtime.spec import JobSpec, State

Words = Mapping[str, str]
"""What may stand there, each with what a shell shows beside it."""

_NEWEST = 40  # runs that are looked at
_LONGEST = 50  # letters of a command beside its run
_FINAL = {state.value for state in State if state.final}


def offered(
    kind: str, ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return the completions of the beginning of a word; `kind` is a key of `_WORDS`."""
    if kind == "files" or (kind == "mpis" and ("/" in incomplete or incomplete.startswith("."))):
        return files_as(incomplete)
    if kind == "folders":
        return [CompletionItem(incomplete, type="dir")]
    last = incomplete.rpartition(",")[2] if kind in ("hosts", "machine_types") else incomplete
    last = last.rpartition("@")[2] if kind == "hosts" else last
    before = incomplete.removesuffix(last)
    words = _runs(ctx, param) if kind == "runs" else _WORDS[kind]()
    return [
        CompletionItem(before + word, help=text or None)
        for word, text in words.items()
        if word.startswith(last) and word not in before.split(",")
    ]


def files_as(incomplete: str) -> list[CompletionItem[str]]:
    """Have the shell complete the name of a file."""
    return [CompletionItem(incomplete, type="file")]


def _plain(words: Iterable[str]) -> Words:
    return dict.fromkeys(words, "")


def _runs(ctx: click.Context, param: click.Parameter) -> Words:
    """Return the names and ids of the newest runs, the newest first: those that the verb takes.

    `stop` and `stacks` take active runs, `rm` and `delete` those that have ended.
    """
    given = ctx.params.get(param.name or "") or ()
    given = given if isinstance(given, tuple) else ()
    wanted = {"stop": False, "stacks": False, "rm": True, "delete": True}.get(ctx.info_name or "")
    found: dict[str, str] = {}
    newest = _newest()
    for run in newest:
        state = str((read_json(run.status) or {}).get("state", ""))
        if wanted is not None and (state in _FINAL) is not wanted:
            continue
        name, words = "", ""
        with contextlib.suppress(KeyError, TypeError, ValueError):
            job = JobSpec.from_json(read_json(run.job) or {})
            name, words = job.name or "", " ".join(" ".join(job.words()).split())[:_LONGEST]
        for word in (name, run.id):
            if word and word not in given:
                found.setdefault(word, f"{state}: {words}")
    if newest:
        found.setdefault("last", "the newest run")
    return found


def _of_runs(key: str) -> Words:
    """Return the values that a field of the job has in the newest runs."""
    found: set[str] = set()
    for run in _newest():
        value = (read_json(run.job) or {}).get(key) or ()
        found.update([value] if isinstance(value, str) else map(str, value))
    return _plain(sorted(found))


def _newest() -> list[RunDir]:
    names = filter(is_run_id, _entries("runs"))
    return [RunDir(home(os.environ) / "runs" / name) for name in sorted(names)[: -_NEWEST - 1 : -1]]


def _entries(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [path.name for path in (home(os.environ) / folder).iterdir()]
    return []


def _metrics() -> Words:
    from shanty.client.measurements import OF_HOSTS

    return _plain(OF_HOSTS)


def _mpis() -> Words:
    from shanty.runtime.mpi.flavours import FLAVOURS

    return {"openmpi": "the newest Open MPI"} | {f.name: f.title for f in FLAVOURS.values()}


def _own_mpis() -> Words:
    return _plain(sorted(name for name in _entries("mpi") if not name.startswith(".")))


def _groups() -> Words:
    from shanty.launch import inventory

    return dict.fromkeys(inventory.names(home(os.environ)), "a group of hosts")


def _machine_types() -> Words:
    from shanty.launch.machines import types

    return _plain(types.names(home(os.environ)))


def _hosts() -> Words:
    """Return groups, the hosts of groups, and the names of ~/.ssh/config."""
    from shanty.launch import inventory

    found = dict(_groups())
    for name in _groups():
        with contextlib.suppress(ShantyError):
            for host in inventory.load(name, home(os.environ)).hosts:
                found.setdefault(host.name, f"of {name}")
    return found | dict.fromkeys(_ssh_names(), "in ~/.ssh/config")


def _lab_hosts() -> Words:
    from shanty.launch import inventory

    labs = [g for g in (inventory.load(n, home(os.environ)) for n in _groups()) if g.lab]
    return _plain(host.name for lab in labs for host in lab.hosts)


def _ssh_names() -> list[str]:
    """Return the names that the user's own configuration of ssh gives to hosts."""
    text = ""
    with contextlib.suppress(OSError):
        text = Path("~/.ssh/config").expanduser().read_text(encoding="utf-8", errors="replace")
    lines = (line.replace("=", " ", 1).split() for line in text.splitlines())
    named = (word for words in lines if words and words[0].lower() == "host" for word in words[1:])
    return [word for word in named if not set('*?!"') & set(word)]


def _own_images() -> Words:
    from shanty.launch.containers.build import known

    found = {name.removeprefix("localhost/") for one in known() for name in one.names}
    return _plain(sorted(found))


_WORDS: Mapping[str, Callable[[], Words]] = {
    "names": lambda: _of_runs("name"),
    "tags": lambda: _of_runs("tags"),
    "states": lambda: _plain(state.value for state in State),
    "metrics": _metrics,
    "mpis": _mpis,
    "own_mpis": _own_mpis,
    "own_images": _own_images,
    "groups": _groups,
    "machine_types": _machine_types,
    "hosts": _hosts,
    "lab_hosts": _lab_hosts,
}
