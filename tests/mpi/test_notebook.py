"""Notebooks with ranks: real kernels of Jupyter, and IPython at a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import environments
from runs import LONG, WORKERS, Shanty, wait_for

pytestmark = pytest.mark.mpi
SOURCE = Path(__file__).parents[2] / "src"


def driven(shanty: Shanty, *checks: str, **env: str) -> None:
    python = environments.environment("notebook", environments.NOTEBOOK, beside=sys.executable)
    done = subprocess.run(
        [python, WORKERS / "notebook_kernel.py", *checks],
        cwd=shanty.folder,
        env={
            **shanty.environ,
            "PYTHONPATH": str(SOURCE),
            "IPYTHONDIR": str(shanty.home / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(shanty.home / "jupyter"),
            **env,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
    )
    print(done.stderr[-10_000:])
    assert done.stdout.split("\n")[:-1] == [f"ok {name}" for name in checks], done.stderr[-3000:]


def test_cells(shanty: Shanty) -> None:
    driven(shanty, "basics")


@pytest.mark.skipif(not LONG, reason="takes long: SHANTY_TEST_LONG=1")
@pytest.mark.parametrize(
    "check", ["interrupts", "stuck", "broken", "idle", "killed", "two", "tasks", "refused"]
)
def test_kernels(shanty: Shanty, check: str) -> None:
    driven(shanty, check)


@pytest.mark.skipif(not LONG, reason="takes long: SHANTY_TEST_LONG=1")
def test_every_mpi(shanty: Shanty, flavour: str) -> None:
    driven(shanty, "basics", NOTEBOOK_ON=f"--mpi {flavour}")


@pytest.mark.skipif(not LONG, reason="takes long: SHANTY_TEST_LONG=1")
def test_ipython_at_a_terminal(shanty: Shanty) -> None:
    python = environments.environment("notebook", environments.NOTEBOOK, beside=sys.executable)
    with (shanty.folder / "out").open("wb+") as out:
        process = subprocess.Popen(
            [python, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=nocolor"],
            cwd=shanty.folder,
            env={
                **shanty.environ,
                "PYTHONPATH": str(SOURCE),
                "IPYTHONDIR": str(shanty.home / "ipython"),
            },
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

        def said() -> str:
            return (shanty.folder / "out").read_text()

        def type_in(text: str) -> None:
            assert process.stdin is not None
            process.stdin.write(text.encode())
            process.stdin.flush()

        type_in("%load_ext shanty\n%%ranks -n 2\nimport shanty\nprint(shanty.rank() + 40)\n\n\n")
        wait_for(lambda: "[0] 40\n" in said() and "[1] 41\n" in said(), 30, "no output")
        type_in("%%ranks\nimport time\nprint('at', 'work')\ntime.sleep(600)\n\n\n")
        wait_for(lambda: said().count("at work\n") == 2, 30, "no output")
        os.kill(process.pid, signal.SIGINT)
        wait_for(lambda: "KeyboardInterrupt" in said(), 30, "not interrupted")
        type_in("%%ranks\nshanty.size() + 55\n\n\n")
        wait_for(lambda: "57" in said(), 30, "no value")
        process.communicate(b"exit\n", timeout=30)
        assert process.returncode == 0, said()
