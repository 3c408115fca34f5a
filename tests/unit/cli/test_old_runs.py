"""Runs that an older version has begun: they are listed, shown, followed and stopped."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from command_line import Cli
from old_runs import NAMES, old_run
from runs import wait_for
from shanty.launch.index import read_job
from shanty.launch.machines import queue
from shanty.launch.targets import kubernetes
from shanty.launch.targets.kubernetes_watcher import is_watched
from shanty.runtime.run_status import read_status
from shanty.runtime.rundir import read_json, write_json
from shanty.runtime.spec import State

ENDED = {
    "local": "succeeded", "local-attempts": "succeeded", "local-failed": "failed",
    "machines-local": "succeeded", "machines-ssh": "succeeded", "ssh": "succeeded",
    "slurm": "succeeded", "slurm-login": "succeeded", "slurm-within": "succeeded",
    "k8s-deleted": "succeeded",
}  # fmt: skip
ON = {
    "ssh-running": "running", "ssh-damaged": "lost",
    "machines-waiting": "pending", "machines-allotted": "pending", "machines-begins": "pending",
    "k8s-new": "pending", "k8s-tried": "pending", "k8s-made": "pending", "k8s-begun": "running",
    "k8s-operator": "running",
}  # fmt: skip
# The defaults of what were fields of all jobs, and are options of Slurm and Kubernetes.
USUAL = (None, False, [], 300.0)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes on with a run that has not ended."""
    monkeypatch.setattr(queue, "ensure_scheduler", lambda _home: None)
    monkeypatch.setattr(kubernetes, "watch", lambda _run, new=True: None)


def test_each_is_known() -> None:
    assert sorted([*ENDED, *ON]) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("quiet")
def test_one_is_listed_and_shown(cli: Cli, home: Path, name: str) -> None:
    run = old_run(name, home, home.parent / "work")
    job, status = read_json(run.job) or {}, read_json(run.status) or {}
    (listed,) = cli("ps", "--json").out.splitlines()
    assert json.loads(listed)["state"] == {**ENDED, **ON}[name]
    shown = json.loads(cli("show", "--json", job["name"]).out)
    assert (shown["id"], shown["name"]) == (run.id, job["name"])
    assert shown["state"] == {**ENDED, **ON}[name]
    assert (shown["attempt"], shown["exit_code"]) == (status["attempt"], status["exit_code"]) or (
        shown["state"] == "lost"
    )
    text = cli("show", run.id)
    assert text.code == 0
    assert run.id in text.out
    assert read_json(run.status) == status  # looking at a run does not change it
    found = read_job(run)
    assert found is not None
    now = json.loads(json.dumps(found.to_json()))
    assert now.pop("no_tty") is False  # these came later
    assert now.pop("elastic") is None
    assert now.pop("warm") == []
    assert now.pop("spares") == 0
    now["environment"] = now.pop("packages")  # its name then
    of_target = now.pop("options")  # they were fields, and all jobs had all of them
    assert {name: job[name] for name in now} == {**now, "workdir": job["workdir"]}
    asked = {name: job[name] for name in job.keys() - now.keys() if job[name] not in USUAL}
    assert of_target == asked


@pytest.mark.parametrize("name", ENDED)
def test_the_output_of_one_that_has_ended(cli: Cli, home: Path, name: str) -> None:
    run = old_run(name, home, home.parent / "work")
    followed = cli("logs", "-f", run.id)
    assert (followed.code, followed.err) == (0, "[1] this rank fails\n" * (name == "local-failed"))
    ranks = run.rank_logs()
    assert bool(ranks) == (name != "k8s-deleted")
    for rank in ranks:
        alone = cli("logs", "--rank", str(rank), run.id).out
        assert alone.startswith(("begins", f"rank {rank} of 2: 3"))
        assert all(line in followed.out for line in alone.splitlines())


@pytest.mark.parametrize("name", ENDED)
def test_one_that_has_ended_is_not_stopped(cli: Cli, home: Path, name: str) -> None:
    run = old_run(name, home, home.parent / "work")
    before = run.status.read_bytes()
    assert cli("stop", run.id) == (0, "", f"shanty: run {run.id} has ended already\n")
    assert run.status.read_bytes() == before


