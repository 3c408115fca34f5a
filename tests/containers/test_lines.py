"""Lines that start a container in each rank: one world, or an end with the line to use instead."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from engines import ContainedShanty
from runs import wait_for

only_docker = pytest.mark.parametrize("engine", ["docker"], indirect=True)
WAITS = "import time; print('up', flush=True); time.sleep(600)"  # PID 1 does not hear SIGTERM


@only_docker
def test_a_line_whose_ranks_would_be_alone_is_refused(shanty: ContainedShanty) -> None:
    image = shanty.engine.image
    for words in (
        ("docker", "run", "--rm", "-v", "/data:/data:ro", image, "python3", "x.py"),
        ("bash", "-c", f"docker run --rm -v /data:/data:ro {image} python3 x.py || true"),
    ):
        done = shanty("run", "-n", "2", *words, timeout=60)
        assert done.returncode == 2, done.stderr
        assert "cannot run `docker run` in each of 2 ranks" in done.stderr
        line = f"shanty run --image {image} --mount /data:/data:ro -n 2 python3 x.py"
        assert line in done.stderr
        assert "up" not in done.stdout
    helped = "import subprocess; subprocess.run(['docker', 'run', '--rm', {!r}, 'id', '-u'])"
    done = shanty("run", "-n", "2", "python", "-c", helped.format(image), timeout=60)
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["0", "0", "[0]", "[1]"])


def test_containers_of_ranks_end_with_the_run(shanty: ContainedShanty) -> None:
    """Each is a child of the engine, not of its rank; here they do not end when they are asked."""
    if shanty.engine.name == "apptainer":
        pytest.skip("its containers are processes of the rank")
    words = (shanty.engine.name, "run", "--network", "host")
    removed, kept = ("--rm",), ("--name", "kept-for-its-log")
    before = _runs(shanty)
    cli = shanty.start(
        "run", "--alone", "ok", "-n", "2", "bash", "-c",
        f'[ $RANK = 0 ] && set -- {" ".join(removed)} || set -- {" ".join(kept)}; '
        f'exec {" ".join(words)} "$@" {shanty.engine.image} python3 -c "{WAITS}"',
    )  # fmt: skip
    wait_for(lambda: _runs(shanty) - before and _both_up(shanty), 60, "two containers")
    cli.send_signal(signal.SIGINT)
    _, err = cli.communicate(timeout=40)
    assert cli.returncode == 130, err.decode()
    assert not shanty.engine.containers()


def _runs(shanty: ContainedShanty) -> set[Path]:
    return set((shanty.home / "runs").glob("*"))


def _both_up(shanty: ContainedShanty) -> bool:
    logs = shanty.last.rank_logs()
    return len(logs) == 2 and all(b"up" in Path(path).read_bytes() for path in logs.values())


@pytest.mark.parametrize("engine", ["apptainer"], indirect=True)
def test_a_container_that_shares_all_joins_the_world(shanty: ContainedShanty) -> None:
    shanty.script("from mpi4py import MPI\nprint(MPI.COMM_WORLD.rank, 'of', MPI.COMM_WORLD.size)\n")
    folders = dict.fromkeys((sys.prefix, sys.base_prefix, str(Path(__file__).parents[2])))
    for more, code in (((), 0), (("--cleanenv",), 2)):
        line = ("apptainer", "exec", *more, "-B", ",".join(folders), shanty.engine.image)
        program = (sys.executable, shanty.folder / "script.py")
        done = shanty("run", "--", "mpirun", "-np", "2", *line, *program, timeout=60)
        assert "0 of 1" not in done.stdout
        assert done.returncode == code, done.stderr
    assert "leave out the options that clear the environment" in done.stderr
