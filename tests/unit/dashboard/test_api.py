"""What the API tells of runs that lie in directories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import LONG_AGO, make_run
from dashboards import ACCOUNT, Client, Served
from plans import plan_of
from runs import wait_for
from shanty.runtime.rundir import RunDir, append_line, write_json
from shanty.runtime.spec import Failure, JobSpec, Program, State, Status


def add(home: Path, number: int, *, owner: str = "", **more: object) -> RunDir:
    run = make_run(home, number, **more)  # type: ignore[arg-type]
    if owner:
        run.owner.write_text(owner + "\n")
    return run


def logged(run: RunDir, rank: int, *lines: str) -> Path:
    """A log with these lines, a second apart."""
    path = run.rank_log(rank)
    text = "".join(f"{LONG_AGO + at:.6f} 1 {line}\n" for at, line in enumerate(lines))
    path.write_text(text)
    return path


# ------------------------------------------------------------------------------------- lists


def test_the_list_has_what_a_table_shows(home: Path, server: Served, admin: Client) -> None:
    failure = Failure("rank 1 on a fell", "it raised", "repair it", 1, "a", lines=("x",))
    add(home, 1, state=State.FAILED, name="night", tags=["a", "b"], exit_code=3, failure=failure)
    server.knows(1)
    found = admin.json("/runs")
    (run,) = found["runs"]
    assert found["total"] == 1
    assert (run["name"], run["state"], run["exit_code"], run["ranks"]) == ("night", "failed", 3, 2)
    assert (run["tags"], run["command"], run["target"]) == (["a", "b"], "train.py", "local")
    assert (run["failure"], run["owner"]) == ("it raised: rank 1 on a fell", ACCOUNT)
    assert run["took"] == 5
    assert found["facets"]["tags"] == {"a": 1, "b": 1}
    assert found["facets"]["states"] == {"failed": 1}


@pytest.fixture
def several(home: Path, server: Served) -> None:
    add(home, 1, name="alpha", tags=["x"])
    add(home, 2, state=State.FAILED, name="beta", tags=["x", "y"])
    add(home, 3, state=State.RUNNING, name="gamma", owner="ann")
    add(home, 4, state=State.STOPPED, name="Alpha-two", created=LONG_AGO + 100)
    server.knows(4)


FILTERS: list[tuple[dict[str, object], list[str]]] = [
    ({}, ["Alpha-two", "alpha", "beta", "gamma"]),
    ({"search": "alpha"}, ["Alpha-two", "alpha"]),
    ({"search": "ALPHA two"}, ["Alpha-two"]),
    ({"search": "train.py running"}, ["gamma"]),
    ({"search": "'; DROP TABLE runs; --"}, []),
    ({"search": "%"}, []),
    ({"state": ["failed", "running"]}, ["beta", "gamma"]),
    ({"tag": "x"}, ["alpha", "beta"]),
    ({"tag": ["x", "y"]}, ["beta"]),
    ({"owner": "ann"}, ["gamma"]),
    ({"owner": ACCOUNT, "state": "failed"}, ["beta"]),
    ({"target": "slurm"}, []),
    ({"since": LONG_AGO + 50}, ["Alpha-two"]),
    ({"until": LONG_AGO + 50, "state": "failed"}, ["beta"]),
    ({"limit": 2, "sort": "name", "order": "asc"}, ["Alpha-two", "alpha"]),
    ({"limit": 2, "offset": 2, "sort": "name", "order": "asc"}, ["beta", "gamma"]),
]


def test_filters(several: None, admin: Client) -> None:
    for query, names in FILTERS:
        found = admin.json("/runs", **query)
        assert sorted(run["name"] for run in found["runs"]) == names, query


def test_the_order_and_the_total(several: None, admin: Client) -> None:
    newest = admin.json("/runs", sort="created")["runs"][0]
    assert newest["name"] == "Alpha-two"
    longest = admin.json("/runs", sort="took")["runs"][0]
    assert longest["name"] == "gamma"  # it has been on ever since
    page = admin.json("/runs", limit=1, state=["failed", "succeeded"])
    assert (len(page["runs"]), page["total"]) == (1, 2)
    # The counts of a filter are those without itself: one can choose another value.
    assert page["facets"]["states"] == {"failed": 1, "running": 1, "stopped": 1, "succeeded": 1}
    assert page["facets"]["tags"] == {"x": 2, "y": 1}


def test_no_request_looks_at_a_run(
    several: None, server: Served, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page comes from the index; only the watcher reads directories."""
    monkeypatch.setattr(server.here.runs, "read", lambda *_: pytest.fail("a run was read"))
    assert admin.json("/runs")["total"] == 4


