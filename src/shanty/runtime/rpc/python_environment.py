"""Python environments on a host: what they have, and copies of a user's environment.

An environment that shanty makes lies at `~/.shanty/store/env/<hash>`; the hash is over all
packages and the interpreter it stands on. uv installs them, from an index, of wheels, or both. The
wheels are kept beside, and uv's cache too, so that two environments share files.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from shanty.runtime import stored_tree
from shanty.runtime.errors import PrepareError, StorageError
from shanty.runtime.file_edit import locked
from shanty.runtime.programs import output_of
from shanty.runtime.rpc import Ask, Data, Say, describe_python, run_long, seldom
from shanty.runtime.rpc.store import (
    discard_cache,
    home,
    kept_file,
    machine,
    mark_used,
    place_of,
    placing,
    uv_cache,
)

_ASK_LIMIT = 60  # seconds for an interpreter to say what it is; a cold NFS is slow
_WAIT_LIMIT = 3600  # seconds to wait for another run that makes the same environment
_MAKE_LIMIT = 3600  # seconds for uv to fetch and install everything
_UV_OLDEST = (0, 8)  # has all the options that we use
_WAIT_REPORT = 2.0  # seconds between two reports of progress while we wait for another run
_LAST_LINES = 12
_FULL = "no space left"
_WHO = (
    "import sys; print(sys.version_info[0], sys.version_info[1], "
    "getattr(sys, 'abiflags', ''), getattr(sys, '_base_executable', None) or sys.executable, "
    "sep='|')"
)
_PLACES = (
    *("/usr/local/bin", "/usr/bin", "/opt/homebrew/bin", "~/.local/bin"),
    *("~/.pyenv/versions/*/bin", "~/.local/share/uv/python/*/bin", "~/miniconda3/bin"),
    *("~/miniforge3/bin", "/opt/conda/bin", "~/.shanty/store/python/*/bin"),
)


def env_describe(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """Describe the interpreter of this host and what it has.

    It is the one at the path `same`, else that of an active environment, else `python<key>`
    or python3 on PATH.
    """
    for path in _candidates(ask.get("same", ""), ask.get("key", "")):
        with contextlib.suppress(PrepareError):
            return {"environment": described(path), "machine": machine()}
    raise PrepareError("no Python here describes its packages")


def described(python: str) -> Dict[str, Any]:
    """The findings of `describe_python` in an interpreter; PrepareError if it does not run."""
    text = Path(describe_python.__file__).read_text(encoding="utf-8")
    try:
        # -E: a PYTHONPATH of here is nothing that ranks have; the user's own packages are.
        done = subprocess.run(
            [python, "-E", "-c", text],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_LIMIT, check=True, cwd="/",
        )  # fmt: skip
        found: Dict[str, Any] = dict(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, TypeError, ValueError) as error:
        what = f"{python} does not list its packages"
        fix = "choose another interpreter with --python"
        why = str(error)
        if isinstance(error, subprocess.SubprocessError):  # its text has all of `text`
            code = getattr(error, "returncode", None)
            why = f"no answer within {_ASK_LIMIT} s" if code is None else f"it ended with {code}"
        raise PrepareError(what, why, fix) from error
    return found


def _candidates(same: str, key: str) -> Iterator[str]:
    names = [same]
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if os.environ.get(variable):
            names.append(os.path.join(os.environ[variable], "bin", "python"))
    names += [_which(name) or "" for name in (f"python{key}", "python3", "python")]
    names.append(sys.executable)
    return (name for name in dict.fromkeys(names) if name and os.access(name, os.X_OK))


def env_has(ask: Ask, data: Data, say: Say) -> Dict[str, Any]:
    """Look for the environment `hash` for Python `key`, else for what could make it."""
    base = _interpreter(ask["key"])
    if base is not None:
        path = _place(ask["hash"], base)
        python = os.path.join(path, "bin", "python")
        if mark_used(path) and os.access(python, os.X_OK) and not stored_tree.is_condemned(path):
            return {"have": True, "python": python}
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return {"have": False, "base": base, "own": own, "uv": _uv(), "machine": machine()}


def env_reach(ask: Ask, data: Data, say: Say) -> Dict[str, Any]:
    """Ask the package index `url` for a sign of life within `timeout` seconds, by any proxy."""
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


def wheels_missing(ask: Ask, data: Data, say: Say) -> Dict[str, Any]:
    """Tell which of `wheels`, file names by their SHA-256, are not here."""
    wheels = ask["wheels"].items()
    return {"missing": [digest for digest, name in wheels if not kept_file("wheels", digest, name)]}


def env_make(ask: Ask, data: Data, say: Say) -> Dict[str, Any]:
    """Make the environment `hash` and say where its `python` is.

    `uv` is the program to use, `packages` are requirements for the index, whose settings
    `index` holds as variables of uv, and `wheels` are file names by SHA-256. Where the index
    lacks some packages nothing is made, and their names are `lacking`.
    """
    tool = _Uv(ask["uv"], ask.get("index") or {}, say)
    base = _interpreter(ask["key"]) or tool.fetch_python(ask["key"])
    if base is None:
        raise PrepareError(f"uv did not fetch a Python {ask['key']} that runs here")
    target = _place(ask["hash"], base)
    python = os.path.join(target, "bin", "python")
    wanted = [*ask["packages"], *map(_requirement, ask["wheels"].items())]
    with _locked(target, say):
        if stored_tree.is_condemned(target):
            discard_cache()
        elif os.access(python, os.X_OK):
            return {"python": python, "lacking": []}
        else:
            shutil.rmtree(target, ignore_errors=True)  # someone has removed half of it
        with contextlib.suppress(_LackingError), placing(target) as folder:
            tool.make(base, folder)
            lacking = tool.install(wanted, folder)
            if lacking:
                raise _LackingError
            stored_tree.note(folder)
    return {"python": "" if lacking else python, "lacking": lacking}


class _LackingError(Exception):
    """The index does not have all packages, or no wheel of one."""


def _place(digest: str, base: str) -> str:
    """One home may serve hosts of several kinds, whose interpreters lie at different places."""
    parts = [digest, base, *machine().values()]
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return place_of("env", name[:40])


def _requirement(wheel: Tuple[str, str]) -> str:
    path = kept_file("wheels", *wheel)
    if path is None:
        raise PrepareError(f"{wheel[1]} has not been sent", fix="run the command again")
    name = os.path.basename(path).split("-")[0]
    return f"{name} @ {Path(path).as_uri()}"


@contextlib.contextmanager
def _locked(target: str, say: Say) -> Iterator[None]:
    """Wait until no other process makes `target`."""
    parent, name = os.path.split(target)
    os.makedirs(parent, exist_ok=True)
    lock, say = os.path.join(parent, f".lock-{name[:16]}"), seldom(say, _WAIT_REPORT)
    words = {"waiting": "another run makes the same environment"}
    with locked(lock, _WAIT_LIMIT, lambda: say(words)) as held:
        if not held:
            raise PrepareError(
                f"another run has been making {target} for {_WAIT_LIMIT / 3600:.0f} h",
                fix="end it (ps x | grep uv on the host), then try again",
            )
        os.utime(lock)
        yield


def _interpreter(key: str) -> Optional[str]:
    """An interpreter of this version (`3.11`, `3.13t`) that environments can stand on."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
    if own == key:
        return getattr(sys, "_base_executable", None) or sys.executable
    names = [_which(f"python{key}"), _which("python3")]
    for folder in _PLACES:
        pattern = os.path.join(os.path.expanduser(folder), f"python{key}")
        names += sorted(glob.glob(pattern), reverse=True)
    for name in dict.fromkeys(names):
        base = _base(name, key) if name else None
        if base:
            return base
    return None


