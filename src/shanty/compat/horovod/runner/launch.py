"""`horovodrun` as a module: `python -m horovod.runner.launch -np 4 python train.py`."""

from __future__ import annotations

import sys
from typing import NoReturn

from shanty.compat.starting import program


def run_commandline() -> NoReturn:
    """Run this process's arguments as a horovodrun line; SystemExit has its exit code."""
    import subprocess

    sys.exit(subprocess.run([*program(), "horovodrun", *sys.argv[1:]], check=False).returncode)


if __name__ == "__main__":
    run_commandline()
