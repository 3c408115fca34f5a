"""shanty.xgboost on real ranks: every way to a matrix, training, and what goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launches import FLAVOURS, WORKERS, Launches, bare, environment, passed
from runs import Shanty

for needed in ("xgboost", "pyarrow", "sklearn", "pandas"):
    pytest.importorskip(needed)
pytestmark = [pytest.mark.mpi, pytest.mark.sampled, pytest.mark.timeout(300)]

BOUND = 10.0  # seconds from a rank's end to that of the run


def check(launches: Launches, flavour: str, ranks: int, *modules: str) -> str:
    """What the run says on stderr, with a folder of its own for the checks' files."""
    folder = launches.scratch / f"{modules[0]} {flavour} {ranks}"
    folder.mkdir(exist_ok=True)
    return launches.check(flavour, ranks, "mpi", *modules, arguments=[str(folder)]).stderr


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_way_to_a_matrix_and_training(launches: Launches, flavour: str) -> None:
    ranks = 3 if flavour.startswith("openmpi") else 2  # Hydra's ranks poll: three take a minute
    stderr = check(launches, flavour, ranks, "xgb_data", "xgb_training", "xgb_alike")
    said = "b.libsvm: files beside it are used: .weight, .base_margin"
    assert stderr.count(said) == 1, stderr


def test_one_rank(launches: Launches) -> None:
    """No tracker is needed, and no other rank waited for."""
    check(launches, "openmpi5", 1, "xgb_data")


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_rank_is_killed(shanty: Shanty, flavour: str) -> None:
    lost(shanty, flavour, "kill", 1)


@pytest.mark.parametrize(("how", "who"), [("kill", 0), ("raise", 2)])
def test_a_rank_that_goes(shanty: Shanty, how: str, who: int) -> None:
    """Of rank 0, with which the tracker goes, and by an error of its own."""
    lost(shanty, "openmpi5", how, who)


def lost(shanty: Shanty, flavour: str, how: str, who: int) -> None:
    """The run ends soon, and tells of the rank that went."""
    words = ["--mpi", flavour, "-n", "3", "--oversubscribe", WORKERS / "xgb_lost.py", how, who]
    done = shanty("run", *map(str, words))
    ended = time.time()
    assert done.returncode, done.stdout
    assert f"rank {who} on " in done.stderr, done.stderr
    assert ("my mistake" if how == "raise" else "SIGKILL") in done.stderr, done.stderr
    log = (shanty.last.logs / f"rank-{who}.log").read_text(errors="replace")
    going = next(line for line in log.splitlines() if line.endswith("going"))
    assert ended - float(going.split()[0]) < BOUND


def test_under_a_plain_mpirun(tmp_path: Path) -> None:
    done = bare(2, "run_checks.py", "mpi", "xgb_data", str(tmp_path))
    passed(done, "check_it_goes_on")
    assert done.returncode == 0, done.stderr


@pytest.mark.sampled(9)  # its run is one of the guide's, too
def test_the_example(shanty: Shanty) -> None:
    """The same accuracy on two ranks as on one; the metrics are with the run."""
    script = Path(__file__).parents[2] / "examples" / "xgboost" / "digits.py"
    reached = []
    for ranks in ("1", "2"):
        done = shanty("run", "-q", "-n", ranks, script, "--rounds", "20", "--max-depth", "3")
        assert done.returncode == 0, done.stderr
        reached.append(float(done.stdout.split("test accuracy ")[1].split()[0]))
        assert '"test-merror"' in shanty.last.metrics.read_text()
        assert (shanty.last.artifacts / "digits.json").exists()
    assert reached[0] > 0.9
    assert abs(reached[1] - reached[0]) < 0.025  # five standard deviations, as for other examples


def alone(code: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run some Python as one plain process."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment(OMPI_MCA_btl="self", **extra),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_one_plain_process(tmp_path: Path) -> None:
    data = tmp_path / "a.libsvm"
    data.write_text("".join(f"{each % 2} 0:{each}\n" for each in range(50)))
    code = f"import shanty.xgboost as xgb; d = xgb.DMatrix({str(data)!r}); "
    code += "b = xgb.train({'objective': 'binary:logistic'}, d, 2); print(xgb.size(), d.num_row())"
    done = alone(code)
    assert done.stdout == "1 50\n", done.stderr


def test_after_mpi_has_ended() -> None:
    code = "from mpi4py import MPI; MPI.Finalize(); import shanty.xgboost as xgb; xgb.init()"
    done = alone(code)
    assert "MPI has been finalised" in done.stderr


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["which is not installed", "pip install"]),
        ({"__init__.py": "__version__ = '1.7.6'"}, ["needs XGBoost 3.0", "pip install"]),
        (
            {
                "__init__.py": "__version__ = '2.1.4'",
                "collective.py": "",
                "tracker.py": "",
            },
            ["needs XGBoost 3.0", "2.1.4", "pip install"],
        ),
    ],
    ids=["none", "1.7", "2.1"],
)
def test_another_xgboost(tmp_path: Path, files: dict[str, str], words: list[str]) -> None:
    package = tmp_path / "xgboost"
    for name, text in files.items():
        package.mkdir(exist_ok=True)
        (package / name).write_text(text)
    hide = "" if files else "import sys; sys.modules['xgboost'] = None; "
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    done = alone(hide + "import shanty.xgboost as xgb; xgb.init()", PYTHONPATH=path)
    assert done.returncode == 1
    for word in words:
        assert word in done.stderr, done.stderr
