"""Whether this host gets into others with a key: the verb `try-key`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from typing import Any, BinaryIO, Callable, Dict, List, Mapping

from shanty.runtime.agent.connections import ssh_command

_KEPT = 2000  # characters of what ssh says


def try_key(
    ask: Mapping[str, Any], _data: BinaryIO, _say: Callable[[Mapping[str, Any]], None]
) -> Dict[str, Any]:
    """`key known_hosts hosts timeout`: try an ssh to each of `hosts`, all at once.

    `key` is a private key and `known_hosts` the text of such a file; both are gone from here at
    the end. `hosts` are as in `ssh_command`. `tries` has `{"code", "text"}` for each, in
    their order: ssh's exit code, None where it had none after `timeout` seconds, and what it said.
    """
    timeout = float(ask["timeout"])
    folder = tempfile.mkdtemp(prefix="shanty-try-")  # for this user alone
    try:
        files = {}
        for name in ("key", "known_hosts"):
            files[name] = os.path.join(folder, name)
            with open(os.open(files[name], os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write(ask[name])
        return {"tries": _all(ask["hosts"], files["key"], files["known_hosts"], timeout)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _all(
    hosts: List[Mapping[str, Any]], key: str, known_hosts: str, timeout: float
) -> List[Dict[str, Any]]:
    until = time.monotonic() + timeout
    started: List[Any] = []
    try:
        for host in hosts:
            command = ssh_command(host, key, known_hosts, max(1, int(timeout)))
            with tempfile.TemporaryFile() as said:  # ssh keeps a copy of its own
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=said, stderr=said
                )
                started.append((process, os.dup(said.fileno())))
        return [_outcome(process, said, until) for process, said in started]
    finally:
        for process, said in started:
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(said)


def _outcome(process: Any, said: int, until: float) -> Dict[str, Any]:
    code = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(max(0.0, until - time.monotonic()))
    text = os.pread(said, _KEPT, 0).decode(errors="replace").strip()
    return {"code": code, "text": text}
