"""What the checks of workflow engines share."""

import sys
import time
import traceback
from pathlib import Path

import shanty

PATIENCE = 60.0  # seconds


def fail_once(folder: str) -> int:
    """For ranks: fails at the first attempt; returns the number of attempts."""
    place = Path(folder)
    if shanty.rank() == 0:
        (place / str(len([*place.iterdir()]))).touch()
        if len([*place.iterdir()]) < 2:
            raise RuntimeError("the first time")
    return len([*place.iterdir()])


def wait(folder: str) -> str:
    """For ranks: says that it waits, and is over when it may."""
    print("waits", flush=True)
    print("so it does", file=sys.stderr, flush=True)
    end = time.monotonic() + 120
    while not (Path(folder) / "go").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    return "over"


def wait_for(condition, what):
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.05)
    return found


def own_folder(name):
    made = Path(sys.argv[1]) / name
    made.mkdir()
    return made


def run_all(scope):
    """Run the checks of a module; prints `ok NAME` for each that has passed."""
    for name, check in [*scope.items()]:
        if name.startswith("check_"):
            try:
                check()
            except BaseException:  # noqa: BLE001
                print(f"failed {name}", flush=True)
                traceback.print_exc()
            else:
                print(f"ok {name}", flush=True)
