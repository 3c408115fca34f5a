"""JAX, and Keras 3 on it, with nothing said of the other processes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from environments import JAX, environment
from runs import WORKERS, Shanty

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.xdist_group("jax")]

WORLD = """
import jax
jax.distributed.initialize({})
print(jax.process_index(), "of", jax.process_count(), flush=True)
"""


@pytest.fixture
def jax() -> Path:
    """The interpreter of an environment with JAX and Keras, without mpi4py or shanty."""
    return environment("jax", JAX)


def said(out: str) -> list[str]:
    """What the ranks wrote, but for JAX's own words."""
    return sorted(line for line in out.splitlines() if "[Gloo]" not in line)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ranks", [2, 4])
def test_jax(shanty: Shanty, jax: Path, flavour: str, ranks: int) -> None:
    done = shanty(
        "run", "-q", "--mpi", flavour, "-n", ranks, "--oversubscribe", "--python", jax,
        WORKERS / "jax_training.py", timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert said(done.stdout) == [f"[{rank}] ok {rank} of {ranks}" for rank in range(ranks)]


def test_a_users_line(shanty: Shanty, jax: Path, flavour: str) -> None:
    """Python is hidden in a shell."""
    script = shanty.script(WORLD.format(""))
    command = shlex.join([str(jax), str(script)])
    line = ["mpiexec", "-n", "2", "bash", "-c", command + "; true"]
    done = shanty("run", "-q", "--mpi", flavour, "--", *line, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said(done.stdout) == ["[0] 0 of 2", "[1] 1 of 2"]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        ("", ["-e", "http_proxy=http://127.0.0.1:9"]),  # gRPC would ask it for the other rank
        ('f"127.0.0.1:{port}", 2, int(os.environ["RANK"])', []),
        ("cluster_detection_method='mpi4py'", []),
    ],
)
def test_ways_to_say_it(shanty: Shanty, jax: Path, arguments: str, variables: list[str]) -> None:
    port = "import os\nport = int(os.environ['MASTER_PORT'])\n"
    script = shanty.script(port + WORLD.format(arguments))
    done = shanty("run", "-q", "-n", 2, "--python", jax, *variables, script, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"[0] 0 of 2", "[1] 1 of 2"} <= set(said(done.stdout + done.stderr))


def test_keras(shanty: Shanty, jax: Path, flavour: str) -> None:
    learned = {}
    for ranks in (1, 2):
        done = shanty(
            "run", "-q", "--mpi", flavour, "-n", ranks, "--python", jax,
            WORKERS / "keras_training.py", timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [line.partition(f"{ranks} ranks learned ")[2] for line in said(done.stdout)]
        assert len(lines) == ranks
        learned[ranks] = set(lines)
    assert learned[1] == learned[2] != {""}
