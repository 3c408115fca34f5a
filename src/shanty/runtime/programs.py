"""Runs other programs to their end, none for longer than a limit."""

from __future__ import annotations

import subprocess
from typing import Mapping, Optional, Sequence

_LIMIT = 30.0  # seconds for what takes a moment


def run(
    words: Sequence[str], limit: float = _LIMIT, environ: Optional[Mapping[str, str]] = None
) -> Optional[subprocess.CompletedProcess[str]]:
    """Run a program without input; None where it does not run, or takes more than `limit` seconds.

    `environ` is its environment, None for our own.
    """
    try:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=limit, env=environ, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError, ValueError):  # ValueError: a null byte in a word
        return None


def output_of(words: Sequence[str], limit: float = _LIMIT) -> Optional[str]:
    """The output of a program; None where it does not run, fails, or takes longer."""
    done = run(words, limit)
    return done.stdout if done is not None and done.returncode == 0 else None
