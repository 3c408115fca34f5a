"""What the ranks of a task inherit of the process that calls it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runs import Shanty

pytestmark = pytest.mark.mpi

CALL = """
import os
import shanty

@shanty.task(ranks=1)
def seen():
    return sorted(name for name in os.environ if name.endswith(("PASSWORD", "MINE")))

print(seen(), "SHANTY_REGISTRY_PASSWORD" in os.environ)
"""


def test_a_registrys_password_stays_with_the_caller(shanty: Shanty) -> None:
    """As with `shanty run`, whose process ends; this one may have more to call."""
    done = subprocess.run(
        [sys.executable, shanty.script(CALL)],
        cwd=shanty.folder,
        env={**shanty.environ, "SHANTY_REGISTRY_PASSWORD": "secret", "MINE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == "['MINE'] True\n", done.stderr
