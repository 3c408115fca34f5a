"""Loses the ranks that its second argument lists: killed, or by an exception. The others sleep."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from mpi4py import MPI

how, ranks = sys.argv[1:]
status = Path(os.environ["SHANTY_RUN_DIR"]) / "status.json"
while json.loads(status.read_text())["state"] != "running":
    time.sleep(0.01)
if str(MPI.COMM_WORLD.rank) in ranks.split(","):
    if how == "exception":
        raise ValueError("planted")
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(100)
