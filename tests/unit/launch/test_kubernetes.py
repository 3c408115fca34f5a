"""What a job on Kubernetes is to have, as far as its words tell."""

from __future__ import annotations

import pytest

from shanty.launch.targets.kubernetes import ranks_of
from shanty.runtime.spec import Command, Raw, Script


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        (Raw(("mpirun", "-bind-to", "none", "-np", "4", "python", "x.py")), 4),
        (Raw(("/opt/mpi/bin/mpiexec", "-n", "2", "./a.out", "-n", "9")), 2),
        (Raw(("mpirun -np 3 python x.py | tee log",), True), 3),
        (Raw(("mpirun", "-n", "1", "a", ":", "-np", "3", "b")), 4),
        (Raw(("horovodrun", "-np", "2", "python", "x.py")), 2),
        (Raw(("mpirun", "python", "x.py")), None),
        (Raw(("mpirun", "python", "x.py", "-n", "5")), None),  # the script's own
        (Raw(("mpirun", "-n", "1", "a", ":", "b")), None),
        (Raw(("mpirun", "-np", "many", "a")), None),
        (Raw(("./run.sh", "-np", "4")), None),  # whatever that means there
        (Raw(("echo '",), True), None),
        (Script("x.py"), None),
    ],
)
def test_how_many_pods_a_line_is_for(command: Command, ranks: int | None) -> None:
    assert ranks_of(command) == ranks
