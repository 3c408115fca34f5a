"""Starts a module of this package by path, for an interpreter that does not have shanty.

`python -I -S boot.py rank.exec ARGS…` runs `shanty.runtime.rank.exec.main(ARGS)`. It is kept
small because the file that Python is started with is compiled anew each time.
"""

import sys
from importlib import import_module
from os import environ
from os.path import dirname

# A portable Python is started by a script (`containers/portable_python.py`), and only by that.
sys.executable = environ.get("SHANTY_PORTABLE_PYTHON", sys.executable)
sys.path.insert(0, dirname(dirname(dirname(__file__))))
sys.exit(import_module("shanty.runtime." + sys.argv[1]).main(sys.argv[2:]))
