"""Another attempt on this machine, where its agents are all that can be lost."""

from __future__ import annotations

import contextlib
import os
import signal

from runs import wait_for

AGAIN = """
import os, time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if "SHANTY_ATTEMPT_DIR" in os.environ:
    print("again", flush=True)
else:
    time.sleep(300)
"""


def test_requests_while_one_attempt_makes_way_for_the_next(shanty, flavour):
    """They wake the controller by a signal, which must never end it."""
    script = shanty.script(AGAIN)
    process = shanty.start("run", "--mpi", flavour, "-n", 2, "--retries", 1, script)
    wait_for(lambda: shanty.status().get("joined") == 2)
    agents = shanty.agents()
    os.kill(agents["node_agent"], signal.SIGKILL)

    def done() -> bool:
        for _ in range(100):
            with contextlib.suppress(ProcessLookupError):
                os.kill(agents["controller"], signal.SIGUSR1)
        return process.poll() is not None

    wait_for(done, 60, "it does not end")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.count(b"again") == 2
    assert b"attempt 2 of 2" in err
    assert shanty.status()["attempt"] == 2
