"""Python environments on a host: what is there, and one made after the environment of a user.

An environment that shanty makes lies at `~/.shanty/store/env/<hash>`; the hash is over all
packages and the interpreter it stands on. The wheels it is made of are kept beside, and uv's
cache too, so that two environments share the files of what they have in common.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from shanty.runtime.errors import PrepareError
from shanty.runtime.rpc import describe_python, uv
from shanty.runtime.rpc.store import Readable, file_put, machine, mark_used, place_of, placing

Say = Callable[[Mapping[str, Any]], None]

_ASK_LIMIT = 60  # seconds for an interpreter to say what it is; a cold NFS is slow
_WAIT_LIMIT = 3600  # seconds to wait for another run that makes the same environment
_UV_OLDEST = (0, 8)  # has all the options that we use
_BEAT = 2.0  # seconds between two words of progress
_WHO = (
    "import sys; print(sys.version_info[0], sys.version_info[1], "
    "getattr(sys, 'abiflags', ''), getattr(sys, '_base_executable', None) or sys.executable, "
    "sep='|')"
)
_PLACES = (
    "/usr/local/bin",
    "/usr/bin",
    "/opt/homebrew/bin",
    "~/.local/bin",
    "~/.pyenv/versions/*/bin",
    "~/.local/share/uv/python/*/bin",
    "~/miniconda3/bin",
    "~/miniforge3/bin",
    "/opt/conda/bin",
    "~/.shanty/store/python/*/bin",
)


# ----------------------------------------------------------------------------- what is there


def env_describe(ask: Mapping[str, Any], data: Readable, say: Say) -> Dict[str, Any]:
    """What the interpreter of this host is and has.

    It is the one at the path `same`, else that of an active environment, else `python<key>`
    or python3 on PATH.
    """
    for path in _candidates(ask.get("same", ""), ask.get("key", "")):
        answer = _said(path)
        if answer is not None:
            return {"environment": answer, "machine": machine()}
    raise PrepareError("no Python here says what it has")


def _candidates(same: str, key: str) -> Iterator[str]:
    names = [same]
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if os.environ.get(variable):
            names.append(os.path.join(os.environ[variable], "bin", "python"))
    names += [shutil.which(name) or "" for name in (f"python{key}", "python3", "python")]
    names.append(sys.executable)
    return (name for name in dict.fromkeys(names) if name and os.access(name, os.X_OK))


def _said(python: str) -> Optional[Dict[str, Any]]:
    text = Path(describe_python.__file__).read_text(encoding="utf-8")
    try:
        # -E: a PYTHONPATH of here is nothing that ranks have; the user's own packages are.
        answer = subprocess.run(
            [python, "-E", "-c", text],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_LIMIT, check=True, cwd="/",
        )  # fmt: skip
        found = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return found if isinstance(found, dict) else None


# ----------------------------------------------------------------------- one that we made


def env_has(ask: Mapping[str, Any], data: Readable, say: Say) -> Dict[str, Any]:
    """Whether the environment `hash` for Python `key` is there, and what could make it."""
    base = _interpreter(ask["key"])
    if base is None:
        own = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return {"have": False, "base": None, "own": own, "uv": _uv(), "machine": machine()}
    path = _place(ask["hash"], base)
    python = os.path.join(path, "bin", "python")
    if mark_used(path) and os.access(python, os.X_OK):
        return {"have": True, "python": python}
    return {"have": False, "base": base, "uv": _uv(), "machine": machine()}


def env_reach(ask: Mapping[str, Any], data: Readable, say: Say) -> Dict[str, Any]:
    """Whether the package index `url` answers within `timeout` seconds, proxies included."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    answers: List[bool] = []

    def call() -> None:
        request = Request(ask["url"].rstrip("/") + "/pip/", method="HEAD")
        try:
            with urlopen(request, timeout=ask["timeout"]):
                answers.append(True)
        except HTTPError as error:
            error.close()
            answers.append(error.code in (404, 405))  # it answers, though not for this
        except (OSError, ValueError):
            answers.append(False)

    # A thread, since looking up a name has no limit of its own.
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(ask["timeout"])
    return {"reach": any(answers)}


def wheels_missing(ask: Mapping[str, Any], data: Readable, say: Say) -> Dict[str, Any]:
    """Which of `wheels`, file names by their SHA-256, are not here."""
    missing = [digest for digest, name in ask["wheels"].items() if not _wheel(digest, name)]
    return {"missing": missing}


def wheel_put(ask: Mapping[str, Any], data: Readable, say: Say) -> Dict[str, Any]:
    """Keep the wheel that follows, called `name`, with the SHA-256 `hash`."""
    path = os.path.join(place_of("wheels", ask["hash"]), os.path.basename(ask["name"]))
    file_put(path, ask["hash"], data)
    return {"path": path}


