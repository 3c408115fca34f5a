"""Serves what the command line asks of a host: `boot.py rpc.server`, over stdin and stdout.

A request is one line of JSON, `{"do": VERB, …}`, followed by `"bytes": N` raw bytes where it has
that key. The answer is any number of `{"progress": …}` lines and one of `{"ok": {…}}`, itself
followed by `"bytes": N` raw bytes where the result has that key, or `{"error": {…}}`. One request
at a time; the end of stdin is the end of the server, so nothing is left when the client goes.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from importlib import import_module
from subprocess import SubprocessError
from typing import Any, BinaryIO, Callable, Dict, List, Mapping

from shanty.runtime.errors import ShantyError

Say = Callable[[Mapping[str, Any]], None]
Verb = Callable[[Mapping[str, Any], BinaryIO, Say], Dict[str, Any]]

# Which module of this package holds a verb; each is a function of that name with `_` for `-`.
VERBS: Mapping[str, str] = {
    "survey": "survey",
    "reach": "reachability",
    "reach-each": "reachability",
    "knock": "liveness",
    "repair": "repair",
    "health": "health",
    "try-key": "key_trial",
    "store-has": "store",
    "store-put": "store",
    "store-sweep": "store",
    "mpi-find": "store",
    "env-describe": "python_environment",
    "env-has": "python_environment",
    "env-reach": "python_environment",
    "env-make": "python_environment",
    "wheels-missing": "python_environment",
    "wheel-put": "python_environment",
    "authorize": "authorized_keys",
    "revoke": "authorized_keys",
    "sweep-keys": "authorized_keys",
    "host-keys": "authorized_keys",
    "tree-has": "tree",
    "tree-missing": "tree",
    "tree-part": "tree",
    "tree-place": "tree",
    "begin-run": "runs",
    "feed-run": "runs",
    "follow-run": "runs",
    "ask-run": "runs",
    "forget-run": "runs",
    "heard-run": "runs",
    "sweep-runs": "runs",
    "net-listen": "network_listener",
    "net-probe": "network_probe",
    "net-send": "network_probe",
    "net-close": "network_listener",
}
_UNUSED = 30 * 86400.0  # seconds after which a version of our code that nobody used is removed
_UNPACKING = 86400.0


class Payload:
    """The raw bytes that follow a request; reads not a byte more, whoever reads."""

    def __init__(self, source: BinaryIO, size: int) -> None:
        self._source = source
        self.left = size

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes (all that is left for -1); b"" at the end."""
        wanted = self.left if size < 0 else min(size, self.left)
        data = self._source.read(wanted) if wanted else b""
        self.left -= len(data)
        if len(data) < wanted:
            self.left = 0  # the client is gone
        return data

    def drain(self) -> None:
        """Read what the verb left, so that the next request is found."""
        while self.read(1 << 16):
            pass


def main(_argv: List[str]) -> int:
    """Serve until the client closes our standard input."""
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a verb or a child of it prints must not get among the answers
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    talk(source, sink)
    return 0


def talk(source: BinaryIO, sink: BinaryIO, root: str = "") -> None:
    """Serve a client that may go at any time; `root` is the folder that our code was found in."""
    if root:
        _keep_tidy(root)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(source, sink)
    with contextlib.suppress(OSError):
        sink.close()


def _keep_tidy(root: str) -> None:
    """Note that this version of our code is used, and remove those that long were not."""
    folder = os.path.dirname(root)
    with contextlib.suppress(OSError):
        os.utime(root)
        for entry in os.scandir(folder):
            age = time.time() - entry.stat(follow_symlinks=False).st_mtime
            # what an unpacking left that was cut short is of no use after a day
            if age > (_UNPACKING if entry.name.startswith(".new-") else _UNUSED):
                import shutil

                from shanty.runtime.rpc.store import named_by_runs

                if not named_by_runs(entry.path):
                    shutil.rmtree(entry.path, ignore_errors=True)


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer the requests of `source` one after the other on `sink`."""

    def say(value: Mapping[str, Any]) -> None:
        sink.write(json.dumps(value).encode() + b"\n")
        sink.flush()

    while True:
        line = source.readline()
        if not line:
            return
        ask = json.loads(line)
        payload = Payload(source, int(ask.get("bytes", 0)))
        data = b""
        try:
            result = _verb(ask["do"])(ask, payload, lambda p: say({"progress": dict(p)}))  # type: ignore[arg-type]
            data = result.pop("data", b"")
            answer: Dict[str, Any] = {"ok": result}
            if data:
                answer["bytes"] = len(data)
        except ShantyError as error:
            answer = {
                "error": {
                    "kind": type(error).__name__,
                    "what": error.what,
                    "why": error.why,
                    "fix": error.fix,
                }
            }
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            answer = {
                "error": {
                    "kind": "StorageError",
                    "what": f"{place}{error.strerror or error}",
                    "why": "",
                    "fix": "",
                }
            }
        except (LookupError, TypeError, ValueError, SubprocessError) as error:
            # A request of another version of shanty, or a host that is not as others are.
            answer = {
                "error": {
                    "kind": "ShantyError",
                    "what": f"{ask.get('do')} failed: {type(error).__name__}: {error}",
                    "why": "",
                    "fix": "this is a bug of shanty's: please report it with this line",
                }
            }
        payload.drain()
        say(answer)
        if data:
            sink.write(data)
            sink.flush()


def _verb(name: str) -> Verb:
    module = import_module(f"shanty.runtime.rpc.{VERBS[name]}")
    verb: Verb = getattr(module, name.replace("-", "_"))
    return verb
