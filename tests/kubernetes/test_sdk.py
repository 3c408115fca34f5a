"""Tasks whose ranks are in pods: all checks, and another attempt where one may do better."""

from __future__ import annotations

import subprocess

import pytest
from kube_runs import UID, Kube

from runs import LONG, wait_for
from sdk_runs import NAMES, check, out, passed, started, up

SHORT = ("value", "each", "exception_of_main", "cancel")
FITTING = [name for name in NAMES if name != "arrays"]  # the image has no NumPy


@pytest.mark.timeout(1300)
def test_tasks(kube: Kube) -> None:
    options = {"on": "k8s", "image": kube.image, "uid": UID, "packages": "none"}
    names = FITTING if LONG else SHORT
    environ = {**kube.shanty.environ, **kube.env}
    output = check(kube.shanty.folder, environ, options, names, 1200)
    for name in names:
        passed(output, name)


SCRIPT = """
import sys, time
import shanty

@shanty.task(ranks=2, on="k8s", image=sys.argv[1], uid=int(sys.argv[2]), packages="none",
             retries=int(sys.argv[3]), memory_per_rank="192M", memory="x2", ranks_per_host=1)
def work(until, size):
    from mpi4py import MPI

    MPI.COMM_WORLD.barrier()
    print("up", flush=True)
    held = b"x" * size
    while time.time() < until:
        time.sleep(0.05)
    return MPI.COMM_WORLD.allreduce(len(held))

if __name__ == "__main__":
    try:
        print("value", work(time.time() + float(sys.argv[4]), int(sys.argv[5]) << 20))
    except shanty.RunError as error:
        print("error", repr(error.cause), error)
    print("runs", len(shanty.runs()))
"""


def start(kube: Kube, retries: int, *, seconds: int, size: int) -> subprocess.Popen[str]:
    """A call whose ranks hold so many MiB for at least so many seconds."""
    (kube.shanty.folder / "script.py").write_text(SCRIPT)
    words = ("script.py", kube.image, UID, retries, seconds, size)
    return started(kube.shanty.folder, {**kube.shanty.environ, **kube.env}, *words)


def all_up(kube: Kube, process: subprocess.Popen[str]) -> None:
    """Wait for the ranks; the call is ended where they do not come."""
    try:
        wait_for(lambda: up(run.path for run in kube.runs) == 2, 100, "it does not start")
    except BaseException:
        process.kill()
        raise


@pytest.mark.timeout(300)
@pytest.mark.parametrize("retries", [1, 0])
@pytest.mark.parametrize("how", ["deleted", "evicted"])
def test_a_pod_is_taken_away(kube: Kube, how: str, retries: int) -> None:
    process = start(kube, retries, seconds=40, size=1)
    all_up(kube, process)
    kube.take_away(kube.pod_of(kube.last), how)
    text = out(process)
    assert ("value 2097152" if retries else "error 'host'") in text, text
    assert f"runs {retries + 1}" in text


@pytest.mark.timeout(300)
@pytest.mark.parametrize("retries", [1, 0])
def test_out_of_memory(kube: Kube, retries: int) -> None:
    """The cluster kills a pod that goes beyond its limit; the next one's is twice as high."""
    text = out(start(kube, retries, seconds=0, size=220))
    assert (f"value {440 << 20}" if retries else "error 'memory'") in text, text
    assert f"runs {retries + 1}" in text


@pytest.mark.timeout(300)
def test_the_caller_is_killed(kube: Kube) -> None:
    """The run goes on, and whoever asks gets its value."""
    process = start(kube, 0, seconds=15, size=1)
    all_up(kube, process)
    process.kill()
    process.communicate()
    kube.await_state(kube.last, "succeeded")
    line = "import shanty; print(shanty.find().value())"
    environ = {**kube.shanty.environ, **kube.env}
    assert out(started(kube.shanty.folder, environ, "-c", line), 60) == "2097152\n"
