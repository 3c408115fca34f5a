"""A rank fails: the summary has the line, the text or the setting that it failed for."""

from __future__ import annotations

import os
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


def test_one_that_starts_mpi_later(shanty: Shanty) -> None:
    """Open MPI takes the handlers away from both; MPICH leaves them alone."""
    script = "import faulthandler, sys; faulthandler.enable(sys.stdout)\nfrom mpi4py import MPI\n"
    done = shanty("run", "--mpi", "mpich", "-n", "1", shanty.script(script + CRASH.format("")))
    assert done.stdout.count("Fatal Python error") == 1, done.stderr


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


REFUSALS = {
    "crlf": ("#!/bin/sh\r\necho hi\r\n", 0o755, "its lines end as on Windows", "sed -i"),
    "mode": ("#!/bin/sh\necho hi\n", 0o644, "it may not be executed", "chmod +x"),
    "gone": ("#!/no/such/sh\necho hi\n", 0o755, "names /no/such/sh, which does not exist", ""),
    "text": ("echo hi\n", 0o755, "without a first line such as #!/bin/sh", "write that line"),
    "empty": ("", 0o755, "it is empty", ""),
    "ring.c": ("int main(void) { return 0; }\n", 0o644, "the text of a program", "mpicc ./ring.c"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", REFUSALS)
def test_a_program_that_cannot_be_started(shanty: Shanty, name: str) -> None:
    text, mode, why, fix = REFUSALS[name]
    path = shanty.folder / name
    path.write_bytes(text.encode())
    path.chmod(mode)
    done = shanty("run", "-n", "1", f"./{name}")
    assert done.returncode in (126, 127), done.stderr
    assert why in done.stderr
    assert fix in done.stderr


def test_a_program_of_this_folder_without_its_dot(shanty: Shanty) -> None:
    path = shanty.folder / "my-solver"
    path.write_text("#!/bin/sh\necho hi\n")
    path.chmod(0o755)
    assert "write ./my-solver" in shanty("run", "-n", "1", "my-solver").stderr


def test_a_file_in_the_place_of_a_package(shanty: Shanty) -> None:
    (shanty.folder / "random.py").write_text("number = 4\n")
    said = run(shanty, "import random; random.random()", code=1)
    assert "rename random.py: it is found in the place of the package random" in said
    (shanty.folder / "mpi4py.py").write_text("")
    assert "rename mpi4py.py" in run(shanty, "from mpi4py import MPI", code=1)


def test_a_module_that_is_not_there(shanty: Shanty) -> None:
    (shanty.folder / "training.py").write_text("")
    done = shanty("run", "-n", "1", "-m", "trainign")
    assert done.returncode == 1
    assert "No module named trainign" in done.stderr
    assert "did you mean -m training?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_in_the_place_of_a_program(shanty: Shanty) -> None:
    shanty.script("print(1)", "train.py")
    done = shanty("horovodrun", "-np", "1", "train.py")
    assert done.returncode == 127
    assert "write python train.py" in done.stderr


def test_more_ranks_in_a_line_than_slots(shanty: Shanty, flavour: str) -> None:
    count = (os.cpu_count() or 1) * 2
    words = ("-np", str(count), "hostname")
    done = shanty("run", "--mpi", flavour, "--", "mpirun", *words)
    if flavour.startswith("openmpi"):
        assert done.returncode == 1
        assert "fix: add --oversubscribe to the line, after mpirun" in done.stderr
    else:  # they take any number
        assert done.returncode == 0, done.stderr
    done = shanty("run", "--mpi", flavour, "--", "mpirun", "--oversubscribe", *words)
    assert done.returncode == 0, done.stderr
