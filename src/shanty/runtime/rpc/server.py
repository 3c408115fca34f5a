"""Serves what the command line asks of a host, over the streams that `bootstrap` hands on.

A request is one line of JSON, `{"do": VERB, …}`, followed by `"bytes": N` raw bytes where it has
that key. The answer is any number of `{"progress": …}` lines and one of `{"ok": {…}}`, itself
followed by `"bytes": N` raw bytes where the result has that key, or `{"error": {…}}`. One request
at a time; the end of stdin is the end of the server, so nothing is left when the client goes.
"""

from __future__ import annotations

import contextlib
import json
import os
from importlib import import_module
from subprocess import SubprocessError
from typing import Any, BinaryIO, Callable, Dict, Mapping

from shanty.runtime.errors import ShantyError
from shanty.runtime.rpc import Ask, Data, Say

Verb = Callable[[Ask, Data, Say], Dict[str, Any]]

# The verbs that each module of this package holds, as functions of that name with `_` for `-`.
_MODULES: Mapping[str, str] = {
    "survey": "survey",
    "reachability": "find-ssh check-alive try-key pods-reach",
    "repair": "repair",
    "health": "health",
    "store": "store-has store-put file-put store-sweep mpi-find",
    "python_environment": "env-describe env-has env-reach env-make wheels-missing",
    ".authorized_keys": "authorize revoke sweep-keys host-keys",
    "containers": "container-engine python-anywhere containers-sweep",
    "images": "image-pull",
    "layers": "image-have image-load image-file-have layer-put",
    "workspaces": "workspace-has workspace-missing workspace-part workspace-place",
    "runs": "begin-run await-reader forward-stdin follow-run ask-run forget-run heartbeat-age"
    " sweep-runs",
    "slurm": "slurm-check slurm-submit",
    ".network_probe": "net-listen net-probe net-send net-close",
}
VERBS = {verb: module for module, verbs in _MODULES.items() for verb in verbs.split()}


class Payload:
    """The raw bytes that follow a request; no reader gets a byte more."""

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


def talk(source: BinaryIO, sink: BinaryIO, root: str) -> None:
    """Serve a client that may go at any time; `root` is the folder that our code was found in."""
    with contextlib.suppress(OSError):
        os.utime(root)  # this version of our code is used: see `store.store_sweep`
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(source, sink)
    with contextlib.suppress(OSError):
        sink.close()


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
            module = import_module(f".{VERBS[ask['do']]}", "shanty.runtime.rpc")
            verb: Verb = getattr(module, ask["do"].replace("-", "_"))
            result = verb(ask, payload, lambda p: say({"progress": dict(p)}))
            data = result.pop("data", b"")
            answer: Dict[str, Any] = {"ok": result, **({"bytes": len(data)} if data else {})}
        except ShantyError as error:
            answer = _failure(type(error).__name__, error.what, error.why, error.fix)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            answer = _failure("StorageError", f"{place}{error.strerror or error}")
        except (LookupError, TypeError, ValueError, SubprocessError) as error:
            # A request of another version of shanty, or a host that is not as others are.
            what = f"{ask.get('do')} failed: {type(error).__name__}: {error}"
            fix = "this is a bug of shanty's: please report it with this line"
            answer = _failure("ShantyError", what, fix=fix)
        payload.drain()
        say(answer)
        if data:
            sink.write(data)
            sink.flush()


def _failure(kind: str, what: str, why: str = "", fix: str = "") -> Dict[str, Any]:
    return {"error": {"kind": kind, "what": what, "why": why, "fix": fix}}