def test_a_change_is_seen_and_a_deleted_run_goes(home: Path, server: Served, admin: Client) -> None:
    with admin.stream("/runs/stream") as events:
        wait_for(lambda: server.here.hub._subscriptions)
        run = add(home, 1, state=State.RUNNING, name="live")
        name, data = next(each for each in events if each[1]["state"] == "running")
        assert (name, data["id"]) == ("run", run.id)
        write_json(
            run.status, Status(State.FAILED, 2, created=LONG_AGO, ended=LONG_AGO + 9).to_json()
        )
        name, data = next(events)
        assert (name, data["state"], data["took"]) == ("run", "failed", 9)
        assert admin.send("DELETE", f"/runs/{run.id}").status_code == 200
        assert next(events) == ("gone", {"id": run.id})
    assert admin.json("/runs")["total"] == 0
    assert not run.path.exists()


# ------------------------------------------------------------------------------------- one run


def test_a_run_with_its_ranks_and_its_finding(home: Path, server: Served, admin: Client) -> None:
    failure = Failure("rank 1 on lab0 fell", "ValueError", "repair it", 1, "lab0", lines=("a", "b"))
    run = add(home, 1, state=State.FAILED, failure=failure, exit_code=1)
    write_json(run.plan, plan_of(3).to_json())
    for kind, rank, more in (
        ("started", 0, {}), ("started", 1, {}), ("joined", 0, {}),
        ("failed", 1, {"code": 1}), ("exited", 0, {"code": 0}),
    ):  # fmt: skip
        report = {"rank": rank, "host": "lab0", "event": kind, **more}
        append_line(run.events, {"time": 1.0, "event": f"rank-{kind}", "report": report})
    logged(run, 1, "x")
    server.knows(1)
    found = admin.json(f"/runs/{run.id}")
    states = [(r["rank"], r["state"], r["exit_code"], r["first_failure"]) for r in found["ranks"]]
    assert states == [(0, "ended", 0, False), (1, "failed", 1, True), (2, "waiting", None, False)]
    assert found["ranks"][1]["log_size"] == len(f"{LONG_AGO:.6f} 1 x\n")
    host = {"name": "lab0", "address": "10.0.0.1", "slots": 4, "ranks": [0, 1]}
    assert found["hosts"] == [{**host, "meant": None, "planned": True}]
    assert found["finding"]["fix"] == "repair it"
    assert found["finding"]["lines"] == ["a", "b"]
    assert found["command_line"] == "shanty run -C /home/ann/digits train.py"


def test_secrets_are_masked_everywhere(home: Path, server: Served, admin: Client) -> None:
    run = add(home, 1)
    env = {"WANDB_API_KEY": "s3cr3t", "DB_PASSWORD": "s3cr3t", "LR": "0.1"}
    job = JobSpec(Program(("x",)), env=env, registry_password="/home/ann/s3cr3t-file", image="i")
    write_json(run.job, job.to_json())
    server.knows(1)
    for path in (f"/runs/{run.id}", f"/compare?run={run.id}"):
        text = admin.get(f"/api/v1{path}").text
        assert "0.1" in text
        assert "s3cr3t" not in text.replace("--registry-password /home/ann/s3cr3t-file", "")
    line = admin.json(f"/runs/{run.id}")["command_line"]
    assert "-e WANDB_API_KEY -e DB_PASSWORD -e LR=0.1" in line


def test_no_damage_makes_a_run_unreadable(home: Path, server: Served, admin: Client) -> None:
    damages = (b"", b"{", b"\xff", b"[1]", b'{"state": 3}')
    runs = [add(home, number) for number in range(len(damages))]
    for run, damage in zip(runs, damages, strict=True):
        for file in (
            run.status, run.events, run.job, run.plan, run.metrics, run.resources, run.stalls,
            run.progress, run.owner, run.rank_log(0),
        ):  # fmt: skip
            file.write_bytes(damage)
    server.knows(len(damages))
    assert admin.json("/runs")["total"] == len(damages)
    for run, damage in zip(runs, damages, strict=True):
        for path in ("", "/logs/0", "/metrics", "/resources", "/artifacts"):
            answer = admin.get(f"/api/v1/runs/{run.id}{path}")
            assert answer.status_code == 200, (damage, path)


