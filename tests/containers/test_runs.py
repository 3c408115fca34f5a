"""Ranks in a container on this machine: real engines, real MPIs, an image with Python only."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import engines
from engines import ContainedShanty, long_only
from runs import accuracy, wait_for
from shanty.runtime.rundir import read_json

HELLO = """
import os, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
assert comm.allreduce(1) == comm.size
print(f"{comm.rank} of {comm.size} by {MPI.Get_library_version()[:12]!r} in {os.getcwd()}")
"""
ROOT = Path(__file__).parents[2]


def test_every_mpi_joins_and_passes_large_messages(shanty: ContainedShanty, flavour: str) -> None:
    shanty.passes_large_messages(flavour)
    status = shanty.status()
    assert (status["state"], status["joined"]) == ("succeeded", 2)
    assert (read_json(shanty.last.job) or {})["image"] == shanty.engine.image


def test_files_are_the_callers_and_in_the_workspace(shanty: ContainedShanty) -> None:
    shanty.script(
        "import pathlib, shanty\n"
        "pathlib.Path('out.txt').write_text('x')\n"
        "(shanty.artifacts() / 'model').write_text('y')\n"
    )
    done = shanty.in_container("-n", "1", "script.py")
    assert done.returncode == 0, done.stderr
    for path in (shanty.folder / "out.txt", shanty.last.artifacts / "model"):
        assert path.stat().st_uid == os.getuid()


def test_the_image_is_what_is_around_the_ranks(shanty: ContainedShanty) -> None:
    """Not this machine's files, nor its home, nor its environment; but cores and umask."""
    cores, mask = os.sched_getaffinity(0), os.umask(0o027)
    os.sched_setaffinity(0, {max(cores)})
    done = shanty.in_container(
        "-n", "1", "-e", "GIVEN=1", "sh", "-c",
        "grep Cpus_allowed_list /proc/self/status; umask; touch $SHANTY_RUN_DIR/artifacts/x; "
        "echo home $HOME; touch $HOME/x && echo written; echo given $GIVEN leaked $LEAKED; "
        "df -k /dev/shm | tail -1",
        env={"LEAKED": "1"},
    )  # fmt: skip
    os.sched_setaffinity(0, cores)
    os.umask(mask)
    assert "0027\n" in done.stdout
    assert not (shanty.last.artifacts / "x").stat().st_mode & 0o027
    assert f"Cpus_allowed_list:\t{max(cores)}\n" in done.stdout
    assert done.returncode == 0, done.stderr
    assert "written" in done.stdout
    assert re.search(r"given 1 leaked\s*$", done.stdout, re.MULTILINE)
    assert f"home {Path.home()}" not in done.stdout
    size = int(re.search(r"(\d+)\s+\d+\s+\d+\s+\d+%\s+/dev/shm", done.stdout)[1])  # type: ignore[index]
    assert size > 256 << 10  # KiB; Docker's own would be 64 MiB


def test_exit_codes_tracebacks_and_input_pass(shanty: ContainedShanty) -> None:
    shanty.script("import sys\nprint(sys.stdin.read().upper())\nsys.exit(7)\n")
    done = shanty.in_container("-n", "1", "script.py", stdin=b"read me")
    assert done.returncode == 7
    assert "READ ME" in done.stdout
    shanty.script("raise ValueError('seen')\n")
    done = shanty.in_container("-n", "2", "script.py")
    assert done.returncode == 1
    assert "ValueError: seen" in done.stderr


def test_programs_write_to_a_terminal(shanty: ContainedShanty) -> None:
    """Of C, Perl and Python in a shell the last line before a crash is there, unchanged."""
    line = r"test -t 1 && printf 'a\r\nb\r\004\n' && exec python3 -I script.py"
    shanty.script("import os\nprint('the last line')\nos.kill(os.getpid(), 11)\n")
    done = shanty.in_container("-q", "-n", "1", "bash", "-c", line)
    assert done.returncode == 139, done.stderr
    data = shanty.last.rank_log(0).read_bytes()
    assert b"\r\004\n" in data
    assert b"the last line\n" in data