def env_make(ask: Mapping[str, Any], data: Readable, say: Say) -> Dict[str, Any]:
    """Make the environment `hash` and say where its `python` is.

    `uv` is the program to use, `packages` are requirements for the index, whose settings
    `index` holds as variables of uv, and `wheels` are file names by SHA-256. Where the index
    lacks some packages nothing is made, and their names are `lacking`.
    """
    tool = uv.Uv(ask["uv"], ask.get("index") or {}, say)
    base = _interpreter(ask["key"])
    if base is None:
        tool.fetch_python(ask["key"])
        base = _interpreter(ask["key"])
    if base is None:
        raise PrepareError(f"uv brought no Python {ask['key']} that runs here")
    target = _place(ask["hash"], base)
    python = os.path.join(target, "bin", "python")
    wanted = [*ask["packages"], *map(_requirement, ask["wheels"].items())]
    with _alone(target, say):
        if os.path.isdir(target):
            if os.access(python, os.X_OK):
                return {"python": python, "lacking": []}
            shutil.rmtree(target, ignore_errors=True)  # someone has removed half of it
        try:
            with placing(target) as folder:
                tool.make(base, folder)
                tool.install(wanted, folder)
        except uv.LackingError as error:
            return {"python": "", "lacking": error.names}
    return {"python": python, "lacking": []}


def _place(digest: str, base: str) -> str:
    """One home may serve hosts of several kinds, whose interpreters lie at different places."""
    parts = [digest, base, *machine().values()]
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return place_of("env", name[:40])


def _wheel(digest: str, name: str) -> Optional[str]:
    path = os.path.join(place_of("wheels", digest), os.path.basename(name))
    return path if mark_used(os.path.dirname(path)) and os.path.isfile(path) else None


def _requirement(wheel: Tuple[str, str]) -> str:
    path = _wheel(*wheel)
    if path is None:
        raise PrepareError(f"{wheel[1]} has not been sent", fix="run the command again")
    name = os.path.basename(path).split("-")[0]
    return f"{name} @ {Path(path).as_uri()}"


@contextlib.contextmanager
def _alone(target: str, say: Say) -> Iterator[None]:
    """Wait until nobody else makes `target`; a file system without locks goes without."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    parent, name = os.path.split(target)
    with open(os.path.join(parent, f".lock-{name[:16]}"), "a") as lock:
        deadline = time.monotonic() + _WAIT_LIMIT
        told = 0.0
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    break
            if time.monotonic() > deadline:
                raise PrepareError(
                    f"another run has been making {target} for {_WAIT_LIMIT / 3600:.0f} h",
                    fix="end it (ps x | grep uv on the host), then try again",
                )
            if time.monotonic() - told > _BEAT:
                told = time.monotonic()
                say({"waiting": "another run makes the same environment"})
            time.sleep(0.1)
        os.utime(lock.fileno())
        yield  # closing the file lets go of it


# ------------------------------------------------------------------- interpreters and uv


def _interpreter(key: str) -> Optional[str]:
    """An interpreter of this version (`3.11`, `3.13t`) that environments can stand on."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
    if own == key:
        return getattr(sys, "_base_executable", None) or sys.executable
    names = [shutil.which(f"python{key}"), shutil.which("python3")]
    for folder in _PLACES:
        pattern = os.path.join(os.path.expanduser(folder), f"python{key}")
        names += sorted(glob.glob(pattern), reverse=True)
    for name in dict.fromkeys(names):
        base = _base(name, key) if name else None
        if base:
            return base
    return None


def _base(python: str, key: str) -> Optional[str]:
    """What `python` stands on when it is of version `key`: behind a wrapper, or an environment."""
    try:
        answer = subprocess.run(
            [python, "-I", "-S", "-c", _WHO],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ASK_LIMIT,
            check=True,
        )  # fmt: skip
        major, minor, flags, base = answer.stdout.strip().split("|")
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return base if f"{major}.{minor}{flags}" == key else None


def _uv() -> str:
    """The host's own uv where it is new enough, else ""."""
    found = shutil.which("uv")
    for path in (found, *map(os.path.expanduser, ("~/.local/bin/uv", "~/.cargo/bin/uv"))):
        if path and os.access(path, os.X_OK) and _is_new(path):
            return path
    return ""


def _is_new(program: str) -> bool:
    try:
        answer = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ASK_LIMIT,
            check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError, ValueError):
        return False
    found = re.match(r"uv (\d+)\.(\d+)", answer.stdout)
    return found is not None and (int(found[1]), int(found[2])) >= _UV_OLDEST
