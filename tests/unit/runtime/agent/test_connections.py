"""Commands on other hosts."""

from __future__ import annotations

import subprocess
from pathlib import Path

from shanty.runtime.agent.connections import Answer, quoted, run_each


def test_a_path_with_spaces_as_an_option_of_ssh(tmp_path: Path) -> None:
    key = tmp_path / "my home" / 'k"e\\y'
    argv = ["ssh", "-G", "-F", "none", "-o", f"IdentityFile={quoted(str(key))}", "10.0.0.1"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert f"identityfile {key}" in done.stdout.splitlines()


def test_a_command_whose_child_keeps_its_output_open_is_given_up() -> None:
    answers = run_each([["sh", "-c", "sleep 600; true"], ["echo", "here"]], 0.5)
    assert answers == [Answer(None, "", ""), Answer(0, "here\n", "")]
