"""Runs by Slurm: from a laptop, from a login node, in allocations, and what is refused before."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import Cluster, SlurmSite, site_in

from installations import installations
from runs import WORKERS, wait_for

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]

HELLO = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
host = MPI.Get_processor_name()
print("sum", world.allreduce(1), "rank", world.rank, "task", os.environ["SLURM_PROCID"], host)
"""


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[SlurmSite]:
    with site_in(cluster, tmp_path / "work") as here:
        here.write("hello.py", HELLO)
        shutil.copytree(here.folder, here.home / "work", dirs_exist_ok=True)
        yield here


def sums(site: SlurmSite, text: str, ranks: int = 3) -> None:
    """All ranks of hello.py have said what they should, each on a node of its own."""
    for rank in range(ranks):
        assert f"sum {ranks} rank {rank} task {rank}" in text
    assert {each for each in site.cluster.nodes if each in text} == {*site.cluster.nodes[:ranks]}


# --------------------------------------------------------------------------------- a laptop


def test_from_a_laptop(site: SlurmSite, flavour: str) -> None:
    done = site(*site.on, "--mpi", flavour, "-n", "3", "--nodes", "3", "hello.py")
    assert done.returncode == 0, done.stderr
    sums(site, done.stdout)
    wait_for(lambda: not site.left(site.last), 15, "something is left")


@pytest.mark.parametrize("mpi", ["openmpi5", "openmpi4", "mpich", "intel"])
@pytest.mark.parametrize("hostfile", ["/kube-openmpi/generated/hostfile", "$HOSTFILE"])
def test_lines_of_tutorials(site: SlurmSite, mpi: str, hostfile: str) -> None:
    line = ("mpirun", "--allow-run-as-root", "-np", "3", "--hostfile", hostfile, "-bind-to", "none",
            "-map-by", "slot", "-mca", "pml", "ob1", "-mca", "btl", "^openib")  # fmt: skip
    where = ("--mpi", mpi, "-n", "3", "--nodes", "3")
    done = site(*site.on, *where, "--", *line, "python", "hello.py")
    assert done.returncode == 0, done.stderr
    sums(site, done.stdout)


