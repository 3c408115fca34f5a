"""Starts a module of this package by path, for an interpreter that does not have shanty.

`python -I -S boot.py rank.exec ARGS…` runs `shanty.runtime.rank.exec.main(ARGS)`. It is kept
small because the file that Python is started with is compiled anew each time.
"""

import sys
from importlib import import_module
from os.path import dirname

sys.path.insert(0, dirname(dirname(dirname(__file__))))
sys.exit(import_module("shanty.runtime." + sys.argv[1]).main(sys.argv[2:]))