ODD = [
    {"state": "failed", "created": 10**400, "ended": 1.0, "ranks": 2.5, "exit_code": 2.5},
    {"state": "running", "created": None, "attempt": "x", "up": [], "joined": {}, "reason": 5},
    {"state": "failed", "created": float("nan"), "ended": float("inf"), "lasted": float("nan")},
    {"state": "failed", "ended": 1.0, "created": 1.0, "failure": {"what": 5, "rank": "x",
     "lines": [1, None]}, "alone": {"what": None}},
    {"state": "failed", "ended": 1.0, "created": 1.0, "reason": "\ud800", "activity": ["x"]},
]  # fmt: skip


def odd(home: Path, number: int, status: dict) -> RunDir:
    """A run of a newer or broken shanty, which may have written anything that is JSON."""
    run = add(home, number, state=State.RUNNING)
    command = {"kind": "program", "argv": [1, None, "\udcff"]}
    job = {"command": command, "name": ["x"], "tags": [1, None], "on": 7, "workdir": "/\udcff"}
    write_json(run.job, {**job, "env": {"A": 5}, "ranks": "many"})
    plan = plan_of(2, lab0=2).to_json()
    plan["attempt"]["nodes"][0].update(name=5, slots="x", address=None)
    write_json(run.plan, plan)
    append_line(run.events, {"event": "rank-exited", "report": {"rank": 0, "code": "x", "host": 5}})
    append_line(run.metrics, {"rank": "x", "\udcff": 1, "big": 10**400, "loss": float("nan")})
    append_line(run.stalls, {"what": float("inf"), "deep": [[[[["\udcff"]]]]]})
    (run.artifacts / "t.jsonl").write_text('{"\\udcff": "\\udcff"}\n')
    write_json(run.progress, {"done": float("nan")})
    write_json(run.status, status)
    return run


def test_no_odd_value_makes_a_run_unreadable(home: Path, server: Served, admin: Client) -> None:
    made = {odd(home, number, status).id: status for number, status in enumerate(ODD)}
    server.knows(len(made))
    found = {run["id"]: run["state"] for run in admin.json("/runs")["runs"]}
    assert found.keys() == made.keys()
    for run_id, status in made.items():
        # The events of a run whose status is damaged give its state.
        assert found[run_id] in (status["state"], "pending")
        for path in ("", "/metrics", "/resources", "/artifacts/preview?path=t.jsonl"):
            answer = admin.get(f"/api/v1/runs/{run_id}{path}")
            assert answer.status_code == 200, (status, path, answer.text)
            json.loads(answer.text, parse_constant=pytest.fail)
        assert admin.get(f"/api/v1/compare?run={run_id}").status_code == 200, status
        with admin.stream(f"/runs/{run_id}/stream?ranks=0") as events:
            assert next(events)[0] in ("metrics", "progress")
    for path in ("/machines", "/suggest", "/runs?sort=took"):
        assert admin.get(f"/api/v1{path}").status_code == 200, path


# ------------------------------------------------------------------------- metrics, resources


def test_metrics_are_thinned_and_keep_their_peaks(
    home: Path, server: Served, admin: Client
) -> None:
    run = add(home, 1)
    with run.metrics.open("w") as file:
        for step in range(10_000):
            loss = 99.0 if step == 5_003 else 1 / (step + 1)
            file.write(json.dumps({"time": step, "rank": 0, "step": step, "loss": loss}) + "\n")
        file.write('{"time": 1, "rank": 1, "loss": "NaN", "note": "text"}\n{"torn')
    server.knows(1)
    (series, odd) = admin.json(f"/runs/{run.id}/metrics", points=100)["series"]
    assert (series["name"], series["rank"]) == ("loss", 0)
    assert len(series["points"]) <= 100
    assert [5003, 5003, 99.0] in series["points"]
    assert (odd["rank"], odd["points"]) == (1, [[0, 1, None]])
    assert admin.json(f"/runs/{run.id}/metrics", names="other")["series"] == []
    (found,) = admin.json("/compare", run=run.id)["metrics"]
    assert (found["best_max"], found["last"]) == ([99.0], [1 / 10_000])
    with run.metrics.open("a") as file:
        file.write('"}\n{"torn')
    assert admin.json("/compare", run=run.id)["metrics"][0]["last"] == [1 / 10_000]
    with run.metrics.open("a") as file:  # it goes on where a line was torn
        file.write('"}\n{"time": 2, "rank": 0, "step": 20000, "loss": 0.5}\n')
    assert admin.json("/compare", run=run.id)["metrics"][0]["last"] == [0.5]


