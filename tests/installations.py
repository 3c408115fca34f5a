"""The MPIs that tests start: prefixes in the folder named by SHANTY_TEST_MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation


@cache
def installations() -> dict[str, Installation]:
    """The installed flavours by name; the folder has one prefix each, named as the flavour.

    Found by the files of each flavour alone, so that these tests depend on no other part.
    """
    folder = Path(os.environ.get("SHANTY_TEST_MPI", "~/.shanty/mpi")).expanduser()
    found = {}
    for name, flavour in FLAVOURS.items():
        prefix = (folder / name).resolve()
        if name == "openmpi5" and not prefix.exists():
            prefix = Path(sys.prefix)  # the wheel that came with shanty
        launchers = [prefix / "bin" / launcher for launcher in flavour.launcher_names]
        libraries = [prefix / "lib" / library for library in flavour.library_names]
        launcher = next((path for path in launchers if path.exists()), None)
        library = next((path for path in libraries if path.exists()), None)
        if launcher is not None and library is not None:
            found[name] = Installation(
                name, "unknown", str(prefix), str(launcher), str(library), "shanty"
            )
    return found


def compiled(folder: Path, flavour: str, text: str) -> Path:
    """A C program, built for that MPI; skips where there is no compiler."""
    builder = "mpich" if flavour == "intel" else flavour  # MPICH's makes the same ABI
    found = installations().get(builder)
    compiler = Path(found.prefix if found else "/none", "bin", "mpicc")
    if shutil.which("cc") is None or not compiler.exists():
        pytest.skip("no C compiler")
    source, program = folder / "program.c", folder / "program"
    source.write_text(text)
    subprocess.run([compiler, "-O1", source, "-o", program], check=True)
    return program
