"""What is asked of Slurm for a job, and what of it can never be met."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.runtime.errors import UsageError
from shanty.runtime.slurm import allocation, checks, parse, reasons, sbatch_options
from shanty.runtime.spec import JobSpec, Module, Program, Script


def job(**values: Any) -> JobSpec:
    return JobSpec(Script("train.py")).with_values(values)


def words(**values: Any) -> list[str]:
    return sbatch_options.of_job(job(**values)).words()


def test_the_options_of_a_job() -> None:
    found = words(
        ranks=8, nodes=2, cpus_per_rank=4, gpus_per_rank=1, memory_per_rank=8 << 30,
        time_limit=5400.0, partition="gpu", account="a", qos="q", constraint="ib", exclusive=True,
    )  # fmt: skip
    assert {
        "--ntasks=8", "--nodes=2", "--cpus-per-task=4", "--gpus-per-task=1", "--mem-per-cpu=2048M",
        "--time=90", "--partition=gpu", "--account=a", "--qos=q", "--constraint=ib", "--exclusive",
        "--no-requeue", "--signal=B:USR1@60",
    } == {*found}  # fmt: skip


def test_options_of_the_user_come_last() -> None:
    found = words(slurm="--mem=4G --licenses='a b'", partition="x")
    assert found[-2:] == ["--mem=4G", "--licenses=a b"]


@pytest.mark.parametrize(
    ("typed", "signal"),
    [
        ("--signal=USR2@120", "--signal=B:USR2@120"),
        ("--signal=B:SIGTERM@30", "--signal=B:TERM@30"),
        ("--signal USR2", "--signal=B:USR2@60"),
    ],
)
def test_the_warning_goes_to_the_batch_script(typed: str, signal: str) -> None:
    assert [each for each in words(slurm=typed) if "signal" in each] == [signal]


def test_a_short_job_is_warned_late() -> None:
    assert "--signal=B:USR1@6" in words(time_limit=60.0)


@pytest.mark.parametrize(
    ("text", "warning"),
    [("MaxTime=1", 6), ("MaxTime=UNLIMITED", 60), ("DefaultTime=5 MaxTime=60", 30)],
)
def test_a_job_without_a_time_is_warned_by_its_partitions(text: str, warning: int) -> None:
    known = checks.partitions(parse.records(f"PartitionName=a Default=YES {text}"), ())
    asked = sbatch_options.of_job(job())
    found = sbatch_options.warned_in_time(asked, checks.limit_of(asked, known))
    assert found.warning == warning


def test_requeue_and_retries() -> None:
    assert "--requeue" in words(requeue=True)
    assert "--no-kill" in words(retries=1)
    assert "--no-kill" in words(elastic=1)


def test_a_time_of_the_users_own_stays() -> None:
    asked = sbatch_options.of_job(job(slurm="--signal=USR2@300"))
    assert sbatch_options.warned_in_time(asked, 1800.0).warning == 300


@pytest.mark.parametrize(
    "typed",
    [
        "--array=1-3", "--arr=1-3", "-o x", "-oFILE", "-a1-3", "--wrap=x", "'", "main --mem=1G",
        "--wait", "-W", "--test-only", "--help", "--version", "--", "--mem=1G -D/tmp",
    ],
)  # fmt: skip
def test_what_cannot_be_passed_on(typed: str) -> None:
    with pytest.raises(UsageError):
        words(slurm=typed)


@pytest.mark.parametrize(
    "typed", ["--wait-all-nodes=1", "--exclude=n1", "-x n1", "--nice=5", "-O", "-w n1", "-An"]
)
def test_what_can_be_passed_on(typed: str) -> None:
    assert words(slurm=typed)[-len(typed.split()) :] == typed.split()


def test_names_in_squeue() -> None:
    assert sbatch_options.name_of(job(name="night"), "id") == "night"
    assert sbatch_options.name_of(job(), "id") == "train.py"
    assert sbatch_options.name_of(JobSpec(Module("a.b")), "id") == "a.b"
    assert sbatch_options.name_of(JobSpec(Program(("./bin/x", "1"))), "id") == "x"


# ---------------------------------------------------------------------------------- checks


def partition(name: str = "main", **values: Any) -> checks.Partition:
    nodes = [
        parse.NodeFacts("n0", name, 8, 32000, 2, ("ib",), "idle"),
        parse.NodeFacts("n1", name, 16, 64000, 0, (), "down"),
    ]
    usual: dict[str, Any] = {
        "default": name == "main", "up": True, "seconds": 3600.0, "most_nodes": None,
        "accounts": [], "denied": [], "qos": [], "nodes": nodes,
    }  # fmt: skip
    return checks.Partition(name=name, **{**usual, **values})


KNOWN = {"main": partition(), "gpu": partition("gpu", seconds=None, accounts=["vision"])}
NEVER = [
    ({"nodes": 3}, "3 nodes are too many", "has 2|--nodes 2"),
    ({"ranks": 1, "cpus_per_rank": 17}, "no node has that many CPUs", "16"),
    ({"ranks": 1, "memory_per_rank": 100 << 30}, "that much memory", "64000 MiB"),
    ({"ranks": 1, "gpus_per_rank": 3}, "that many GPUs", "has 2"),
    ({"ranks": 25}, "25 ranks", "-n 24"),
    ({"ranks": 3, "gpus_per_rank": 1}, "3 ranks", "-n 2"),
    ({"ranks": 34, "nodes": 2}, "that many CPUs: 17 ranks", "16"),
    ({"ranks_per_host": 20}, "20 ranks", "16"),
    ({"partition": "mian"}, "partition 'mian' not found", "did you mean main"),
    ({"time_limit": 7200.0}, "120 minutes", "60 minutes"),
    ({"partition": "gpu", "account": "visoin"}, "does not take jobs", "did you mean vision"),
    ({"constraint": "ibx"}, "feature 'ibx'", "did you mean ib"),
]


@pytest.mark.parametrize(("asked", "what", "more"), NEVER)
def test_what_can_never_be(asked: dict[str, Any], what: str, more: str) -> None:
    import re

    with pytest.raises(UsageError) as error:
        checks.check(sbatch_options.of_job(job(**asked)), KNOWN)
    assert what in error.value.what
    assert re.search(more, f"{error.value.why} {error.value.fix}")


@pytest.mark.parametrize(
    "asked",
    [
        {}, {"ranks": 24}, {"nodes": 2, "ranks": 2}, {"ranks": 2, "gpus_per_rank": 1},
        {"time_limit": 3600.0}, {"partition": "gpu", "time_limit": 1e6, "account": "vision"},
        {"constraint": "ib&!x"}, {"ranks": 1, "memory_per_rank": 60 << 30},
    ],
)  # fmt: skip
def test_what_can_be(asked: dict[str, Any]) -> None:
    checks.check(sbatch_options.of_job(job(**asked)), KNOWN)


def test_one_of_several_partitions_will_do() -> None:
    checks.check(sbatch_options.of_job(job(partition="main,gpu", time_limit=1e6)), KNOWN)


@given(st.builds(job, ranks=st.none() | st.integers(1, 99), nodes=st.none() | st.integers(1, 9),
                 cpus_per_rank=st.none() | st.integers(1, 40),
                 gpus_per_rank=st.none() | st.integers(0, 9)))  # fmt: skip
def test_every_request_is_met_or_refused_with_numbers(asked: JobSpec) -> None:
    try:
        checks.check(sbatch_options.of_job(asked), KNOWN)
    except UsageError as error:
        assert any(letter.isdigit() for letter in error.what)
        assert error.fix


def test_partitions_of_scontrol_and_sinfo() -> None:
    text = (
        "PartitionName=a AllowAccounts=ALL DenyAccounts=x Default=YES MaxNodes=UNLIMITED MaxTime=30"
    )
    nodes = parse.nodes("n0|a*|4|1000|(null)|(null)|idle\n")
    (found,) = checks.partitions(parse.records(text), nodes).values()
    assert (found.seconds, found.most_nodes, found.accounts, found.denied) == (
        1800,
        None,
        [],
        ["x"],
    )
    assert [node.name for node in found.nodes] == ["n0"]


# --------------------------------------------------------------------------------- reasons


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "it is next"), ("(Priority)", "higher priority"), ("None", "not looked"),
        ("QOSMaxJobsPerUserLimit", "a limit of its QOS is reached (QOSMaxJobsPerUserLimit)"),
        ("AssocGrpCpuLimit", "a limit of its account"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "n1"),
        ("launch failed requeued held", "could not start"), ("SomethingNew", "Slurm says: Some"),
    ],
)  # fmt: skip
def test_reasons_in_words(reason: str, words: str) -> None:
    assert words in reasons.in_words(reason)


def test_all_that_is_known_of_a_job_that_waits() -> None:
    text = reasons.waiting("Priority", 3, 12, "2026-11-24T19:22:09")
    assert "3rd of 12" in text
    assert "2026-11-24 19:22:09" in text


# ----------------------------------------------------------------------------- allocations

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "8(x2),4"}


def slots(asked: JobSpec, **more: str) -> list[int]:
    return [host["slots"] for host in allocation.nodes_of({**JOB, **more}, asked, [])]


def test_slots_are_what_slurm_gave() -> None:
    tasks = {"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "2(x2),1"}
    assert slots(job()) == [8, 8, 4]
    assert slots(job(), **tasks) == [2, 2, 1]
    assert slots(job(ranks=5), **tasks) == [2, 2, 1]
    assert slots(job(ranks=12), **tasks) == [8, 8, 4]  # other ranks than the job's tasks
    assert slots(job(ranks=5, cpus_per_rank=2), **tasks) == [4, 4, 2]


def test_this_node_is_the_lead() -> None:
    hosts = allocation.nodes_of({**JOB, "SLURMD_NODENAME": "n2"}, job(), [])
    assert [host["name"] for host in hosts] == ["n2", "n1", "n3"]


@pytest.mark.parametrize(
    ("version", "plugin", "options"),
    [
        ((20, 2), "task/none", []), ((20, 11), "task/none", ["--overlap"]),
        ((23, 11), "task/cgroup,task/affinity", ["--overlap", "--cpu-bind=none"]),
    ],
)  # fmt: skip
def test_options_of_steps(version: tuple[int, int], plugin: str, options: list[str]) -> None:
    assert allocation.step_options(version, {"TaskPlugin": plugin}) == options


@pytest.mark.parametrize("damage", [{"SLURM_JOB_NODELIST": ""}, {"SLURM_JOB_NODELIST": "n[1-"},
                                    {"SLURM_JOB_CPUS_PER_NODE": ""},
                                    {"SLURM_JOB_CPUS_PER_NODE": "8"},
                                    {"SLURM_NTASKS": "3"}])  # fmt: skip
def test_words_for_nodes_that_cannot_be_read(damage: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        allocation.nodes_of({**JOB, **damage}, job(), [])


HET = {
    "SLURM_JOB_ID": "7",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST": "n1",  # that of the first component, as in a batch script
    "SLURM_JOB_CPUS_PER_NODE": "1",
    "SLURM_NTASKS": "1",
    "SLURM_TASKS_PER_NODE": "1",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "1",
    "SLURM_NTASKS_HET_GROUP_0": "1",
    "SLURM_TASKS_PER_NODE_HET_GROUP_0": "1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "n[2-3]",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "4(x2)",
    "SLURM_NTASKS_HET_GROUP_1": "4",
    "SLURM_TASKS_PER_NODE_HET_GROUP_1": "2(x2)",
}


def test_a_heterogeneous_job_has_the_nodes_of_all_components() -> None:
    hosts = allocation.nodes_of({**HET, "SLURMD_NODENAME": "n2"}, job(), ["--overlap"])
    assert [(host["name"], host["slots"], host["cores"]) for host in hosts] == [
        ("n2", 2, 4), ("n1", 1, 1), ("n3", 2, 4),
    ]  # fmt: skip
    for host, group in zip(hosts, (1, 0, 1), strict=True):
        argv = host["connection"]["argv"]
        assert {"--jobid=7", "--overlap", f"--het-group={group}", f"-c{host['cores']}"} <= {*argv}
    assert [host["slots"] for host in allocation.nodes_of(HET, job(ranks=5), [])] == [1, 2, 2]
    assert [host["slots"] for host in allocation.nodes_of(HET, job(ranks=9), [])] == [1, 4, 4]


DAMAGED = [
    ({"SLURM_JOB_NODELIST_HET_GROUP_1": ""}, "SLURM_JOB_NODELIST_HET_GROUP_1 is not set"),
    ({"SLURM_HET_SIZE": ""}, "SLURM_HET_SIZE is ''"),
    ({"SLURM_HET_SIZE": "x"}, "SLURM_HET_SIZE is 'x'"),
    ({"SLURM_HET_SIZE": "3"}, "SLURM_JOB_NODELIST_HET_GROUP_2 is not set"),
    ({"SLURM_TASKS_PER_NODE_HET_GROUP_1": "2"}, "2 nodes, but 2 counts of CPUs, 1 of tasks"),
    ({"SLURM_NTASKS_HET_GROUP_1": "x"}, "SLURM_NTASKS is '1', 'x'"),
    ({"SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-2]"}, "n1 is in two components"),
]


@pytest.mark.parametrize(("damage", "why"), DAMAGED)
def test_a_heterogeneous_job_that_cannot_be_read(damage: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        allocation.nodes_of({**HET, **damage}, job(), [])


# NumTasks, CPUs/Task and NtasksPerN of scontrol, CPUs of the nodes, SLURM_TASKS_PER_NODE of salloc
# with the same options, as Slurm 22.05 has them; None: they do not say it.
WHOLE = [
    (2, 1, 0, "1(x2)", [1, 1]),
    (3, 1, 0, "2(x2)", [2, 1]),
    (5, 1, 0, "2(x2),1", [2, 2, 1]),
    (4, 1, 0, "2(x3)", [2, 1, 1]),
    (4, 1, 2, "64(x2)", [2, 2]),
    (2, 2, 0, "2(x2)", [1, 1]),
    (6, 1, 0, "1(x2)", [3, 3]),  # --overcommit
    (1, 1, 0, "1(x2)", None),
]


@pytest.mark.parametrize(("tasks", "each", "most", "cpus", "found"), WHOLE)
def test_the_tasks_of_a_job_as_seen_from_a_step(
    tasks: int, each: int, most: int, cpus: str, found: list[int] | None
) -> None:
    step = {**JOB, "SLURM_STEP_ID": "0", "SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1"}
    step["SLURM_JOB_CPUS_PER_NODE"] = cpus
    told = {
        "NumTasks": str(tasks),
        "CPUs/Task": str(each),
        "NtasksPerN:B:S:C": f"{most}:0:*:*",
    }
    assert allocation.is_in_step(step)
    assert not allocation.is_in_step({**JOB, "SLURM_STEP_ID": "4294967290"})  # the shell of salloc
    if found is None:
        with pytest.raises(ValueError, match="that of a step"):
            allocation.of_whole_job(step, told)
        return
    whole = allocation.of_whole_job(step, told)
    assert parse.counts(whole["SLURM_TASKS_PER_NODE"]) == found
    assert whole["SLURM_NTASKS"] == str(tasks)


@pytest.mark.parametrize(
    ("changes", "alone"),
    [
        ({}, True),  # in the shell of `srun -n 4 --pty bash`
        ({"SLURM_PROCID": "1"}, False),
        ({"SLURM_PTY_PORT": ""}, False),  # without --pty, all tasks go on
        ({"SLURM_TASK_PID": "77"}, False),  # srun has started shanty itself
    ],
)
def test_the_shell_of_a_step_of_several_tasks(changes: dict[str, str], alone: bool) -> None:
    step = {"SLURM_PTY_PORT": "4182", "SLURM_PROCID": "0", "SLURM_TASK_PID": "76"}
    assert allocation.starts_alone({**step, **changes}, 77) == alone


variables = st.sampled_from(sorted({*HET, *JOB}))
values = st.sampled_from(["", "0", "1", "2", "1(x2)", "n1", "n[1-2]", "n[", "x", "²"]) | st.text()


@given(st.sampled_from([JOB, HET]), st.dictionaries(variables, values), st.sampled_from([None, 3]))
def test_variables_give_whole_hosts_or_a_value_error(
    base: dict[str, str], changes: dict[str, str], ranks: int | None
) -> None:
    try:
        hosts = allocation.nodes_of({**base, **changes}, job(ranks=ranks), [])
    except ValueError:
        return
    assert hosts
    assert len({host["name"] for host in hosts}) == len(hosts)
    seen = {**base, **changes}
    lists = [
        seen[f"SLURM_JOB_NODELIST{end}"]
        for end in ((f"_HET_GROUP_{n}" for n in range(int(seen["SLURM_HET_SIZE"])))
                    if seen.get("SLURM_HET_SIZE") else ("",))
    ]  # fmt: skip
    assert sorted(h["name"] for h in hosts) == sorted(
        n for text in lists for n in parse.hosts(text)
    )
