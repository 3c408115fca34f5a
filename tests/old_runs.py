"""Run directories that an older version has written, put into a home."""

from __future__ import annotations

import sys
from pathlib import Path

from shanty.runtime.rundir import RunDir

FIXTURES = Path(__file__).parent / "fixtures" / "runs"
NAMES = sorted(path.name for path in FIXTURES.iterdir())
SCRIPTS = {
    "train.py": """
import sys
from mpi4py import MPI
print("sum", MPI.COMM_WORLD.allreduce(1), flush=True)
if "fail" in sys.argv and MPI.COMM_WORLD.rank == 1:
    sys.exit(3)
""",
    "gate.py": "print('begins', flush=True)\n",
}


def old_run(name: str, home: Path, workspace: Path) -> RunDir:
    """The run of that name, in `home`; its scripts are in `workspace`."""
    (source,) = (FIXTURES / name).iterdir()
    run = RunDir(home / "runs" / source.name)
    values = {
        "@HOME@": str(home),
        "@WORKSPACE@": str(workspace),
        "@PYTHON@": sys.executable,
        "@TREE@": str(Path(__file__).parents[1]),
    }
    run.create()
    run.reserve.unlink()
    for path in sorted(source.rglob("*")):
        if path.is_file():
            text = path.read_text()
            for token, value in values.items():
                text = text.replace(token, value)
            copy = run.path / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text)
    for file, text in SCRIPTS.items():
        (workspace / file).write_text(text)
    return run
