"""Programs that know nothing of shanty: mpi4py.futures, MLX, and ChainerMN in test_chainermn."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from environments import MLX, environment
from runs import WORKERS, Shanty, mpi_folder
from shanty.runtime.mpi.flavours import FLAVOURS

pytestmark = [pytest.mark.mpi, pytest.mark.xdist_group("programs")]

OPENMPI = ("openmpi5", "openmpi4")

# ----------------------------------------------------------------------- mpi4py.futures

SQUARE = """
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor, MPIPoolExecutor

def square(x):
    return x * x, MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

def show(results):
    squares, ranks, sizes = zip(*results)
    print("squares", *squares)
    print("by", *sorted(set(ranks)), "of", *set(sizes))
"""
POOL = """
if __name__ == "__main__":
    with MPIPoolExecutor({}) as pool:
        show(pool.map(square, range(30)))
"""
IN_A_WORLD = """
with MPICommExecutor(MPI.COMM_WORLD, root=0) as pool:
    if pool is not None:
        show(pool.map(square, range(30)))
"""
SQUARES = "squares " + " ".join(str(x * x) for x in range(30))


def futures(
    shanty: Shanty, flavour: str, ranks: int, *words: str | Path
) -> subprocess.CompletedProcess[str]:
    options = ["-q", "--mpi", flavour, "-n", str(ranks), "--oversubscribe"]
    return shanty("run", *options, *words, timeout=60)


def check_squares(done: subprocess.CompletedProcess[str], world: int) -> None:
    """All results in order, by workers of a world of so many ranks."""
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.removeprefix("[0] ") for line in done.stdout.splitlines()]
    assert lines[0] == SQUARES
    workers, _, size = lines[1].removeprefix("by ").partition(" of ")
    assert int(size) == world
    assert set(map(int, workers.split())) <= set(range(world))


def test_a_pool_of_the_runs_ranks(shanty: Shanty, flavour: str) -> None:
    script = shanty.script(SQUARE + POOL.format(""))
    check_squares(futures(shanty, flavour, 4, "-m", "mpi4py.futures", script), 4)
    assert shanty.status()["joined"] == 4


def test_a_pool_in_a_script(shanty: Shanty, flavour: str) -> None:
    script = shanty.script(SQUARE + IN_A_WORLD)
    check_squares(futures(shanty, flavour, 3, script), 3)


def test_a_pool_whose_script_fails(shanty: Shanty, flavour: str) -> None:
    script = shanty.script(SQUARE + POOL.format("") + "    raise KeyError('after the pool')\n")
    done = futures(shanty, flavour, 3, "-m", "mpi4py.futures", script)
    assert done.returncode == 1, done.stderr
    assert "KeyError: 'after the pool'" in done.stdout + done.stderr


def test_a_pool_that_starts_processes(shanty: Shanty, flavour: str) -> None:
    """They are no ranks of the run, but end with it."""
    script = shanty.script(SQUARE + POOL.format("max_workers=2"))
    needs = [] if flavour == "intel" else FLAVOURS[flavour].to_spawn.split()
    check_squares(shanty("run", "-q", "--mpi", flavour, "-n", 1, *needs, script), 2)


def test_ranks_that_meet_by_a_port(shanty: Shanty, flavour: str) -> None:
    line = ("run", "--mpi", flavour, "-n", 2, "--oversubscribe")
    done = shanty(*line, WORKERS / "meet.py")
    assert done.returncode == 0, done.stderr
    assert "[0] met 1" in done.stdout and "[1] met 0" in done.stdout
    assert done.stdout.count("windows of 2 and 2 ranks") == 2
    if FLAVOURS[flavour].spawn_signal:
        done = shanty(*line, importing(shanty, WORKERS / "meet.py"))
        assert f"Intel MPI needs {FLAVOURS[flavour].to_spawn}" in done.stderr


def importing(shanty: Shanty, script: Path) -> Path:
    """Return a script that imports another, whose calls shanty does not see before the start."""
    folder = str(script.parent)
    return shanty.script(f"import sys\nsys.path.insert(0, {folder!r})\nimport {script.stem}\n")


def test_a_pool_that_intel_mpi_was_not_prepared_for(shanty: Shanty, tmp_path: Path) -> None:
    if not (mpi_folder() / "intel").exists():
        pytest.skip(f"intel is not installed in {mpi_folder()}")
    script = tmp_path / "pool_of_two.py"
    script.write_text((SQUARE + POOL.format("max_workers=2")).replace("__main__", "pool_of_two"))
    done = shanty("run", "--mpi", "intel", "-n", 1, importing(shanty, script))
    assert done.returncode == 139, done.stderr
    assert "-e I_MPI_SPAWN=on" in done.stderr


@pytest.mark.parametrize("flavour", OPENMPI)
def test_no_room_for_the_processes_of_a_pool(shanty: Shanty, flavour: str) -> None:
    """mpi4py alone would wait for ever."""
    script = shanty.script(SQUARE + POOL.format(f"max_workers={os.cpu_count()}"))
    done = shanty("run", "--mpi", flavour, "-n", 1, script, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "MPI started no workers" in done.stderr
    assert "-m mpi4py.futures" in done.stderr
    status = shanty.status()
    assert status["ended"] - status["created"] < 10


# ---------------------------------------------------------------------------------- MLX


@pytest.fixture
def mlx() -> Path:
    """The interpreter of an environment with MLX, without mpi4py or shanty."""
    return environment("mlx", MLX)


@pytest.mark.parametrize("flavour", OPENMPI)
def test_mlx(shanty: Shanty, mlx: Path, flavour: str) -> None:
    done = shanty(
        "run", "--mpi", flavour, "-n", 3, "--oversubscribe", "--python", mlx,
        WORKERS / "mlx_sums.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}] ok {r} of 3" for r in range(3)]
    assert shanty.status()["joined"] == 3


@pytest.mark.parametrize("flavour", OPENMPI)
def test_mlx_in_a_users_line(shanty: Shanty, mlx: Path, flavour: str) -> None:
    """As a tutorial for two machines has it: Python is hidden in a shell."""
    command = shlex.join([str(mlx), str(WORKERS / "mlx_sums.py")])
    (shanty.folder / "hostfile").write_text("localhost slots=2\n")
    done = shanty(
        "run", "--mpi", flavour, "--",
        "mpirun", "--hostfile", "hostfile", "-np", 2, "bash", "-c", command + "; true",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}] ok {r} of 2" for r in range(2)]
    assert shanty.status()["joined"] == 2


@pytest.mark.parametrize("flavour", ["mpich", "intel"])
def test_mlx_never_trains_alone(shanty: Shanty, mlx: Path, flavour: str) -> None:
    script = shanty.script(
        "import mlx.core as mx\nprint('rank', mx.distributed.init().rank(), flush=True)\n"
    )
    for line in (
        ["--python", mlx, script],
        ["--", "mpirun", "-np", 2, "sh", "-c", f"{mlx} {script}; true"],
    ):
        words = ["-n", 2] if line[0] == "--python" else []
        done = shanty("run", "--mpi", flavour, *words, *line)
        assert done.returncode == 72, done.stdout + done.stderr
        assert "rank 0" not in done.stdout
        assert "MLX works with Open MPI only" in done.stderr
        assert "shanty run --mpi openmpi" in done.stderr


def test_mlx_finds_a_library_that_is_not_there(shanty: Shanty, mlx: Path) -> None:
    script = shanty.script("import mlx.core as mx\nmx.distributed.init()\n")
    done = shanty("run", "-n", 2, "--python", mlx, "-e", "MLX_MPI_LIBNAME=libnone.so", script)
    assert done.returncode == 72, done.stdout + done.stderr
    assert "MLX found no world in MLX_MPI_LIBNAME=libnone.so" in done.stderr


def test_mlx_beside_mpi4py(shanty: Shanty, mlx: Path) -> None:
    """MLX comes first; the other way round is refused, where MPI would crash."""
    first = "import mlx.core as mx\ngroup = mx.distributed.init()\n"
    second = "from mpi4py import MPI\nprint(MPI.COMM_WORLD.allreduce(1), flush=True)\n"
    options = ["-n", 2, "--python", mlx]
    done = shanty("run", *options, shanty.script(first + second))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 2", "[1] 2"]
    done = shanty("run", *options, shanty.script(second + first))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "call mx.distributed.init() before `from mpi4py import MPI`" in done.stderr


def test_mlx_on_one_rank(shanty: Shanty, mlx: Path) -> None:
    """MLX itself leaves MPI up then, which the launcher takes for a crash."""
    script = shanty.script("import mlx.core as mx\nprint(mx.distributed.init().size())\n")
    done = shanty("run", "-q", "-n", 1, "--python", mlx, script)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize("how", ["raise ValueError('a bad batch')", "sys.exit(1)", "os._exit(0)"])
def test_an_mlx_rank_that_fails(shanty: Shanty, mlx: Path, how: str) -> None:
    """The others wait for it in MPI; nobody waits for them."""
    script = shanty.script(
        "import os, sys\nimport mlx.core as mx\ngroup = mx.distributed.init()\n"
        f"if group.rank() == 1:\n    {how}\n"
        "mx.eval(mx.distributed.all_sum(mx.ones(4)))\n"
    )
    done = shanty("run", "-n", 2, "--python", mlx, script)
    assert done.returncode != 0
    assert "rank 1 on" in done.stderr
    status = shanty.status()
    assert status["ended"] - status["created"] < 12


def test_mlx_launch(shanty: Shanty, mlx: Path) -> None:
    (shanty.folder / "hosts.json").write_text('[{"ssh": "127.0.0.1"}, {"ssh": "127.0.0.1"}]')
    line = ["mlx.launch", "--backend", "mpi", "--hostfile", "hosts.json", WORKERS / "mlx_sums.py"]
    done = shanty("run", "--python", mlx, "--", *line)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}] ok {r} of 2" for r in range(2)]


@pytest.mark.usefixtures("own_tmpdir")
def test_what_mlx_launch_starts_by_itself(shanty: Shanty, mlx: Path) -> None:
    """Its other backends are none of MPI, and nothing stands in their way."""
    script = shanty.script(
        "import sys\nimport mlx.core as mx\ngroup = mx.distributed.init()\n"
        # In one write: mlx.launch passes on whatever one read returns, and cuts lines at that.
        "sys.stdout.write(f'rank {group.rank()} of {group.size()}\\n')\n"
    )
    done = shanty("run", "--python", mlx, "--", "mlx.launch", "-n", 2, "--", "python", script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"rank 0 of 2", "rank 1 of 2"} <= set(done.stdout.splitlines())
