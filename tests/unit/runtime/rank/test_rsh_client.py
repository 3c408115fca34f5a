"""What a launcher says to ssh."""

from __future__ import annotations

import pytest

from shanty.runtime.rank.rsh_client import parse


@pytest.mark.parametrize(
    ("words", "host", "command"),
    [
        (["lab2", "prted", "-x"], "lab2", "prted -x"),
        (["-x", "10.0.0.3", "a b; c"], "10.0.0.3", "a b; c"),
        (["-q", "-l", "me", "-p22", "-o", "BatchMode=yes", "h", "true"], "h", "true"),
        (["-xl", "me", "h", "true"], "h", "true"),
        (["me@h", "-n", "true"], "h", "true"),
        (["h"], "h", ""),
        ([], "", ""),
        (["-V"], "", ""),
        (["--", "h", "ls", "-l"], "h", "ls -l"),
    ],
)
def test_what_a_launcher_says_to_ssh(words: list[str], host: str, command: str) -> None:
    assert parse(words) == (host, command)