def test_one_on_hosts_that_are_gone_is_not_stopped(cli: Cli, home: Path) -> None:
    run = old_run("ssh-running", home, home.parent / "work")
    done = cli("stop", run.id)
    assert done.code != 0
    assert "rec1" in done.err
    assert f"shanty rm --force {run.id}" in done.err


def test_one_whose_hosts_are_not_known_is_not_stopped(cli: Cli, home: Path) -> None:
    run = old_run("ssh-damaged", home, home.parent / "work")
    assert "site.json is damaged" in cli("stop", run.id).err
    assert "site.json is damaged" in cli("show", run.id).out


@pytest.mark.usefixtures("quiet")
def test_one_in_the_queue_is_stopped(cli: Cli, home: Path) -> None:
    run = old_run("machines-waiting", home, home.parent / "work")
    assert cli("stop", run.id).err.endswith(f"shanty: run {run.id}: stopped\n")
    assert read_status(run).state is State.STOPPED


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", ["machines-allotted", "machines-begins", "machines-waiting"])
def test_the_machines_of_one_in_the_queue(cli: Cli, home: Path, name: str) -> None:
    run = old_run(name, home, home.parent / "work")
    cli("machines", "add", "far", "--on", "rec1,rec2")
    shown = cli("machines", "show", "far").out
    assert shown.count(run.id) == (0 if name == "machines-waiting" else 2)


# ------------------------------------------------------------------------------------- Slurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's tools in a folder, which know a job that waits; `cancelled` is what was ended."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in {
        "squeue": "exit 0", "sacct": "exit 1", "scontrol": "exit 1", "sinfo": "exit 0",
        "scancel": f'echo "$@" >> {folder}/cancelled',
    }.items():  # fmt: skip
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_one_that_waits_in_slurms_queue_is_taken_out(cli: Cli, home: Path, slurm: Path) -> None:
    run = old_run("slurm", home, home.parent / "work")
    status = read_status(run)
    write_json(run.status, replace(status, state=State.PENDING, ended=None).to_json())
    run.agents.unlink()
    assert cli("stop", run.id).err.endswith(f"shanty: run {run.id}: stopped\n")
    assert "4" in (slurm / "cancelled").read_text().split()


# -------------------------------------------------------------------------------- Kubernetes


@pytest.fixture
def deleted(home: Path) -> Iterator[list[str]]:
    """A cluster that deletes what it is asked to, and has no time for anything else."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.command == "DELETE":
                asked.append(self.path)
            self.send_response(200 if self.command == "DELETE" else 503)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, *_words: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    server = {"server": f"http://127.0.0.1:{http.server_address[1]}"}
    context = {"cluster": "c", "user": "u", "namespace": "team"}
    home.mkdir(exist_ok=True)
    write_json(
        home / "kubeconfig",
        {
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "c", "cluster": server}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "here", "context": context}],
        },
    )  # fmt: skip
    yield asked
    http.shutdown()
    http.server_close()


@pytest.mark.parametrize("name", ["k8s-new", "k8s-tried", "k8s-made", "k8s-begun"])
def test_one_on_kubernetes_is_stopped(home: Path, deleted: list[str], name: str) -> None:
    """By a process of this version, which reads how far the older one came."""
    pytest.importorskip("kubernetes")
    run = old_run(name, home, home.parent / "work")
    words = [sys.executable, "-m", "shanty", "stop", "--kill", run.id]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, read_status(run).state) == (0, State.STOPPED), done.stderr
    if name != "k8s-new":
        wait_for(lambda: (read_json(run.site) or {}).get("deleted"), 20, "its Job is left")
        assert any(run.id[-11:] in path for path in deleted)
    site = read_json(run.site) or {}
    assert (site["target"], site["place"]) == ("k8s", "here/team")
    wait_for(lambda: not is_watched(run), 20, "the watcher goes on")
