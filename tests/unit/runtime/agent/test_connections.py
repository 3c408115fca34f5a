"""Commands on other hosts."""

from __future__ import annotations

import subprocess
from pathlib import Path

from shanty.runtime.agent.connections import quoted


def test_a_path_with_spaces_as_an_option_of_ssh(tmp_path: Path) -> None:
    key = tmp_path / "my home" / 'k"e\\y'
    argv = ["ssh", "-G", "-F", "none", "-o", f"IdentityFile={quoted(str(key))}", "10.0.0.1"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert f"identityfile {key}" in done.stdout.splitlines()
