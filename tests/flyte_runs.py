"""Workflows run by `shanty flyte run`, in the Python of an environment with the real flytekit."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import environments
from runs import WORKERS

SOURCE = Path(__file__).parents[1] / "src"
TASKS = "flyte_tasks.py"
Done = subprocess.CompletedProcess[str]


def environ(home: Path, **more: str) -> dict[str, str]:
    """The environment of `shanty flyte run` with a home of its own, for flytekit's cache as well.

    `home` is shanty's.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMPI_", "SHANTY_", "FLYTE_")) and name != "VIRTUAL_ENV"
    }
    own = home.parent / "user"
    own.mkdir(exist_ok=True)
    (own / "tmp").mkdir(exist_ok=True)
    return {
        **kept,
        "SHANTY_HOME": str(home),
        "HOME": str(own),
        "TMPDIR": str(own / "tmp"),  # where flytekit keeps data
        "PYTHONPATH": str(SOURCE),
        "FLYTE_SDK_LOGGING_LEVEL": "40",
        **more,
    }


def flyte(home: Path, folder: Path, *words: str | Path, timeout: float = 150, **more: str) -> Done:
    """Run `shanty flyte run WORDS…` in a folder to its end."""
    process = subprocess.Popen(
        [environments.flyte(), "-m", "shanty", "flyte", "run", *map(str, words)],
        cwd=folder,
        env=environ(home, **more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate(timeout=30)
        raise AssertionError(f"hangs: {words}\n{out}\n{err}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def value(done: Done) -> str:
    """What the workflow has returned."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def manifest(
    task: str, inputs: Mapping[str, object], folder: Path, image: str, python: str, *code: Path
) -> str:
    """The MPIJob that flytekit's plugin sends for a task of TASKS; inputs are put into `folder`.

    `code` is an archive of the code, where it is not in the image.
    """
    return _plugin("manifest", task, folder, json.dumps(inputs), image, python, *code)


def outputs(task: str, folder: Path) -> dict[str, str]:
    """What Flyte's own program, in the ranks of such an MPIJob, has left there."""
    found: dict[str, str] = json.loads(_plugin("outputs", task, folder))
    return found


def _plugin(what: str, task: str, *words: str | Path) -> str:
    program = Path(__file__).with_name("flyte_plugin.py")
    line = [environments.flyte(), program, what, TASKS.removesuffix(".py"), task, *words]
    done = subprocess.run(
        [str(word) for word in line],
        cwd=WORKERS, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The files of a folder by HTTP, on loopback; yields the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
