"""Ctrl-C while the program is being imported: no traceback, and nothing for other programs."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

CODE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
sys.argv = [{name!r}, "ps"]
import {module}
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("module", ["shanty._interrupt", "shanty.program"])
def test_ctrl_c_during_imports(module: str) -> None:
    for name, code in (("/x/shanty", 130), ("/x/other.py", -signal.SIGINT)):
        words = [sys.executable, "-c", CODE.format(name=name, module=module)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert ("KeyboardInterrupt" in done.stderr) == (code < 0)