def test_a_program_in_c(site: SlurmSite, flavour: str) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("there is no C compiler here")
    # Intel's wheel has no compiler; MPICH's makes the same ABI.
    prefix = installations()["mpich" if flavour == "intel" else flavour].prefix
    compiler = Path(prefix, "bin", "mpicc")
    if not compiler.exists():
        pytest.skip(f"{flavour} has no compiler here")
    words = [compiler, WORKERS / "hello.c", "-o", site.folder / "hello"]
    built = subprocess.run(words, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    done = site(*site.on, "--mpi", flavour, "-n", "3", "--nodes", "3", "./hello")
    assert done.returncode == 0, done.stderr
    said = sorted(line.partition("] ")[2] for line in done.stdout.splitlines())
    assert said == [f"rank {rank} of 3" for rank in range(3)]


def test_a_line_for_srun(site: SlurmSite, flavour: str) -> None:
    where = ("--mpi", flavour)
    done = site(*site.on, *where, "--", "srun", "-N", "3", "-n3", "python", "hello.py")
    assert done.returncode == 0, done.stderr
    sums(site, done.stdout)
    assert site.status()["joined"] == 3
    wrong = "pmi2" if flavour.startswith("openmpi") else "pmix"
    line = ("srun", "-n", "3", f"--mpi={wrong}", "python", "hello.py")
    done = site(*site.on, *where, "--", *line, timeout=30)
    assert done.returncode == 2
    assert "rank 0 of 1" in done.stderr


# ---------------------------------------------------------------- a login node, an allocation


def test_from_a_login_node(site: SlurmSite) -> None:
    done = site.typed(site.cluster.login, "shanty run --on slurm -n 3 --nodes 3 hello.py")
    assert done.returncode == 0, done.stderr
    sums(site, done.stdout)
    assert "expected" not in done.stderr


def test_what_the_nodes_do_not_see_is_sent(site: SlurmSite) -> None:
    line = (
        "mkdir -p /tmp/elsewhere; cp hello.py /tmp/elsewhere; cd /tmp/elsewhere; "
        "shanty run --on slurm -n 3 --nodes 3 hello.py"
    )
    done = site.typed(site.cluster.login, line)
    assert done.returncode == 0, done.stderr
    sums(site, done.stdout)


def test_in_salloc(site: SlurmSite) -> None:
    """The shell of salloc is on the login node, the ranks on the nodes."""
    shanty, three = f"{sys.executable} -m shanty", "-Q -N3 -n3"
    done = site.typed(site.cluster.login, f"salloc {three} {shanty} run hello.py")
    assert done.returncode == 0, done.stderr
    sums(site, done.stdout)
    line = f"salloc {three} {shanty} run -- srun -n 3 python hello.py"
    done = site.typed(site.cluster.login, line)
    assert done.returncode == 0, done.stderr
    sums(site, done.stdout)
    done = site.typed(site.cluster.login, f"salloc {three} {shanty} run -n 7 hello.py")
    assert done.returncode == 2
    assert "7 ranks do not fit" in done.stderr


def test_in_sbatch(site: SlurmSite) -> None:
    shanty = f"{sys.executable} -m shanty"
    lines = f"#!/bin/sh\n{shanty} run hello.py\necho code $?\n{shanty} run --on local hello.py\n"
    (site.home / "work/job.sh").write_text(lines)
    done = site.typed(site.cluster.login, "sbatch -W -N3 -n3 -o job.out job.sh; cat job.out")
    assert done.returncode == 0, done.stderr
    sums(site, done.stdout)
    assert "code 0" in done.stdout
    done = site.typed(site.cluster.login, "sbatch -W -N1 -n2 -o one.out job.sh; cat one.out")
    assert f"sum 2 rank 1 task 1 {site.cluster.nodes[0]}" in done.stdout  # a single node, too


def test_in_a_heterogeneous_job(site: SlurmSite) -> None:
    """All components, from the login node, in a batch script, and in a step of the second one."""
    nodes = site.cluster.nodes
    parts = "-Q -N1 -n1 : -N2 -n3"
    (site.home / "work/job.sh").write_text(
        "#!/bin/sh\n#SBATCH -N1 -n1\n#SBATCH hetjob\n#SBATCH -N2 -n3\n"
        f"{sys.executable} -m shanty run hello.py\n"
    )
    for line, first in (
        (f"salloc {parts} {sys.executable} -m shanty run hello.py", nodes[0]),
        ("sbatch -Q -W -o het.out job.sh; code=$?; cat het.out; exit $code", nodes[0]),
        (f"salloc {parts} srun --het-group=1 -n1 -N1 {sys.executable} -m shanty run hello.py",
         nodes[1]),
    ):  # fmt: skip
        done = site.typed(site.cluster.login, line)
        assert done.returncode == 0, done.stderr
        assert [f"rank {rank} " in done.stdout for rank in range(4)] == [True] * 4, done.stdout
        assert f"sum 4 rank 0 task 0 {first}" in done.stdout
        assert sorted(done.stdout.count(node) for node in nodes) == [1, 1, 2], done.stdout
    line = f"salloc {parts} {sys.executable} -m shanty run -- srun -n 4 python hello.py"
    done = site.typed(site.cluster.login, line)
    assert done.returncode == 2
    assert "the first component of a heterogeneous job only" in done.stderr


def test_in_steps_and_arrays(site: SlurmSite) -> None:
    """A step's variables say "1 task", and tasks of an array start at the same time."""
    shanty = f"{sys.executable} -m shanty run hello.py"
    for step in ("-n1 -N1", "--exclusive -N1 -n1"):
        done = site.typed(site.cluster.login, f"salloc -Q -N2 -n3 srun {step} {shanty}")
        assert done.returncode == 0, done.stderr
        assert [f"sum 3 rank {rank} task {rank}" in done.stdout for rank in range(3)] == [True] * 3
        assert done.stdout.count(site.cluster.nodes[1]) == 1, done.stdout
    done = site.typed(site.cluster.login, f"salloc -Q -N2 -n2 srun {shanty}")
    assert done.returncode == 2
    assert "srun started 2 tasks here" in done.stderr
    # In the shell of a step with a terminal, only task 0 is there to type anything.
    typed = f"srun -Q -N2 -n3 --pty bash -c '{shanty}; true'"
    done = site.typed(site.cluster.login, f'script -qec "{typed}" /dev/null </dev/null')
    assert [f"sum 3 rank {rank} task {rank}" in done.stdout for rank in range(3)] == [True] * 3
    line = f"salloc -Q -O -N2 -n6 srun -N1 -n1 {shanty}"
    assert site.typed(site.cluster.login, line).stdout.count("sum 6 ") == 6
    line = f"sbatch -Q -W --array=1-3 -n1 -o %a.out --wrap '{shanty}'; code=$?; cat ?.out"
    done = site.typed(site.cluster.login, f"{line}; exit $code")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("sum 1 rank 0 task 0") == 3


# ------------------------------------------------------------------------ before the queue

NEVER = [
    ({"nodes": 9}, "9 nodes are too many: the partition main has 3", "--nodes 3"),
    ({"ranks": 99}, "99 ranks", "-n 6"),
    ({"ranks": 1, "cpus_per_rank": 7}, "no node has that many CPUs: 7", "partition main has 2"),
    ({"ranks": 1, "memory_per_rank": 99 << 30}, "that much memory", "has 4000 MiB"),
    ({"ranks": 1, "gpus_per_rank": 2}, "no node has that many GPUs", "has 1"),
    ({"partition": "short", "time_limit": 300.0}, "5 minutes are more than", "--time-limit 1m"),
    ({"constraint": "lba"}, "has the feature 'lba'", "did you mean lab?"),
    ({"reservation": "x"}, "the reservation does not exist", "Requested reservation is invalid"),
]
CHECK = """
from shanty.runtime.errors import ShantyError
from shanty.runtime.slurm import submit
from shanty.runtime.spec import JobSpec, Script
for values in {}:
    try:
        submit.check(JobSpec(Script("hello.py")).with_values(values), "openmpi5")
    except ShantyError as error:
        print(" ".join(f"{{error.what}} {{error.why}} {{error.fix}}".split()))
"""


def test_what_can_never_be_is_said_before_the_queue(site: SlurmSite) -> None:
    (site.home / "work/check.py").write_text(CHECK.format([values for values, _, _ in NEVER]))
    done = site.typed(site.cluster.login, f"{sys.executable} check.py")
    for said, (_, what, more) in zip(done.stdout.splitlines(), NEVER, strict=True):
        assert what in said and more in said, said
    site.write("bad.py", "import os\ndef x(:\n")
    for words, code, what in (
        (("--partition", "mian", "hello.py"), 2, "did you mean main?"),
        (("--slurm", "--array=1-3", "hello.py"), 2, "--slurm cannot take --array"),
        (("bad.py",), 2, "line 2"),
        (("none.py",), 66, "not found in"),
    ):
        done = site(*site.on, *words, timeout=20)
        assert (done.returncode, what in done.stderr) == (code, True), done.stderr
    assert site.cluster.jobs() == []
    done = site("run", "--partition", "main", "hello.py", timeout=20)
    assert (done.returncode, "--partition is for Slurm" in done.stderr) == (2, True), done.stderr
