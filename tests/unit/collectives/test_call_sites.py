"""Where the user's code is."""

from __future__ import annotations

import gc
import subprocess
import sys

from shanty.collectives import call_sites

WITH_GARBAGE = """
import gc
import threading

from shanty.collectives import call_sites

call_sites.main_thread()
for _ in range(200):
    gc.disable()
    ring = [threading.local()]
    ring.append(ring)
    del ring
    gc.set_threshold(1)
    gc.enable()
    call_sites.main_thread()
    gc.set_threshold(700)
print("done")
"""


def test_nothing_is_collected_meanwhile() -> None:
    """What is collected then may need the lock that Python holds: before 3.12 for good."""
    done = subprocess.run(
        [sys.executable, "-c", WITH_GARBAGE], capture_output=True, text=True, timeout=30
    )
    assert done.stdout == "done\n", done.stderr


def test_who_collects_by_hand_goes_on_to() -> None:
    gc.disable()
    try:
        call_sites.main_thread()
        assert not gc.isenabled()
    finally:
        gc.enable()
    call_sites.main_thread()
    assert gc.isenabled()