def _which(name: str) -> Optional[str]:
    """The program of that name on PATH, but for a Python that is known to hang."""
    found = shutil.which(name)
    return None if found == os.environ.get("SHANTY_WITHOUT") else found


def _base(python: str, key: str) -> Optional[str]:
    said = (output_of([python, "-I", "-S", "-c", _WHO], _ASK_LIMIT) or "").strip().split("|")
    return said[3] if len(said) == 4 and f"{said[0]}.{said[1]}{said[2]}" == key else None


def _uv() -> str:
    """The host's own uv where it is new enough, else ""."""
    found = shutil.which("uv")
    for path in (found, *map(os.path.expanduser, ("~/.local/bin/uv", "~/.cargo/bin/uv"))):
        if path and os.access(path, os.X_OK):
            said = re.match(r"uv (\d+)\.(\d+)", output_of([path, "--version"], _ASK_LIMIT) or "")
            if said is not None and (int(said[1]), int(said[2])) >= _UV_OLDEST:
                return path
    return ""


class _Uv:
    """One uv, with the settings of an index (variables of uv's; none means it stays offline)."""

    def __init__(self, program: str, index: Mapping[str, str], say: Say) -> None:
        self._program = program
        self._say = say
        self._online = bool(index)
        # What a user has set for uv on the host, in variables or files, is meant for other things.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("UV_", "VIRTUAL_ENV"))}
        self._environ: Dict[str, str] = {
            **kept,
            **index,
            "UV_CACHE_DIR": uv_cache(),
            "UV_PYTHON_INSTALL_DIR": os.path.join(home(), "store", "python"),
            "UV_LINK_MODE": "hardlink",
            "UV_NO_CONFIG": "1",
            "UV_NO_PROGRESS": "1",
        }

    def fetch_python(self, key: str) -> Optional[str]:
        """Bring an interpreter of that version to shanty's store."""

        words = ["python", "install", "--no-bin", key.replace("t", "+freethreaded")]
        failed = self._run(words, lambda: self._say({"fetching": f"Python {key}"}))
        if failed:
            raise PrepareError(
                f"Python {key} not found, and uv could not fetch it",
                failed,
                f"install Python {key} there, or choose another with --python",
            )
        return _interpreter(key)

    def make(self, base: str, folder: str) -> None:
        words = ["venv", "--quiet", "--relocatable", "--no-python-downloads", "--python", base]
        failed = self._run([*words, folder], lambda: self._say({"making": "environment"}))
        if failed:
            raise _failure("the environment could not be made", failed)

    def install(self, requirements: Sequence[str], folder: str) -> List[str]:
        """Install the requirements, no dependencies; the names of those that the index lacks."""
        mark_used(uv_cache())
        wanted = list(requirements)
        lacking: List[str] = []
        while wanted:
            failed = self._install(wanted, folder, len(requirements))
            if not failed:
                break
            fetched = [one for one in wanted if " @ " not in one]
            if not fetched or _FULL in failed.lower():
                raise _failure("the packages could not be installed", failed)
            # Where no package is named, the index lacks all of them.
            named = [one for one in fetched if _is_named(one, failed)] or fetched
            lacking += named
            wanted = [one for one in wanted if one not in named]
        return [one.partition("==")[0] for one in lacking]

    def _install(self, requirements: Sequence[str], folder: str, total: int) -> str:
        path = os.path.join(folder, "requirements.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in requirements)
        words = ["pip", "install", "--quiet", "--no-deps", "--no-build", "--python", folder]
        if not self._online:
            words += ["--offline", "--no-index"]
        pattern = os.path.join(glob.escape(folder), "lib", "python3*", "site-packages")

        def installed() -> None:
            found = glob.glob(os.path.join(pattern, "*.dist-info"))
            self._say({"done": len(found), "total": total})

        return self._run([*words, "--requirements", path], installed)

    def _run(self, words: Sequence[str], report: Callable[[], None]) -> str:
        """Run uv; "" when it ended well, else its last words."""
        try:
            code, text = run_long([self._program, *words], self._environ, _MAKE_LIMIT, report)
        except ConnectionError:
            raise  # the client is gone
        except OSError as error:
            return f"{self._program} does not run: {error.strerror}"
        if code is None:
            return f"uv was still at work after {_MAKE_LIMIT / 60:.0f} min"
        report()
        last = "\n".join(text.strip().splitlines()[-_LAST_LINES:])
        return (last or f"uv ended with {code}") if code else ""


def _is_named(requirement: str, text: str) -> bool:
    name, _, version = requirement.partition("==")
    pattern = "[-_.]".join(map(re.escape, re.split("[-_.]", name))) + "==" + re.escape(version)
    return bool(re.search(rf"(?<![\w.-]){pattern}(?![\w+-])", text, re.IGNORECASE))


def _failure(what: str, output: str) -> Exception:
    if _FULL in output.lower():
        return StorageError(what, output, "make room there (df -h ~), then try again")
    return PrepareError(what, output, "see what uv says above; --packages none goes without")
