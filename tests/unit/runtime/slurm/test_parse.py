"""What Slurm's tools write, of versions 20.11 to 25, and what is read of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.runtime.slurm import parse

LISTS = [
    ("", []),
    ("login", ["login"]),
    ("n[1-3]", ["n1", "n2", "n3"]),
    ("n[08-11]", ["n08", "n09", "n10", "n11"]),
    ("n[1-2,7],gpu[01-02]-ib,x", ["n1", "n2", "n7", "gpu01-ib", "gpu02-ib", "x"]),
    ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
]


@pytest.mark.parametrize(("text", "hosts"), LISTS)
def test_lists_of_nodes(text: str, hosts: list[str]) -> None:
    assert parse.hosts(text) == hosts


@pytest.mark.parametrize("text", ["n[1-", "n[3-1]", "n[]", "a,,b", "n[x]", "n[1-999999999]", "]["])
def test_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a list|too many"):
        parse.hosts(text)


@given(st.text(max_size=40))
def test_lists_end_in_hosts_or_a_value_error(text: str) -> None:
    try:
        found = parse.hosts(text)
    except ValueError:
        return
    assert all(found)


numbers = st.integers(1, 9999)


@given(st.lists(st.tuples(numbers, st.integers(1, 9)), min_size=1, max_size=8))
def test_counts_come_back(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{n}(x{k})" if k > 1 else str(n) for n, k in runs)
    assert parse.counts(text) == [n for n, k in runs for _ in range(k)]


@pytest.mark.parametrize("text", ["", "2(x", "x2", "2(x3),", "2(x999999999)"])
def test_what_are_no_counts(text: str) -> None:
    with pytest.raises(ValueError, match=r"numbers of nodes|too many"):
        parse.counts(text)


TIMES = [
    ("30", 1800.0),
    ("1:30", 90.0),
    ("01:00:00", 3600.0),
    ("2-00:00:00", 172800.0),
    ("1-12", 129600.0),
    ("1-12:30", 131400.0),
    ("UNLIMITED", None),
    ("INFINITE", None),
    ("NONE", None),
    ("N/A", None),
]


@pytest.mark.parametrize(("text", "seconds"), TIMES)
def test_times(text: str, seconds: float | None) -> None:
    assert parse.seconds(text) == seconds


@given(st.integers(0, 99), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_times_come_back(days: int, hours: int, minutes: int, rest: int) -> None:
    text = (
        f"{days}-{hours:02}:{minutes:02}:{rest:02}" if days else f"{hours}:{minutes:02}:{rest:02}"
    )
    assert parse.seconds(text) == ((days * 24 + hours) * 60 + minutes) * 60 + rest


PARTITIONS = {
    "20.11": "PartitionName=main AllowGroups=ALL AllowAccounts=a,b AllowQos=ALL Default=YES "
    "MaxNodes=4 MaxTime=1-00:00:00 Nodes=n[0-2] State=UP TotalNodes=3",
    "22.05": "PartitionName=main AllowGroups=ALL AllowAccounts=a,b AllowQos=ALL AllocNodes=ALL "
    "Default=YES QoS=N/A MaxNodes=4 MaxTime=1-00:00:00 Nodes=n[0-2] State=UP JobDefaults=(null) "
    "TRES=cpu=6,mem=18078M,node=3,billing=6",
    "24.11": "PartitionName=main AllowGroups=ALL AllowAccounts=a,b AllowQos=ALL AllocNodes=ALL "
    "Default=YES QoS=N/A MaxNodes=4 MaxTime=1-00:00:00 NodeSets=ALL Nodes=n[0-2] State=UP "
    "ResumeTimeout=GLOBAL Topology=flat",
}


@pytest.mark.parametrize("version", PARTITIONS)
def test_partitions(version: str) -> None:
    (found,) = parse.records(PARTITIONS[version] + "\n\n")
    assert (found["PartitionName"], found["MaxTime"]) == ("main", "1-00:00:00")
    assert found["AllowAccounts"] == "a,b"


def test_values_with_spaces() -> None:
    found = parse.record("JobId=7 Comment=two words here Reason=Node down, sorry Partition=main")
    assert found["Comment"] == "two words here"
    assert found["Reason"] == "Node down, sorry"
    assert found["Partition"] == "main"


@given(st.text(max_size=80))
def test_records_of_anything(text: str) -> None:
    for found in parse.records(text):
        assert all(isinstance(value, str) for value in found.values())


ANSWERS = [
    "12\n",
    "12;cluster\n",
    "Submitted batch job 12\n",
    "sbatch: a word of the site\nSubmitted batch job 12 on cluster c\n",
]


@pytest.mark.parametrize("text", ANSWERS)
def test_the_number_of_a_job(text: str) -> None:
    assert parse.submitted(text) == "12"


def test_an_answer_without_a_number() -> None:
    with pytest.raises(ValueError, match="no job"):
        parse.submitted("sbatch: error: no\n")


@pytest.mark.parametrize(
    ("text", "version"),
    [("slurm 20.11.9", (20, 11)), ("slurm-wlm 22.05.8", (22, 5)), ("slurm 25.05.0rc1", (25, 5))],
)
def test_versions(text: str, version: tuple[int, int]) -> None:
    assert parse.version(text) == version


def test_jobs_of_squeue() -> None:
    text = (
        "12|PENDING|main|4294901759|2026-11-24T19:22:09||Resources\n"
        "13|RUNNING|main,low|10|2026-11-24T19:22:09|n[0-1]|None\n"
        "14|PENDING|low|7|N/A||(ReqNodeNotAvail, UnavailableNodes:n0|n1)\n"
        "a line of the site's own\n"
    )
    waits, runs, last = parse.jobs(text)
    assert (waits.id, waits.state, waits.reason) == ("12", "PENDING", "Resources")
    assert (runs.nodes, runs.partition) == ("n[0-1]", "main,low")
    assert (last.started, last.reason) == ("", "(ReqNodeNotAvail, UnavailableNodes:n0|n1)")


@given(st.text())
def test_jobs_of_anything(text: str) -> None:
    assert all(job.id for job in parse.jobs(text))


NODES = [
    ("n0|main*|64|256000|gpu:a100:4(S:0-1)|ib,avx512|idle", 4, ("ib", "avx512")),
    ("n0|main*|64+|256000+|(null)|(null)|mixed-", 0, ()),
    ("n0|main*|64|256000|gpu:2,nvme:1|(null)|down*", 2, ()),
]


@pytest.mark.parametrize(("line", "gpus", "features"), NODES)
def test_nodes_of_sinfo(line: str, gpus: int, features: tuple[str, ...]) -> None:
    (found,) = parse.nodes(line + "\n")
    assert (found.name, found.partition, found.cpus, found.memory) == ("n0", "main", 64, 256000)
    assert (found.gpus, found.features) == (gpus, features)
    assert found.state in ("idle", "mixed", "down")


@given(st.text())
def test_nodes_of_anything(text: str) -> None:
    assert all(node.cpus >= 0 for node in parse.nodes(text))


MPI_TYPES = {
    "20.11": "srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: pmix\nsrun: pmix_v3\n",
    "22.05": "MPI plugin types are...\n\tnone\n\tcray_shasta\n\tpmi2\n\tpmix\n"
    "specific pmix plugin versions available: pmix_v4\n",
}


@pytest.mark.parametrize("version", MPI_TYPES)
def test_kinds_of_pmi(version: str) -> None:
    found = parse.mpi_types(MPI_TYPES[version])
    assert {"none", "pmi2", "pmix"} <= {*found}
    assert any(each.startswith("pmix_v") for each in found)
