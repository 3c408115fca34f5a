"""Whether a program waits for its standard input."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from runs import wait_for
from shanty.runtime import platform
from shanty.runtime.input_readers import wait_for_input

pytestmark = pytest.mark.skipif(not platform.LINUX, reason="Linux only")


@pytest.mark.parametrize(
    ("command", "reads"), [("exec cat", True), ("read x", True), ("exec sleep 60", False)]
)
def test_who_waits(tmp_path: Path, command: str, reads: bool) -> None:
    path = tmp_path / "stdin"
    os.mkfifo(path)
    source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(source, True)
    target = os.open(path, os.O_WRONLY)
    assert not wait_for_input(str(path))
    process = subprocess.Popen(["sh", "-c", command], stdin=source)
    where = Path(f"/proc/{process.pid}/wchan")
    try:
        if not reads:
            wait_for(lambda: "sleep" in Path(f"/proc/{process.pid}/comm").read_text())
            wait_for(lambda: "sleep" in where.read_text() or where.read_text() in ("", "0"))
            if where.read_text() in ("", "0"):
                pytest.skip("the kernel does not tell where it sleeps")
            assert not wait_for_input(str(path))
        else:
            wait_for(lambda: wait_for_input(str(path)))
    finally:
        process.kill()
        process.wait()
        os.close(source)
        os.close(target)
