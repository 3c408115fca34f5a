"""Runs `shanty` itself: what a page starts is what the same line would start in a terminal.

It is a process of its own, so the server goes on meanwhile. A preparation that is not done when the
server ends is broken off, which leaves no run; a run that has begun goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from shanty.client.command_line import looks_secret
from shanty.dashboard.errors import Refused
from shanty.runtime.errors import LaunchError, NotFoundError, UsageError
from shanty.runtime.rundir import json_objects

_MOST = 16 << 20  # bytes that are read of what it prints
_KNOWN = {UsageError.exit_code: 422, NotFoundError.exit_code: 422}


Done = subprocess.CompletedProcess[str]


async def shanty(words: list[str], home: Path, environ: Mapping[str, str], patience: float) -> Done:
    """Run `shanty WORDS…` to its end; LaunchError after `patience` seconds."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shanty", *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**environ, "SHANTY_HOME": str(home)},
        start_new_session=True,
        limit=_MOST,
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(), patience)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it is the leader of its session
        await process.wait()
        raise LaunchError(
            f"shanty {words[0]} took more than {patience:.0f} s, and was ended",
            fix="try it in a terminal",
        ) from None
    code = process.returncode if process.returncode is not None else -1
    return Done(words, code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def hidden(words: list[str], environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the words without the values of variables that look secret, which go by `environ`.

    All users of a machine can read the command lines of its processes.
    """
    found, more = list(words), dict(environ)
    end = found.index("--") if "--" in found else len(found)
    for at in range(1, end):
        name, equals, value = found[at].partition("=")
        if found[at - 1] == "-e" and equals and looks_secret(name):
            found[at], more[name] = name, value
    return found, more


def submitted(done: Done) -> str:
    """Return the id of the run that was started; Refused with what `shanty` said."""
    said = list(json_objects(done.stdout.splitlines()))
    for value in said:
        if value.get("event") == "submitted":
            return str(value["run"])
    for value in said:
        if value.get("event") == "error":
            status = _KNOWN.get(done.returncode, 424)
            raise Refused(status, *(str(value.get(key, "")) for key in ("what", "why", "fix")))
    why = done.stderr.strip()[-2000:]
    raise Refused(424, f"the run was not started: exit code {done.returncode}", why)
