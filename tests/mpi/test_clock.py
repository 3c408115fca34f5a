"""A clock that is set while a run is on: what takes time is measured by one that never jumps."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from runs import Shanty, wait_for

# In place of the C library's: once a file is there, the clock that tells the date is off.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    const char *file = getenv("CLOCK_IS_OFF"), *seconds = getenv("CLOCK_OFF_BY");
    if (clock == CLOCK_REALTIME && file && seconds && access(file, F_OK) == 0)
        now->tv_sec += atol(seconds);
    return code;
}
"""
SCRIPT = """
import os, time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
print("on", time.time() > 0, flush=True)
while not os.path.exists(os.environ["CLOCK_IS_OFF"]): time.sleep(0.01)
before = time.monotonic()
while time.monotonic() < before + 2: time.sleep(0.01)
"""


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    """A library that shifts the clock."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    return library


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_clock_that_jumps(shanty: Shanty, flavour: str, clock: Path, seconds: int) -> None:
    off = clock.with_name("off")
    shifted = {
        "LD_PRELOAD": str(clock), "CLOCK_IS_OFF": str(off), "CLOCK_OFF_BY": str(seconds)
    }  # fmt: skip
    process = shanty.start(
        "run", "--mpi", flavour, "-n", 2, "--time-limit", "60", "--stall-after", "20s",
        shanty.script(SCRIPT), env=shifted,
    )  # fmt: skip
    wait_for(lambda: shanty.status().get("joined") == 2 or process.poll() is not None)
    off.touch()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    took = float(err.decode().partition("succeeded after ")[2].partition(" s")[0])
    assert 2 <= took < 1800  # half the jump
    (row,) = map(json.loads, shanty("ps", "-a", "--json").stdout.splitlines())
    status = row.get("status", row)
    assert 2 <= status["lasted"] < 1800
    assert abs(status["ended"] - status["started"] - seconds) < 1800  # the clock did jump
    shown = shanty("ps", "-a", env=shifted).stdout.splitlines()[-1]
    assert f" {status['lasted']:.0f} s " in shown
