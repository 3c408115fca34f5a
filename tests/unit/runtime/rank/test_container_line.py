"""The program that stands for container engines in a rank."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import shanty.runtime.rank
from shanty.runtime.lines.command import ENGINES, engine_shims
from shanty.runtime.lines.container_engine import find
from shanty.runtime.rank.container_line import is_ranks_program


@pytest.mark.parametrize("name", ENGINES)
def test_outside_of_a_run_a_shim_is_the_program_itself(name: str, tmp_path: Path) -> None:
    folder = Path(shanty.runtime.rank.__file__).parent / "shims"
    installed = tmp_path / name
    assert engine_shims(str(folder), str(tmp_path)) == []  # `command -v` is not to find it
    shims = folder / "engines" / name
    path = os.pathsep.join([str(shims), str(tmp_path), os.defpath])
    for words in (["ps", "a b"], ["docker", "run", "a b"], ["run", "--rm", "img"]):
        missing = subprocess.run([shims / name, *words], env={"PATH": str(shims) + ":/nowhere"},
                                 capture_output=True, text=True)  # fmt: skip
        assert missing.returncode == 127
        installed.write_text('#!/bin/sh\nprintf "<%s>" "$@"\nexit 3\n')
        installed.chmod(0o755)
        assert engine_shims(str(folder), f"/nowhere:{tmp_path}") == [str(shims)]
        done = subprocess.run([shims / name, *words], env={"PATH": path}, capture_output=True,
                              text=True)  # fmt: skip
        assert (done.returncode, done.stdout) == (3, "".join(f"<{word}>" for word in words))
        installed.unlink()


def test_what_only_helps_a_rank_is_its_own_affair() -> None:
    """A container that a Python starts, or a shell in the background, is not the rank itself."""
    found = find(["docker", "run", "img", "x"])
    assert found is not None
    assert not is_ranks_program(found)  # a Python is above this process
