"""The parts of a run over several hosts that need none."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.cli.lab import down
from shanty.launch.cluster.run_mirror import _COPIED, RunMirror, _over
from shanty.launch.host import Host
from shanty.runtime.agent import control
from shanty.runtime.agent.channel import Channel
from shanty.runtime.agent.connections import quoted
from shanty.runtime.agent.mpi_world import MpiWorld
from shanty.runtime.agent.rank_script import rank_script
from shanty.runtime.agent.root_cause import late, misplaced
from shanty.runtime.agent.rsh_server import _Call
from shanty.runtime.agent.worker import Worker
from shanty.runtime.errors import UsageError
from shanty.runtime.mirror import APPENDED, REPLACED, Change, Mirror, is_safe, may_write, put
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.layout import Layout
from shanty.runtime.plan import Attempt, Environment, Leftovers, Limits, Node, Plan
from shanty.runtime.rank.rsh_client import parse
from shanty.runtime.resolve import layout_of
from shanty.runtime.rpc.runs import heartbeat_age
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec, Program, State, Status

MPI = Installation("openmpi5", "5", "/p", "/p/bin/mpirun", "/p/lib/libmpi.so.40", "shanty")


def node(number: int = 0, slots: int = 4, **more: Any) -> Node:
    """A host of a run, 10.0.0.<number + 1>."""
    values: dict[str, Any] = {
        "name": f"lab{number}",
        "address": f"10.0.0.{number + 1}",
        "cores": 4,
        "run_dir": "/runs/r",
        "workdir": "/work",
        "python": "python",
        "agent_python": sys.executable,
        "package": "/package",
        "mpi": asdict(MPI),
    }
    return Node(number=number, slots=slots, **{**values, **more})


def plan_of(ranks: int | None, start_timeout: float = 60.0, **placement: int) -> Plan:
    layout = asdict(layout_of(JobSpec(Program(("x",)), ranks=ranks), [node()]))
    attempt = Attempt((node(),), (), {**layout, "ranks": ranks}, {}, {}, placement)
    limits = Limits(1 << 30, 5.0, start_timeout, None, "warn", 60.0)
    return Plan("r", 0.0, ranks is None, limits, Leftovers((), ()), "/tmp/s", True, attempt)


@pytest.mark.parametrize(
    ("words", "host", "command"),
    [
        (["lab2", "prted", "-x"], "lab2", "prted -x"),
        (["-x", "10.0.0.3", "a b; c"], "10.0.0.3", "a b; c"),
        (["-q", "-l", "me", "-p22", "-o", "BatchMode=yes", "h", "true"], "h", "true"),
        (["-xl", "me", "h", "true"], "h", "true"),
        (["me@h", "-n", "true"], "h", "true"),
        (["h"], "h", ""),
        ([], "", ""),
        (["-V"], "", ""),
        (["--", "h", "ls", "-l"], "h", "ls -l"),
    ],
)
def test_what_a_launcher_says_to_ssh(words: list[str], host: str, command: str) -> None:
    assert parse(words) == (host, command)


def test_a_channel_never_waits_for_its_peer() -> None:
    """A peer that does not read (it is cut off) must not hold up the one that writes."""
    (source, their_sink), (their_source, sink) = os.pipe(), os.pipe()
    ours, theirs = Channel(source, sink), Channel(their_source, their_sink)
    text = "x" * 1000
    for _ in range(500):  # many times what a pipe holds
        ours.send(text=text)
    assert ours.open
    assert ours.unsent > 0
    heard = 0
    while heard < 500:
        heard += len(theirs.receive())
        ours.flush()
    assert ours.unsent == 0
    ours.close()
    theirs.close()


def test_the_end_of_a_run_is_not_overwritten_by_what_came_before(tmp_path: Path) -> None:
    """Two commands that follow a run write the same files, and the slower one may be late."""
    run = RunDir(tmp_path)
    link = RunMirror(run, [Host("a")])
    for state in (State.RUNNING, State.STOPPED, State.RUNNING):
        link._store("status.json", None, json.dumps(Status(state).to_json()).encode(), "/there")
    assert control.read_status(run).state is State.STOPPED


@given(st.lists(st.binary(max_size=300), max_size=12))
def test_a_mirror_of_growing_files(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    (here / "logs").mkdir()
    mirror = Mirror(here, ("logs/rank-*.log", "metrics.jsonl"), ())
    for index, piece in enumerate(pieces):
        with (here / "logs" / f"rank-{index % 3}.log").open("ab") as file:
            file.write(piece)
        with (here / "metrics.jsonl").open("ab") as file:
            file.write(piece)
        for change in mirror.changes():
            put(there, change)
    for path in here.glob("logs/*"):
        copy = there / "logs" / path.name
        assert (copy.read_bytes() if copy.exists() else b"") == path.read_bytes()
    lines = b"".join(pieces)
    copied = (there / "metrics.jsonl").read_bytes() if (there / "metrics.jsonl").exists() else b""
    assert copied == lines[: lines.rfind(b"\n") + 1]  # whole lines only


def test_a_change_that_comes_twice_changes_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        put(tmp_path, Change("logs/a", 0, b"12345"))
        put(tmp_path, Change("logs/a", 5, b"678"))
        put(tmp_path, Change("progress.json", None, b"{}"))
    assert (tmp_path / "logs/a").read_bytes() == b"12345678"
    assert (tmp_path / "progress.json").read_bytes() == b"{}"


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", "a\0b"])
def test_a_host_cannot_write_outside_the_run(path: str) -> None:
    assert not is_safe(path)


def test_artifacts_are_mirrored_whole(tmp_path: Path) -> None:
    (tmp_path / "artifacts" / "deep").mkdir(parents=True)
    (tmp_path / "artifacts" / "deep" / "big").write_bytes(os.urandom(300_000))
    (tmp_path / "artifacts" / "empty").touch()
    (tmp_path / "artifacts" / "link").symlink_to("/etc/passwd")
    copy = tmp_path / "copy"
    for change in Mirror(tmp_path).artifacts():
        put(copy, change)
    big = "artifacts/deep/big"
    assert (copy / big).read_bytes() == (tmp_path / big).read_bytes()
    assert (copy / "artifacts/empty").read_bytes() == b""
    assert not (copy / "artifacts/link").exists()


def test_the_script_that_ranks_start_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It undoes what a launcher brought along from the lead, and is quoted well."""
    home, work = tmp_path / "my home", tmp_path / "it's work"
    home.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("OMPI_MCA_btl", "mine")
    monkeypatch.delenv("OMPI_MCA_pml", raising=False)
    settings = Environment(
        default={"OMPI_MCA_btl": "ours", "OMPI_MCA_pml": "ours", "OMPI_MCA_osc": "ours"},
        ranks={"UCX_NET_DEVICES": "ours", "FI_TCP_IFACE": "ours"},
        own={"QUOTED": "a 'b' $c"},
        first={"PATH": "/first"},
    )
    text = rank_script(node(workdir=str(work), environment=settings), {"MASTER_PORT": "1"})
    text = text[: text.rindex("\nexec ")] + "\nenv\npwd\n"
    script = tmp_path / "rank"
    script.write_text(text)
    theirs = {"HOME": "/lead", "XDG_RUNTIME_DIR": "/run/lead", "PATH": os.environ["PATH"]}
    theirs["OMPI_MCA_osc"] = "the line's"
    done = subprocess.run(
        ["/bin/sh", str(script), "7", "-", "OMPI_MCA_osc,UCX_NET_DEVICES", "python"],
        env=theirs,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    for line in (
        f"HOME={home}",
        "QUOTED=a 'b' $c",
        "OMPI_MCA_pml=ours",
        "OMPI_MCA_osc=the line's",
        "FI_TCP_IFACE=ours",
        "MASTER_PORT=1",
        "SHANTY_WORLD=7",
    ):
        assert line in lines
    assert any(line.startswith("PATH=/first:") for line in lines)
    assert not any(line.startswith(("XDG_RUNTIME_DIR=", "SHANTY_PASS=")) for line in lines)
    assert "UCX_NET_DEVICES=ours" not in lines  # the line has said what it is to be, or not to be
    assert "OMPI_MCA_btl=ours" not in lines  # what the host's user has set wins
    assert lines[-1] == str(work)


def world(expected: int, **hosts: str) -> MpiWorld:
    found = MpiWorld(expected, MPI)
    for rank, host in enumerate(hosts.values()):
        report = {"event": "started", "rank": rank, "size": expected, "host": host}
        found.report(report, 1.0)
    return found


def test_ranks_on_the_wrong_hosts() -> None:
    plan = plan_of(2, a=1, b=1)
    assert misplaced(plan, world(2, x="a", y="b")) is None
    verdict = misplaced(plan, world(2, x="a", y="a"))
    assert verdict is not None
    assert verdict.failure.why == "ranks on each host: a 2 (meant: 1), b 0 (meant: 1)"


def test_a_rank_that_never_starts_ends_a_line_of_the_users_too() -> None:
    """The plan does not know how many ranks a raw line starts; its first rank does."""
    plan = plan_of(None)
    worlds = {"4711": world(3, x="a", y="b")}
    assert late(plan, worlds, 60.0, 0.0) is None
    verdict = late(plan, worlds, 62.0, 0.0)
    assert verdict is not None
    assert verdict.failure.what == "rank 2 of 3 did not start within 60 s"


def test_no_rank_at_all() -> None:
    verdict = late(plan_of(2, 5), {}, 6.0, 0.0)
    assert verdict is not None
    assert verdict.failure.what == "ranks 0, 1 of 2 did not start within 5 s"


@pytest.mark.parametrize(
    ("path", "workers", "leads"),
    [
        ("logs/rank-3.log", True, True),
        ("stacks/rank-3.txt", True, True),
        ("metrics.jsonl", True, True),
        ("progress.json", True, True),
        ("artifacts/deep/model", True, True),
        ("logs/launcher.log", False, True),
        ("events.jsonl", False, True),
        ("status.json", False, True),
        ("bin/ssh", False, False),
        ("key", False, False),
        ("asks/1.ask", False, False),
        ("site.json", False, False),
        ("deep/progress.json", False, False),
        ("artifacts", False, False),
        ("artifacts/../bin/ssh", False, False),
    ],
)
def test_what_another_host_may_write(path: str, workers: bool, leads: bool) -> None:
    """Not what is run (bin/), nor what says how hosts are reached (site.json)."""
    assert may_write(path, (*APPENDED, *REPLACED)) == workers
    assert may_write(path, _COPIED) == leads


def test_a_path_with_spaces_as_an_option_of_ssh(tmp_path: Path) -> None:
    key = tmp_path / "my home" / 'k"e\\y'
    argv = ["ssh", "-G", "-F", "none", "-o", f"IdentityFile={quoted(str(key))}", "10.0.0.1"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert f"identityfile {key}" in done.stdout.splitlines()


def test_a_launcher_that_does_not_read_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shanty.runtime.agent.rsh_server._ROOM", 0.05)
    read, write = os.pipe()
    ours, theirs = socket.socketpair()
    call = _Call(cast(Worker, None), ours, (write, os.dup(write)), "prted")
    for _ in range(4):
        call.write(1, bytes(1 << 16))
    call.end(0)
    assert len(os.read(read, 1 << 20)) == 1 << 16  # what the pipe holds
    assert b'"code": 0' in theirs.recv(100)
    os.close(read)
    theirs.close()


@pytest.mark.parametrize(
    ("ages", "over"),
    [
        ({"b": 1.0, "c": 1.5}, False),
        ({"b": 11.0, "c": 9.0}, True),
        ({"b": None}, True),  # its node agent has gone and left its folder behind
        ({"b": -1.0, "c": -1.0}, False),  # they are done: so the lead was there to say so
        ({"b": -1.0, "c": None}, False),
        ({}, False),
    ],
)
def test_when_a_lead_that_does_not_answer_is_given_up(
    ages: dict[str, float | None], over: bool
) -> None:
    assert _over(ages) == over


def test_a_worker_that_is_done_is_told_from_one_that_crashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    ask = {"run": "20260101-000000-aaaa", "index": 1}
    assert heartbeat_age(ask, io.BytesIO(), print) == {"age": None, "left": True}
    (tmp_path / "work" / "20260101-000000-aaaa.1").mkdir(parents=True)
    assert heartbeat_age(ask, io.BytesIO(), print) == {"age": None, "left": False}


def planned(job: JobSpec, *slots: int) -> Layout:
    return layout_of(job, [node(number, count) for number, count in enumerate(slots)])


def test_ranks_that_are_bound_to_several_cores_take_as_many_slots() -> None:
    job = JobSpec(Program(("x",)), ranks=3, cpus_per_rank=2)
    assert [host.slots for host in planned(job, 2, 2, 3).hosts] == [1, 1, 1]
    with pytest.raises(UsageError, match="3 ranks with 2 cpus each do not fit"):
        planned(job, 3, 3)  # six cores, but none of the ranks can have one of either host


def test_ranks_per_host_count_the_hosts_that_hold_ranks() -> None:
    job = JobSpec(Program(("x",)), ranks_per_host=2)
    assert planned(job, 0, 2, 2).ranks == 4  # the lead only leads
    with pytest.raises(UsageError, match=r"2 ranks do not fit on 10\.0\.0\.2"):
        planned(job, 3, 1)


def test_what_has_no_name_of_a_lab_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    (tmp_path / "lab").mkdir()
    (tmp_path / "precious").touch()
    for name in ("..", ".", ""):
        with pytest.raises(UsageError):
            down.callback(name)  # type: ignore[misc]
    assert (tmp_path / "precious").exists()


def test_a_line_that_is_longer_than_a_piece(tmp_path: Path) -> None:
    """It goes over as a whole, and does not hold up what comes after it."""
    lines = b"a" * 300_000 + b"\n" + b"b\n"
    (tmp_path / "metrics.jsonl").write_bytes(lines + b"begun")
    copy = tmp_path / "copy"
    for change in Mirror(tmp_path, ("metrics.jsonl",), ()).changes():
        put(copy, change)
    assert (copy / "metrics.jsonl").read_bytes() == lines
