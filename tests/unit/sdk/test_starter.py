"""A task that comes out of a pickle, in a process that knows nothing of it, can start runs."""

from __future__ import annotations

import pickle
import subprocess
import sys

from shanty.tasks.task import Task

PROGRAM = """
import pickle, sys
task = pickle.loads(sys.stdin.buffer.read())
assert "shanty.sdk" not in sys.modules and "shanty.client" not in sys.modules
try:
    task.with_options(memory="x2").submit(1)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_pickled_task_submits() -> None:
    data = pickle.dumps(Task(len, {}))
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=data, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"UsageError memory='x2' needs a memory"), done.stdout
