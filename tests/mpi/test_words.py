"""A rank fails: the summary has the line, the text or the setting that it failed for."""

from __future__ import annotations

import sys

import pytest

from runs import Shanty

pytestmark = [pytest.mark.mpi]

CRASH = """
import ctypes
{}
def step():
    ctypes.string_at(0)
step()
"""


def run(shanty: Shanty, script: str, *words: str, code: int) -> str:
    """Run the script to its failure; what is said of it."""
    done = shanty("run", "-n", "2", "--oversubscribe", *words, shanty.script(script))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize("before", ["", "from mpi4py import MPI"])
def test_the_line_of_a_crash(shanty: Shanty, flavour: str, before: str) -> None:
    said = run(shanty, CRASH.format(before), "--mpi", flavour, code=139)
    assert "was ended by SIGSEGV" in said
    assert "why: in step (script.py:5)" in said
    log = shanty.last.rank_log(shanty.status()["failure"]["rank"]).read_text()  # type: ignore[index,call-overload]
    assert "Fatal Python error: Segmentation fault" in log
    assert 'File "script.py", line 5 in step' in log or "script.py" in log
    assert "shanty/runtime" not in log


def test_a_crash_that_the_script_looks_after_itself(shanty: Shanty) -> None:
    script = "import faulthandler, sys; faulthandler.enable(sys.stdout)" + CRASH.format("")
    done = shanty("run", "-n", "1", shanty.script(script))
    assert done.returncode == 139
    assert done.stdout.count("Fatal Python error") == 1
    assert "Fatal Python error" not in done.stderr


@pytest.mark.parametrize("before", ["", "from mpi4py import MPI\n"])
def test_the_text_of_an_exit(shanty: Shanty, flavour: str, before: str) -> None:
    script = before + "import sys; sys.exit('the data is not there')"
    assert "why: the data is not there" in run(shanty, script, "--mpi", flavour, code=1)


@pytest.mark.parametrize(
    ("module", "package"), [("cv2", "opencv-python-headless"), ("no_such_thing", "no_such_thing")]
)
def test_a_package_that_is_missing(shanty: Shanty, module: str, package: str) -> None:
    said = run(shanty, f"import {module}", code=1)
    assert f"why: ModuleNotFoundError: No module named '{module}'" in said
    assert f"{sys.executable} -m pip install {package}" in said


def test_a_part_of_a_package_is_missing(shanty: Shanty) -> None:
    assert "pip install" not in run(shanty, "import email.nothing", code=1)


SETTINGS = {
    "openmpi5": ("OMPI_MCA_btl", "tpc"),
    "openmpi4": ("OMPI_MCA_pml", "nothing"),
    "mpich": ("UCX_TLS", "nothing"),
    "intel": ("FI_PROVIDER", "nothing"),
}
JOIN = "from mpi4py import MPI; MPI.COMM_WORLD.barrier()"


@pytest.mark.parametrize("way", ["environment", "option"])
def test_a_setting_that_breaks_the_mpi(shanty: Shanty, flavour: str, way: str) -> None:
    name, value = SETTINGS[flavour]
    words = ["-e", f"{name}={value}"] if way == "option" else []
    more = {"I_MPI_FABRICS": "ofi"} if flavour == "intel" else {}  # else it takes shared memory
    done = shanty(
        *("run", "-n", "2", "--oversubscribe", "--mpi", flavour, *words, shanty.script(JOIN)),
        env={**more, **({name: value} if way == "environment" else {})},
    )
    assert done.returncode not in (0, 2), done.stdout + done.stderr
    assert f"{name}={value}" in done.stderr
    assert "see whether these settings are right" in done.stderr
    settings = done.stderr[done.stderr.index("these settings are not shanty's") :].splitlines()[0]
    assert settings.count("=") == 1 + len(more)


def test_settings_are_not_blamed_for_a_bug_of_the_script(shanty: Shanty) -> None:
    script = shanty.script("from mpi4py import MPI\nraise ValueError('a bug')")
    done = shanty("run", "-n", "2", "--oversubscribe", script, env={"OMPI_MCA_btl": "self,sm"})
    assert done.returncode == 1
    assert "OMPI_MCA_btl" not in done.stderr