def test_mounts_and_what_they_may_do(shanty: ContainedShanty, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").write_text("1,2")
    done = shanty.in_container(
        "-n", "1", "--mount", f"{tmp_path}/data:/data:ro", "--mount", f"{tmp_path}:/storage",
        "sh", "-c", "cat /data/x.csv; touch /data/y || echo refused; touch /storage/z",
    )  # fmt: skip
    assert "1,2" in done.stdout, done.stderr
    assert "refused" in done.stdout
    assert (tmp_path / "z").exists()
    assert not (tmp_path / "data" / "y").exists()


def test_what_is_not_there(shanty: ContainedShanty) -> None:
    done = shanty.in_container("-n", "1", "--mount", "/no/such:/data", "hostname")
    assert done.returncode == 66
    assert "/no/such, which is to be mounted, not found" in done.stderr
    done = shanty.in_container("-n", "2", "--mpi", "image", "hostname")
    assert done.returncode == 69
    assert "has no MPI" in done.stderr


@long_only
def test_the_users_own_line_runs_in_the_container(shanty: ContainedShanty, flavour: str) -> None:
    shanty.script(HELLO, "main.py")
    for hostfile in ("$HOSTFILE", "/generated/hostfile", "/kube-openmpi/generated/hostfile"):
        line = (
            f"mpirun --allow-run-as-root -np 2 --hostfile {hostfile} -bind-to none -map-by slot "
            "-mca pml ob1 -mca btl ^openib python main.py"
        )
        done = shanty.in_container("--mpi", shanty.use(flavour), "--", *line.split())
        assert done.returncode == 0, done.stderr
        assert "0 of 2" in done.stdout
        assert "1 of 2" in done.stdout


def test_the_images_own_mpi(shanty: ContainedShanty) -> None:
    image = shanty.engine.load(engines.OPENMPI)
    shanty.script(HELLO, "main.py")
    line = (
        "mpirun --allow-run-as-root -np 2 --hostfile $HOSTFILE -bind-to none -map-by slot "
        "-mca pml ob1 -mca btl ^openib python3 main.py"
    )
    words = ("--image", image, "--runtime", shanty.engine.name)
    words += ("--mpi", "image", "--packages", "none")
    for command in (("-n", "2", "main.py"), ("--", *line.split())):
        done = shanty("run", *words, *command)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("of 2 by 'Open MPI v4.") == 2


def test_an_image_without_python_and_without_a_libc(shanty: ContainedShanty) -> None:
    """shanty's own Python runs there all the same, and tells what does not."""
    image = shanty.engine.load(engines.SHELL)
    done = shanty("run", "--image", image, "--runtime", shanty.engine.name, "-n", "2", "hostname")
    assert done.returncode == 69
    assert "without glibc" in done.stderr


def test_an_image_that_nobody_has(shanty: ContainedShanty) -> None:
    if shanty.engine.name == "apptainer":
        pytest.skip("a name is pulled, which needs a registry")
    words = ("--image", "no.such.registry/x:1", "--runtime", shanty.engine.name, "ls")
    done = shanty("run", "--dry-run", *words)
    assert done.returncode == 66
    assert "is not there yet" in done.stderr
    done = shanty("run", *words)
    assert done.returncode == 69
    assert "the image no.such.registry/x:1 cannot be pulled" in done.stderr
    assert "fix:" in done.stderr


def test_a_second_run_prepares_nothing(shanty: ContainedShanty) -> None:
    shanty.script(HELLO)
    for _ in range(2):
        done = shanty.in_container("-n", "2", "script.py")
        assert done.returncode == 0, done.stderr
    assert "looks into" not in done.stderr


def test_dry_run_shows_the_image_and_starts_nothing(shanty: ContainedShanty) -> None:
    before = set(shanty.home.glob("runs/*"))
    done = shanty.in_container("--dry-run", "-n", "2", "hostname")
    assert done.returncode == 0, done.stderr
    assert f"# image   {shanty.engine.image}, by {shanty.engine.name}" in done.stdout
    assert set(shanty.home.glob("runs/*")) == before


def test_stacks_signals_and_stop_reach_into_the_container(shanty: ContainedShanty) -> None:
    shanty.script(
        "import signal, time\nfrom mpi4py import MPI\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('saved', flush=True))\n"
        "MPI.COMM_WORLD.barrier()\nprint('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    done = shanty.in_container("-d", "-n", "2", "script.py")
    assert done.returncode == 0, done.stderr
    run = done.stdout.strip()
    log = shanty.last.rank_log(1)
    wait_for(lambda: log.exists() and "up" in log.read_text(errors="replace"), 30, "ranks")
    stacks = shanty("stacks", run)
    assert stacks.returncode == 0, stacks.stderr
    assert "ranks 0-1:" in stacks.stdout
    assert "script.py:6" in stacks.stdout
    passed = shanty("signal", run)
    assert "SIGUSR1 was passed on to ranks 0, 1" in passed.stdout + passed.stderr
    wait_for(lambda: "saved" in log.read_text(errors="replace"), 30, "the signal")
    assert shanty("stop", run).returncode == 0
    assert read_json(shanty.last.status)["state"] == "stopped"  # type: ignore[index]


@long_only
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_digits(shanty: ContainedShanty) -> None:
    """Real data and PyTorch, in an image that has neither: the environment of here goes with it."""
    pytest.importorskip("torch")
    done = shanty(
        "run", *shanty.image_words, "-C", ROOT, "-n", "2", "examples/digits.py", "--epochs", "5",
        timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert accuracy(done.stdout) > 0.9
