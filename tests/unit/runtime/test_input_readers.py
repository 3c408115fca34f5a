"""Whether a program waits for its standard input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runs import wait_for
from shanty.runtime import platform
from shanty.runtime.input_readers import wait_for_input

pytestmark = pytest.mark.skipif(not platform.LINUX, reason="Linux only")


OTHER = "import os; os.read(os.pipe()[0], 1)"
FULL = "import os; os.write(os.pipe()[1], bytes(1 << 20))"
SLEEP = "import time; time.sleep(60)"


@pytest.mark.parametrize(
    ("command", "reads"),
    [
        (["cat"], True),
        (["sh", "-c", "read x"], True),
        ([sys.executable, "-c", "import select, sys; select.select([sys.stdin], [], [])"], True),
        (["sleep", "60"], False),
        ([sys.executable, "-c", SLEEP], False),
        ([sys.executable, "-c", OTHER], False),
        ([sys.executable, "-c", FULL], False),
    ],
)
def test_who_waits(tmp_path: Path, command: list[str], reads: bool) -> None:
    path = tmp_path / "stdin"
    os.mkfifo(path)
    source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(source, True)
    target = os.open(path, os.O_WRONLY)
    assert not wait_for_input(str(path))
    process = subprocess.Popen(command, stdin=source)
    call = Path(f"/proc/{process.pid}/syscall")
    seen: list[str] = []

    def stands_still() -> bool:
        """For ten looks in the same system call: it has started."""
        seen.append(call.read_text())
        return len(seen) > 10 and len(set(seen[-10:])) == 1 and seen[-1] != "running\n"

    try:
        wait_for(stands_still)
        assert wait_for_input(str(path)) is reads
    finally:
        process.kill()
        process.wait()
        os.close(source)
        os.close(target)
