"""Making, finding and ending labs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import shanty
from shanty.launch.lab import files, model, requirements
from shanty.launch.lab.model import Lab, Member
from shanty.launch.lock import alone
from shanty.runtime import platform
from shanty.runtime.errors import NotFoundError, PrepareError, UsageError
from shanty.runtime.rundir import read_json, storage_errors, write_json

_END_TIME = 10.0  # seconds for a killed lab to be gone
_NEEDED = ("sshd", "ssh", "ssh-keygen", "ip", "tc", "unshare")


@dataclass(frozen=True, slots=True)
class Wish:
    """A lab that someone asks for."""

    name: str = "lab"
    count: int = 3
    nics: Sequence[str] = ()  # besides eth0
    rates: Sequence[str] = ()  # NIC=RATE
    bare: bool = False
    slots: int | None = None  # per host; None: as many as it finds cores


@dataclass(frozen=True, slots=True)
class Known:
    """A lab that there is or was: its process, which may be gone."""

    lab: Lab
    pid: int
    born: str

    @property
    def alive(self) -> bool:
        """True while the lab runs."""
        return self.pid > 0 and platform.is_alive(self.pid, self.born)

    def host(self, name: str) -> Member | None:
        """The host of that name."""
        return next((member for member in self.lab.hosts if member.name == name), None)


def folder_of(home: Path, name: str) -> Path:
    """The folder of a lab."""
    return home / "lab" / name


def labs(home: Path) -> list[Known]:
    """All labs, those included whose processes are gone."""
    parent = home / "lab"
    entries = parent.iterdir() if parent.is_dir() else ()
    names = sorted(entry.name for entry in entries if entry.is_dir())
    return [known for name in names if (known := read(home, name)) is not None]


def read(home: Path, name: str) -> Known | None:
    """The lab of that name, if its files can be read."""
    folder = folder_of(home, name)
    value, state = read_json(folder / "lab.json"), read_json(folder / "state.json") or {}
    with contextlib.suppress(KeyError, TypeError):
        return Known(Lab.from_json(value or {}), state.get("pid", 0), state.get("born", ""))
    return None


def find(home: Path, name: str) -> Known:
    """The lab of that name; NotFoundError when there is none."""
    known = read(home, name)
    if known is None:
        raise NotFoundError(f"there is no lab {name}", fix=_how_to_make(home, name))
    return known


def _how_to_make(home: Path, name: str) -> str:
    names = [known.lab.name for known in labs(home)]
    if names:
        return f"these are there: {', '.join(names)}"
    return "shanty lab up 3" + ("" if name == "lab" else f" --name {name}")


def find_host(home: Path, name: str) -> tuple[Known, Member]:
    """The host of that name in a lab that is up; NotFoundError when there is none."""
    for known in labs(home):
        member = known.host(name)
        if member and not known.alive:
            raise NotFoundError(
                f"{name} is gone",
                f"the processes of the lab {known.lab.name} have ended (a restart?)",
                f"shanty lab up {len(known.lab.hosts)} --name {known.lab.name}",
            )
        if member:
            return known, member
    raise NotFoundError(f"there is no lab host {name}", fix="shanty lab list shows all hosts")


def up(home: Path, wish: Wish, progress: Callable[[int], None] = lambda _hosts: None) -> Known:
    """Make a lab and wait until all its hosts answer; `progress` is told how many do.

    UsageError when the lab is up already or the wish makes no sense, PrepareError when this
    machine cannot have a lab. Nothing is left behind by either.
    """
    model.check_name(wish.name)
    if wish.slots is not None and wish.slots < 1:
        raise UsageError(f"--slots must be 1 or more, not {wish.slots}")
    hosts = model.members(wish.name, wish.count)
    model.make_nics(wish.nics, wish.rates, 0)
    found = requirements.programs(_NEEDED)
    with _locked(home, wish.name):
        _make_room(home, wish.name)
        others = [known.lab for known in labs(home)]
        second = model.free_network(model.routes_of_machine(), others)
        bare, uid, gid = wish.bare, os.getuid(), os.getgid()
        lab = Lab(
            name=wish.name,
            folder=str(folder_of(home, wish.name)),
            user=files.login(uid, gid)[0],
            uid=uid,
            gid=gid,
            bare=bare,
            nics=model.make_nics(wish.nics, wish.rates, second),
            hosts=hosts,
            sshd=found["sshd"],
            python=files.python_of_system(),
            shown=files.interpreter_folders() if bare else files.environment_folders(),
            emptied=files.emptied_folders(found["sshd"]) if bare else (),
            masked=files.masked_files() if bare else (),
            path="/usr/local/bin:/usr/bin:/bin" + ("" if uid else ":/usr/sbin:/sbin"),
        )
        with contextlib.ExitStack() as undo:
            undo.callback(_remove, home, wish.name)
            with storage_errors(Path(lab.folder)):
                Path(lab.folder).mkdir(parents=True, mode=0o700)
            files.write(lab, found["ssh-keygen"])
            pid = _start(lab, found["unshare"], undo, progress)
            entry = platform.process(pid)
            born = entry.born if entry else ""
            files.write_ssh_config(lab, pid, born)
            files.write_group(home, lab, wish.slots)
            with storage_errors(Path(lab.folder)):
                write_json(Path(lab.folder) / "state.json", {"pid": pid, "born": born})
            undo.pop_all()
    return Known(lab, pid, born)


def _locked(home: Path, name: str) -> AbstractContextManager[None]:
    """Be the only one who makes or ends the lab of that name, while the block lasts."""
    refusal = UsageError(
        f"someone else is making or ending the lab {name} right now",
        fix="wait for it, or take another --name",
    )
    return alone(home / "lab" / f".{name}.lock", refusal)


def _make_room(home: Path, name: str) -> None:
    """UsageError when the name is in use; what a lab that is gone has left is removed."""
    known = read(home, name)
    if known and known.alive:
        raise UsageError(
            f"the lab {name} is up already",
            fix=f"shanty lab down {name}, or take another --name for a second one",
        )
    group = read_json(files.group_file(home, name))
    if group is not None and not group.get("lab"):
        raise UsageError(f"a group of hosts is called {name}", fix="take another --name")
    _remove(home, name)


def _start(
    lab: Lab, unshare: str, undo: contextlib.ExitStack, progress: Callable[[int], None]
) -> int:
    """Start the lab's process, which outlives this one; its pid once all hosts answer."""
    words = [unshare, "--net", "--mount", "--pid", "--fork", "--kill-child"]
    if lab.uid:
        words += ["--map-current-user", "--keep-caps"]
    words += ["--", sys.executable, "-P", "-m", "shanty.launch.lab.supervisor", lab.folder]
    source = str(Path(shanty.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": source, "PATH": requirements.search_path()}
    log = Path(lab.folder) / "switch.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd="/",  # it changes its root
            env=env,
            start_new_session=True,
        )
    undo.callback(process.wait)
    undo.callback(process.kill)  # which kills the lab, by --kill-child
    assert process.stdout is not None
    ready = 0
    with process.stdout as output:
        for line in output:
            told = json.loads(line)
            if "done" in told:
                (child,) = (e for e in platform.processes().values() if e.parent == process.pid)
                return child.pid
            if "error" in told:
                raise requirements.forbidden(told["error"], told["errno"])
            ready += 1
            progress(ready)
    said = log.read_text(errors="replace").strip()
    raise requirements.forbidden(said.splitlines()[-1] if said else "it ended without a word", None)


def down(home: Path, name: str) -> None:
    """End a lab and remove all that it kept; NotFoundError when there is nothing of it."""
    folder = folder_of(home, name)
    if not folder.exists():
        find(home, name)
    with _locked(home, name):
        known = read(home, name)
        if known and known.alive:
            _kill(known)
        _remove(home, name)


def _kill(known: Known) -> None:
    """End the lab's first process, and with its namespace every other one."""
    try:
        watch = os.pidfd_open(known.pid)
    except ProcessLookupError:
        return
    with os.fdopen(watch, "rb"):
        if not known.alive:
            return
        signal.pidfd_send_signal(watch, signal.SIGKILL)
        if not select.select([watch], [], [], _END_TIME)[0]:
            raise PrepareError(
                f"the lab {known.lab.name} does not end",
                f"process {known.pid} is still there {_END_TIME:.0f} s after SIGKILL",
                "look for a process in state D (a disk or an NFS server that hangs)",
            )


def _remove(home: Path, name: str) -> None:
    """Remove the files of a lab whose processes are gone."""
    group = files.group_file(home, name)
    known = read_json(group)
    if known is not None and known.get("lab"):
        with contextlib.suppress(FileNotFoundError):
            group.unlink()
    folder = folder_of(home, name)
    if folder.exists():
        with storage_errors(folder):
            _remove_tree(folder)


def _remove_tree(folder: Path) -> None:
    for path, names, _files in os.walk(folder):
        for inner in (Path(path, name) for name in names):
            if not inner.is_symlink():
                inner.chmod(0o700)  # a folder that its owner cannot write could not be emptied
    shutil.rmtree(folder)