def test_resources_of_each_host(home: Path, server: Served, admin: Client) -> None:
    run = add(home, 1)
    gpu = {"index": 0, "name": "A", "utilization": 0.5, "memory": 1, "memory_total": 2}
    for at in range(1000):
        sample = {"time": at, "host": "a", "cpu": 0.25, "memory": 5, "memory_total": 9}
        append_line(run.resources, {**sample, "receive": 1, "send": None, "gpus": [gpu]})
    append_line(run.resources, {"time": 1, "host": "b", "gpus": "none", "cpu": "much"})
    server.knows(1)
    hosts = admin.json(f"/runs/{run.id}/resources", points=10)["hosts"]
    assert len(hosts["a"]["time"]) == 10
    assert hosts["a"]["time"][-1] == 949.5  # the middle of the last hundred
    assert hosts["a"]["gpus"][0]["utilization"] == [0.5] * 10
    assert hosts["b"]["cpu"] == [None]
    line = json.dumps({"time": 0, "host": "a", "cpu": 0.5, "note": "x" * 200})
    with run.resources.open("a") as file:  # 20 MB of it: all of its time is still there
        for at in range(1000, 81_000):
            file.write(line.replace('"time": 0', f'"time": {at}') + "\n")
    times = admin.json(f"/runs/{run.id}/resources", points=100)["hosts"]["a"]["time"]
    assert (len(times), times[0] < 5000, times[-1] > 80_500) == (100, True, True)
    assert times == sorted(times)


# ------------------------------------------------------------------------------------- changes


def test_tags_are_kept_with_the_job(home: Path, server: Served, admin: Client) -> None:
    run = add(home, 1, tags=["a"])
    server.knows(1)
    answer = admin.send("POST", f"/runs/{run.id}/tags", {"add": ["b", "c"], "remove": ["a"]})
    assert answer.json()["tags"] == ["b", "c"]
    assert json.loads(run.job.read_text())["tags"] == ["b", "c"]
    assert admin.json("/runs", tag="c")["total"] == 1


def test_a_run_that_is_on_is_not_deleted(home: Path, server: Served, admin: Client) -> None:
    run = add(home, 1, state=State.RUNNING)
    server.knows(1)
    answer = admin.send("DELETE", f"/runs/{run.id}")
    assert (answer.status_code, answer.json()["error"]["fix"]) == (409, "stop it first")
    assert run.path.exists()


def test_compared_runs_say_where_they_differ(home: Path, server: Served, admin: Client) -> None:
    runs = [add(home, number) for number in (1, 2)]
    for run, rate in zip(runs, ("0.1", "0.2"), strict=True):
        job = JobSpec(Program(("python", "x.py", f"--lr={rate}", "--epochs", "3")), ranks=2)
        write_json(run.job, job.to_json())
    server.knows(2)
    found = admin.json("/compare", run=[run.id for run in runs])
    values = {each["name"]: (each["values"], each["differs"]) for each in found["parameters"]}
    assert values["--lr"] == (["0.1", "0.2"], True)
    assert values["--epochs"] == (["3", "3"], False)
    assert admin.get("/api/v1/compare", run=[runs[0].id] * 9).status_code == 422


def test_machines_and_who_uses_them(home: Path, server: Served, admin: Client) -> None:
    (home / "hosts").mkdir()
    hosts = {"hosts": [{"name": "lab0", "user": "ann", "slots": 4}, {"name": "lab1"}]}
    (home / "hosts" / "lab.json").write_text(json.dumps(hosts))
    run = add(home, 1, state=State.RUNNING)
    write_json(run.plan, plan_of(3, lab0=3).to_json())
    server.knows(1)
    _, first, second = admin.json("/machines")["hosts"]
    assert (first["name"], first["group"], first["free"]) == ("lab0", "lab", 1)
    assert first["runs"] == [{"id": run.id, "slots": 3}]
    assert (second["slots"], second["free"]) == (None, None)
    other = server.user("ben", "user", "own")
    assert other.json("/machines")["hosts"][1]["runs"] == [{"id": None, "slots": 3}]


def test_the_description_of_the_api(admin: Client) -> None:
    found = admin.json("/openapi.json")
    assert found["openapi"].startswith("3.")
    paths = {path.removeprefix("/api/v1") for path in found["paths"]}
    assert {"/runs", "/runs/{run_id}", "/runs/{run_id}/logs/{rank}", "/compare"} <= paths
    refused = found["paths"]["/api/v1/runs"]["get"]["responses"]["422"]["content"]
    assert refused["application/json"]["schema"]["$ref"].endswith("/Failed")
