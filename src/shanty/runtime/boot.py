"""Starts a module of this package by path, for an interpreter that does not have shanty.

`python -I -S boot.py rank.exec ARGS…` runs `shanty.runtime.rank.exec.main(ARGS)`. It is kept
small because Python compiles the file that it is started with each time.
"""

import sys
from importlib import import_module
from os import environ
from os.path import dirname

# What the agents are called on command lines. Other versions of shanty look for these names: those
# in pods, on hosts and in the process of a run that is on while shanty is upgraded.
PROGRAMS = {
    "agent.start": "controller.start",
    "agent.attempts": "controller.attempts",
    "agent.container_lead": "controller.container_lead",
    "agent.container_entry": "node.container_entry",
    "agent.worker_agent": "node.worker_agent",
    "slurm.batch": "slurm.first_node",
    "slurm.word": "slurm.ending_reason",
}

# A portable Python is started by a script (`containers/portable_python.py`), and only by that.
sys.executable = environ.get("SHANTY_PORTABLE_PYTHON", sys.executable)
sys.path.insert(0, dirname(dirname(dirname(__file__))))
name = PROGRAMS.get(sys.argv[1], sys.argv[1])
sys.exit(import_module("shanty.runtime." + name).main(sys.argv[2:]))
