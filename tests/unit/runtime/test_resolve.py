"""Layouts of a job on its hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plans import node
from shanty.runtime.errors import UsageError
from shanty.runtime.mpi.layout import Layout
from shanty.runtime.plan import Node
from shanty.runtime.resolve import AttemptSettings, layout_of, resolve
from shanty.runtime.rundir import CONTINUES
from shanty.runtime.spec import JobSpec, Program

OPEN_MPI_5 = {
    "flavour": "openmpi5", "version": "5.0.11", "prefix": "/o", "launcher": "/o/bin/mpirun",
    "library": "/o/lib/libmpi.so.40", "origin": "wheel",
}  # fmt: skip


def planned(job: JobSpec, *slots: int) -> Layout:
    return layout_of(job, [node(number, count) for number, count in enumerate(slots)])


def test_ranks_that_are_bound_to_several_cores_take_as_many_slots() -> None:
    job = JobSpec(Program(("x",)), ranks=3, cpus_per_rank=2)
    assert [host.slots for host in planned(job, 2, 2, 3).hosts] == [1, 1, 1]
    with pytest.raises(UsageError, match="3 ranks with 2 cpus each do not fit"):
        planned(job, 3, 3)  # six cores, but none of the ranks can have one of either host


def test_ranks_that_do_not_fit_are_refused_with_the_reason() -> None:
    def refusal(here: Node, **wanted: int) -> tuple[str, str, str]:
        with pytest.raises(UsageError) as error:
            layout_of(JobSpec(Program(("x",)), **wanted), [here])
        return error.value.what, error.value.why, error.value.fix

    one = node(0, 1)._replace(cores=1, limit="only one may be used")
    assert refusal(one, ranks=2) == (
        "2 ranks do not fit on 1 core",
        "only one may be used; ranks that share a core slow each other down",
        "take -n 1, or --oversubscribe to run them all the same",
    )
    assert refusal(one, ranks=1, cpus_per_rank=2) == (
        "a rank with 2 cpus does not fit on 1 core",
        "only one may be used; threads that share a core slow each other down",
        "take -c 1, or --oversubscribe to run it all the same",
    )
    assert refusal(node(0, 4), cpus_per_rank=5)[0] == "a rank with 5 cpus does not fit on 4 cores"
    slots = one._replace(cores=4)  # as the user says; its cores are not the reason
    assert refusal(slots, ranks=2)[:2] == (
        "2 ranks do not fit on 1 slot",
        "ranks that share a core slow each other down",
    )
    assert planned(JobSpec(Program(("x",)), cpus_per_rank=4), 1).ranks == 1  # it has four cores


def test_slots_that_are_gpus_each_take_a_rank_with_several_cores() -> None:
    hosts = [node(number, 4, cores=32, gpus=True) for number in range(2)]
    for cpus, ranks in ((2, 8), (8, 8), (16, 4), (32, 2)):
        layout = layout_of(JobSpec(Program(("x",)), cpus_per_rank=cpus), hosts)
        assert (layout.ranks, layout.cpus_per_rank) == (ranks, None)
        assert [host.slots for host in layout.hosts] == [ranks / 2, ranks / 2]
    each = JobSpec(Program(("x",)), ranks_per_host=4, cpus_per_rank=8)
    assert layout_of(each, hosts).ranks == 8
    with pytest.raises(UsageError, match="8 ranks with 16 cpus each do not fit"):
        layout_of(JobSpec(Program(("x",)), ranks=8, cpus_per_rank=16), hosts)


def test_ranks_per_host_count_the_hosts_that_hold_ranks() -> None:
    job = JobSpec(Program(("x",)), ranks_per_host=2)
    assert planned(job, 0, 2, 2).ranks == 4  # the lead only leads
    with pytest.raises(UsageError, match=r"2 ranks do not fit on 10\.0\.0\.2"):
        planned(job, 3, 1)


def test_each_host_is_a_group_as_torchrun_has_them() -> None:
    """The hosts with ranks are counted; a further attempt is a restart."""
    job = JobSpec(Program(("x",)), ranks_per_host=1, retries=2)
    nodes = [node(number, count) for number, count in enumerate((0, 2, 2))]
    settings = AttemptSettings("run", "/tmp/x", scripted=True, log_limit=1, given={}, number=2)
    names = ("GROUP_RANK", "GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    found = [
        [each.environment.own.get(name, "") for name in names]
        for each in resolve(job, nodes, settings).nodes
    ]
    assert found == [["", "", "1"], ["0", "2", "1"], ["1", "2", "1"]]


def test_every_host_is_told_of_a_script_of_tensorflow_1() -> None:
    nodes = [node(number, 1) for number in range(2)]
    settings = AttemptSettings("run", "/tmp/x", scripted=True, log_limit=1, given={})
    for job, told in ((JobSpec(Program(("x",)), tf1=True), "1"), (JobSpec(Program(("x",))), "")):
        attempt = resolve(job, nodes, settings)
        assert [each.environment.own.get("SHANTY_TF1", "") for each in attempt.nodes] == [told] * 2


def test_spares_take_slots_as_ranks_do() -> None:
    script = Program(("x",))
    assert planned(JobSpec(script, ranks=3, spares=1), 2, 2).ranks == 4
    assert planned(JobSpec(script, ranks_per_host=1, spares=1), 2, 2, 2).ranks == 3  # all of them
    with pytest.raises(UsageError) as error:
        planned(JobSpec(script, ranks=4, spares=1), 2, 2)
    assert error.value.what == "4 ranks and 1 spare do not fit on 4 slots of 2 hosts"
    assert error.value.fix.startswith("take -n 3, or --oversubscribe")
    with pytest.raises(UsageError, match="1 rank and 2 spares do not fit with 1 a host on 2 hosts"):
        planned(JobSpec(script, ranks=1, ranks_per_host=1, spares=2), 2, 2)


@pytest.mark.parametrize(
    ("wanted", "slots", "ranks"),
    [
        ({"ranks": 4}, (2, 1), 3),
        ({"ranks": 2}, (2, 1), 2),
        ({"ranks": 3, "spares": 1}, (2, 1), 3),
        ({"ranks": 3, "ranks_per_host": 1}, (2, 1), 2),
        ({"ranks": 4, "cpus_per_rank": 2}, (4, 2), 3),
        ({"ranks": 4, "oversubscribe": True}, (2, 1), 4),
        ({}, (2, 1), 3),
    ],
)
def test_another_elastic_attempt_takes_the_ranks_that_fit(
    wanted: dict[str, Any], slots: tuple[int, ...], ranks: int
) -> None:
    """spares: ranks and spares are counted together."""
    nodes = [node(number, count)._replace(mpi=OPEN_MPI_5) for number, count in enumerate(slots)]
    job = JobSpec(Program(("x",)), elastic=1, **wanted)
    again = AttemptSettings("id", "/tmp/x", False, 1 << 20, {}, number=2)
    assert resolve(job, nodes, again).ranks == ranks
    taken_over = replace(job, env={CONTINUES: "20261128-174411-k3vd"})
    assert resolve(taken_over, nodes, again._replace(number=1)).ranks == ranks
    too_few = replace(job, elastic=5)
    with pytest.raises(UsageError, match="--elastic=5 needs more ranks"):
        resolve(too_few, nodes, again)


@pytest.mark.parametrize(
    "wanted, said",
    [
        ({"spares": 1}, "--spares needs --elastic"),
        ({"spares": 2, "elastic": 1}, "--spares 2 leaves no place for a rank"),
        ({"spares": 1, "elastic": 3, "ranks": 2}, "--elastic=3 needs more ranks than the 2"),
    ],
)
def test_spares_that_cannot_be_are_refused(wanted: dict[str, int], said: str) -> None:
    settings = AttemptSettings("id", "/tmp/x", False, 1 << 20, {})
    job = JobSpec(Program(("x",)), oversubscribe="ranks" in wanted, **wanted)
    with pytest.raises(UsageError) as error:
        resolve(job, [node(0, 2)._replace(mpi=OPEN_MPI_5)], settings)
    assert error.value.what.startswith(said)
