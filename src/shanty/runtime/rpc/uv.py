"""Runs uv on a host: environments that can be moved, made of wheels, of an index, or of both."""

from __future__ import annotations

import glob
import os
import re
import subprocess
import tempfile
import time
from typing import Any, Callable, Dict, List, Mapping, Sequence

from shanty.runtime.errors import PrepareError, StorageError
from shanty.runtime.rpc.store import home, mark_used, uv_cache

Say = Callable[[Mapping[str, Any]], None]

_LIMIT = 3600  # seconds for uv to fetch and install everything
_BEAT = 1.0  # seconds between two words of progress
_LAST_LINES = 12
_FULL = "no space left"


class LackingError(Exception):
    """The index does not have these packages, or no wheel of them."""

    def __init__(self, names: List[str]) -> None:
        super().__init__(", ".join(names))
        self.names = names


class Uv:
    """One uv, with the settings of an index (variables of uv's; none means it stays offline)."""

    def __init__(self, program: str, index: Mapping[str, str], say: Say) -> None:
        self._program = program
        self._say = say
        self._online = bool(index)
        # What a user has set for uv on the host, in variables or files, is meant for other things.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("UV_", "VIRTUAL_ENV"))}
        store = os.path.join(home(), "store")
        self._environ: Dict[str, str] = {
            **kept,
            **index,
            "UV_CACHE_DIR": uv_cache(),
            "UV_PYTHON_INSTALL_DIR": os.path.join(store, "python"),
            "UV_LINK_MODE": "hardlink",
            "UV_NO_CONFIG": "1",
            "UV_NO_PROGRESS": "1",
        }

    def fetch_python(self, key: str) -> None:
        """Bring an interpreter of that version to shanty's store."""

        def beat() -> None:
            self._say({"fetching": f"Python {key}"})

        beat()
        version = key.replace("t", "+freethreaded")
        failed = self._run(["python", "install", "--no-bin", version], beat)
        if failed:
            raise PrepareError(
                f"there is no Python {key}, and uv could not fetch one",
                failed,
                f"install Python {key} there, or choose another with --python",
            )

    def make(self, base: str, folder: str) -> None:
        """Make an empty environment in `folder` that may be renamed."""
        words = ["venv", "--quiet", "--relocatable", "--no-python-downloads", "--python", base]
        failed = self._run([*words, folder], lambda: self._say({"making": "environment"}))
        if failed:
            raise _failure("the environment could not be made", failed)

    def install(self, requirements: Sequence[str], folder: str) -> None:
        """Install the requirements, no dependencies; LackingError names what the index lacks."""
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
            # Where no package is named, the index is of no use at all.
            named = [one for one in fetched if _is_named(one, failed)] or fetched
            lacking += named
            wanted = [one for one in wanted if one not in named]
        if lacking:
            raise LackingError([one.partition("==")[0] for one in lacking])

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

    def _run(self, words: Sequence[str], beat: Callable[[], None]) -> str:
        """Run uv; "" when it ended well, else its last words.

        `beat` is called every now and then, and has to say something: when that fails, the
        client is gone, and uv is ended.
        """
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    [self._program, *words], env=self._environ, stdin=subprocess.DEVNULL,
                    stdout=output, stderr=subprocess.STDOUT,
                )  # fmt: skip
            except OSError as error:
                return f"{self._program} does not run: {error.strerror}"
            deadline = time.monotonic() + _LIMIT
            try:
                while True:
                    try:
                        process.wait(_BEAT)
                        break
                    except subprocess.TimeoutExpired:
                        beat()
                    if time.monotonic() > deadline:
                        return f"uv was still at work after {_LIMIT / 60:.0f} min"
            finally:
                if process.poll() is None:  # also when the client has gone
                    process.kill()
                    process.wait()
            beat()
            if process.returncode == 0:
                return ""
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
        last = "\n".join(lines[-_LAST_LINES:])
        return last or f"uv ended with {process.returncode}"


def _is_named(requirement: str, text: str) -> bool:
    """True when uv's complaint is about this requirement, NAME==VERSION."""
    name, _, version = requirement.partition("==")
    pattern = "[-_.]".join(map(re.escape, re.split("[-_.]", name))) + "==" + re.escape(version)
    return bool(re.search(rf"(?<![\w.-]){pattern}(?![\w+-])", text, re.IGNORECASE))


def _failure(what: str, output: str) -> Exception:
    if _FULL in output.lower():
        return StorageError(what, output, "make room there (df -h ~), then try again")
    return PrepareError(what, output, "see what uv says above; --env none goes without")
