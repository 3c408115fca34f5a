"""The verbs of `shanty experiments` beside those that make one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import LONG_AGO, Cli, make_run
from platform_calls import ID, Made, watch
from shanty.runtime.rundir import append_line, read_json, write_json
from shanty.runtime.spec import JobSpec, Raw, State

SINGLE = ("experiments", "create", "singlenode", "--machineType", "small", "--command", "x")


@pytest.fixture
def made(home: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return watch(home, monkeypatch)


def test_a_list_has_pages(cli: Cli, home: Path) -> None:
    for number in range(5):
        make_run(home, number, name=f"n{number}", tags=("even",) if number % 2 == 0 else ())
    done = cli("experiments", "list", "--limit", "2", "--offset", "1")
    assert [line.split()[0] for line in done.out.splitlines()] == ["NAME", "n3", "n2"]
    assert "2 more: --offset 3" in done.err
    found = cli("experiments", "list", "--tag", "even", "--json").out.splitlines()
    assert [json.loads(line)["name"] for line in found] == ["n4", "n2", "n0"]


def test_a_list_of_projects(cli: Cli, home: Path) -> None:
    for number, project in enumerate(("a", "b", "c")):
        make_run(home, number, name=project, tags=(f"project:{project}",))
    done = cli("experiments", "list", "-p", "a", "--projectId", "c", "--apiKey", "hunter2")
    assert [line.split()[0] for line in done.out.splitlines()] == ["NAME", "c", "a"]
    assert "left out: --apiKey" in done.err and "hunter2" not in done.err
    assert cli("experiments", "list", "-p", "d").out == "no experiments\n"


def test_machines_are_in_the_list(cli: Cli, home: Path) -> None:
    run = make_run(home, 1)
    job = JobSpec(Raw(("x",), shell=True), machines=(("big", 1), ("small", 2)))
    write_json(run.job, job.to_json())
    assert "big:1,small:2" in cli("experiments", "list").out


@pytest.mark.parametrize("words", [("--id", "night"), ("night",), ("--id", ID), ("last",)])
def test_an_experiment_is_named_in_many_ways(cli: Cli, home: Path, words: tuple[str, ...]) -> None:
    make_run(home, 1, name="night")
    assert cli("experiments", "details", *words).out.startswith(f"run        {ID}  (night)")
    assert json.loads(cli("experiments", "details", *words, "--json").out)["id"] == ID


def test_which_experiment(cli: Cli, home: Path) -> None:
    make_run(home, 1, name="night")
    assert "no experiment is named" in cli("experiments", "stop").err
    assert "are two experiments" in cli("experiments", "delete", "last", "--id", "night").err


def test_stop_and_delete(cli: Cli, home: Path) -> None:
    run = make_run(home, 1, name="night")
    assert "has ended already" in cli("experiments", "stop", "--id", "night").err
    assert cli("experiments", "delete", "--id", "night").code == 0
    assert not run.path.exists()


def test_what_was_created_is_started_once(cli: Cli, made: Made, home: Path) -> None:
    assert cli(*SINGLE).code == 0
    run = make_run(home, 2, State.FAILED, name="night")
    (home / "runs" / ID / "created").rename(run.path / "created")
    made.jobs.clear()
    done = cli("experiments", "start", "--id", "night")
    assert "began by itself when it was created" in done.err
    assert (done.code, done.out, made.jobs) == (0, "", [])
    done = cli("experiments", "start", "--id", "night", "--logs")
    assert done.out == f"New experiment created and started with ID: {ID}\n"
    assert made.job.name == "night"
    assert made.how["detach"] is False


def test_one_that_is_on_is_not_started(cli: Cli, made: Made, home: Path) -> None:
    run = make_run(home, 1, State.RUNNING, name="night")
    assert f"experiment {run.id} is on" in cli("experiments", "start", "night").err
    values = read_json(run.status) or {}
    write_json(run.status, {**values, "state": "pending", "reason": "machines are taken"})
    assert "waits: machines are taken" in cli("experiments", "start", "night").err
    assert not made.jobs


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ((), range(1, 31)),
        (("--line", "0"), range(1, 31)),
        (("--line", "29"), range(29, 31)),
        (("--line", "5", "--limit", "3"), range(5, 8)),
        (("--limit", "2"), range(1, 3)),
        (("--line", "31"), range(0)),
        (("--follow", "true", "--line", "30"), range(30, 31)),
        (("--follow", "--limit", "1"), range(1, 2)),
        (("--follow", "false", "--limit", "1"), range(1, 2)),
    ],
)
def test_logs(cli: Cli, home: Path, words: tuple[str, ...], lines: range) -> None:
    run = make_run(home, 1, name="night")
    write_json(run.status, {**(read_json(run.status) or {}), "ranks": 1})
    text = "".join(f"{number:.6f} 1 line {number}\n" for number in range(1, 31))
    run.rank_log(0).write_text(text)
    done = cli("experiments", "logs", "--id", "night", *words)
    assert done.out.splitlines() == [f"line {number}" for number in lines]


def test_follow_may_come_before_the_name(cli: Cli, home: Path) -> None:
    make_run(home, 1, name="night")
    assert cli("experiments", "logs", "--follow", "night").code == 0


def test_tags(cli: Cli, home: Path) -> None:
    make_run(home, 1, name="night", tags=("a",))
    done = cli("experiments", "tags", "add", "--id", "night", "--tag", "b", "--tags", "c,d")
    assert "has the tags a, b, c, d" in done.err
    done = cli("experiments", "tags", "remove", "night", "--tags", "a, b,c,d")
    assert "has no tags" in done.err
    assert "no tags are named" in cli("experiments", "tags", "add", "night").err
    assert "has no tag x" in cli("experiments", "tags", "remove", "night", "--tag", "x").err


def test_metrics(cli: Cli, home: Path) -> None:
    run = make_run(home, 1, name="night")
    for at in range(4):
        append_line(run.metrics, {"time": LONG_AGO + at, "rank": 0, "loss": 4.0 - at})
        sample = {"time": LONG_AGO + at, "host": "a", "cpu": at / 4, "memory": at << 20}
        append_line(run.path / "resources.jsonl", sample)
    done = cli("experiments", "metrics", "get", "--id", "night", "--interval", "2s")
    head, *rows = done.out.splitlines()
    assert head.split() == ["TIME", "OF", "cpuPercentage", "memoryUsage"]
    assert [row.split()[2:] for row in rows] == [
        ["a", "12.5", "0", "MiB"],
        ["a", "62.5", "2", "MiB"],
    ]
    words = ("--metric", "loss", "--interval", "1s", "--json")
    for verb in ("get", "stream"):
        found = cli("experiments", "metrics", verb, "night", *words).out.splitlines()
        assert [json.loads(line)["loss"] for line in found] == [4.0, 3.0, 2.0, 1.0]
        assert json.loads(found[0])["of"] == "rank 0"
    start = "2023-11-14T22:13:21"
    times = ("--start", start, "--end", "2030-01-01")
    assert cli("experiments", "metrics", "get", "night", *words, *times).code == 0


@pytest.mark.parametrize("verb", ["get", "stream"])
def test_metrics_that_are_not_there(cli: Cli, home: Path, verb: str) -> None:
    make_run(home, 1, name="night")
    words = ("--metric", "loss", "--metric", "memoryUsage")
    done = cli("experiments", "metrics", verb, "night", *words)
    assert done.out == ""
    assert "has no memoryUsage of that time: its hosts were not sampled" in done.err
    assert "has logged no loss" in done.err
    assert "gpuTemp is not measured" in cli("experiments", "metrics", verb, "night", "--metric",
                                            "gpuTemp").err  # fmt: skip
    assert "must be more than 0" in cli("experiments", "metrics", verb, "night", "--interval",
                                        "0").err  # fmt: skip
