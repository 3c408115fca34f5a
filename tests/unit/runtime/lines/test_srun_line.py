"""Lines for srun: where their options end, and what they ask for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.runtime.errors import UsageError
from shanty.runtime.lines import srun_line
from shanty.runtime.mpi import processes
from shanty.runtime.slurm.sbatch_options import line_of, of_job
from shanty.runtime.spec import JobSpec, Program, Raw

LINES = [
    ("-n 4 python x.py", ["-n", "4"], ["python", "x.py"]),
    ("-n4 -N2 python x.py -n 3", ["-n4", "-N2"], ["python", "x.py", "-n", "3"]),
    ("--ntasks=4 --label ./a.out", ["--ntasks=4", "--label"], ["./a.out"]),
    ("--ntasks 4 --mpi pmix -- a", ["--ntasks", "4", "--mpi", "pmix"], ["a"]),
    ("-u -l --gpus-per-task 1 a", ["-u", "-l", "--gpus-per-task", "1"], ["a"]),
    ("--exclusive=user --overlap a", ["--exclusive=user", "--overlap"], ["a"]),
    ("-K1 -c 2 a", ["-K1", "-c", "2"], ["a"]),
    ("-ul -lN2 -ln 4 a", ["-ul", "-lN2", "-ln", "4"], ["a"]),
    ("--nice python x.py", ["--nice"], ["python", "x.py"]),
    ("--nice=5 a", ["--nice=5"], ["a"]),
    ("--external a", ["--external"], ["a"]),
    ("--wait-for-children --oom-kill-step a", ["--wait-for-children", "--oom-kill-step"], ["a"]),
    ("--accel-bind g -F hosts a", ["--accel-bind", "g", "-F", "hosts"], ["a"]),
]


@pytest.mark.parametrize(("text", "options", "program"), LINES)
def test_where_the_options_end(text: str, options: list[str], program: list[str]) -> None:
    line = srun_line.parse(text.split())
    assert (line.options, line.program) == (options, program)


def test_what_a_line_asks_for() -> None:
    line = srun_line.parse(
        ["-n8", "--nodes=2-4", "-c", "3", "--ntasks-per-node=4", "--mpi=pmix", "a"]
    )
    assert (line.tasks, line.nodes, line.cpus, line.per_node, line.mpi) == (8, 2, 3, 4, "pmix")
    assert srun_line.parse(["-ln4", "a"]).tasks == 4
    job = JobSpec(Raw(("srun", "-n8", "-N", "2", "a")))
    assert {"--ntasks=8", "--nodes=2"} <= {*of_job(job).words()}
    assert line_of(JobSpec(Raw(("mpirun", "a")))) is None
    assert line_of(JobSpec(Program(("srun", "a")))) is None


@pytest.mark.parametrize("text", ["", "-n", "-n 4", "--multi-prog conf", "-n 1 a : b", "--ntasks"])
def test_what_cannot_be_a_line(text: str) -> None:
    with pytest.raises(UsageError):
        srun_line.parse(text.split())


@given(st.lists(st.text(max_size=12), max_size=8))
def test_any_words(words: list[str]) -> None:
    try:
        line = srun_line.parse(words)
    except UsageError:
        return
    kept = [word for word in words if word != "--"]
    assert [word for word in (*line.options, *line.program) if word != "--"] == kept


def test_the_place_of_a_task() -> None:
    found = processes.of_step(["5", "7", "1", "2", "2(x3),1"])
    place = [found[name] for name in processes.STEP_PLACE]
    assert place == ["5", "7", "1", "2"]
    assert processes.number(found, processes.RANK) == 5
    assert processes.number(found, processes.LOCAL_SIZE) == 2
