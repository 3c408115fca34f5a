"""What Slurm says of jobs, and how runs stand by it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from shanty.runtime import run_agents, run_status
from shanty.runtime.queued_runs import Ending, Entry, QueuedRuns
from shanty.runtime.rundir import RunDir, write_json
from shanty.runtime.slurm import ending_reason, parse, queue, submit, tools
from shanty.runtime.spec import State, Status


class FakeQueue:
    """A queue that knows what it is told."""

    scheme: ClassVar[str] = "slurm"

    def __init__(self, known: dict[str, Entry]) -> None:
        self.known = known
        self.gone: list[str] = []

    def look(self, names: Collection[str], age: float = 0.0) -> Mapping[str, Entry]:
        return {name: self.known[name] for name in names if name in self.known}

    def dequeue(self, name: str) -> None:
        self.gone.append(name)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path / "20261124-192142-s4hn")
    found.create()
    write_json(found.job, {})
    write_json(found.site, {"target": "slurm", "name": "7"})
    write_json(found.status, Status.new(3).to_json())
    return found


def stands(run: RunDir, entry: Entry | None) -> Status:
    return QueuedRuns(FakeQueue({"7": entry} if entry else {})).describe([run])[run]


def test_a_job_that_waits(run: RunDir) -> None:
    found = stands(run, Entry(True, "it is next"))
    assert (found.state, found.reason) == (State.PENDING, "it is next")


def test_a_job_that_is_queued_again_has_both_reasons(run: RunDir) -> None:
    write_json(run.status, {**Status.new(3).to_json(), "reason": "it was preempted"})
    assert stands(run, Entry(True, "it is next")).reason == "it was preempted; it is next"


def test_a_job_that_has_ended_without_a_word(run: RunDir) -> None:
    found = stands(run, Entry(False, "", queue.ending("NODE_FAIL", "7", "n1")))
    assert (found.state, found.exit_code) == (State.FAILED, 71)
    assert found.failure is not None
    assert "n1" in found.failure.what
    assert run_status.read_status(run).state is State.FAILED


def test_what_the_controller_has_said_counts(run: RunDir) -> None:
    write_json(run.status, {**Status.new(3).to_json(), "state": "succeeded", "exit_code": 0})
    assert stands(run, Entry(False, "", queue.ending("FAILED", "7"))).state is State.SUCCEEDED


def test_a_job_that_would_wait_for_ever_is_taken_out(run: RunDir) -> None:
    end = Ending(State.FAILED, None, 71)
    fake = FakeQueue({"7": Entry(True, "", end)})
    assert QueuedRuns(fake).describe([run])[run].state is State.FAILED
    assert fake.gone == ["7"]


def test_a_run_within_an_allocation_does_not_give_it_back(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        run_agents, "ask", lambda _run, request: asked.append(request) or {"ok": True}
    )
    write_json(run.site, {"target": "slurm", "name": "7", "within": True})
    fake = FakeQueue({"7": Entry(False, "its nodes are there")})
    QueuedRuns(fake).cancel(run, 1.0)
    assert (asked, fake.gone) == ([{"kind": "stop", "grace": 1.0}], [])


@pytest.mark.parametrize(
    ("state", "ended", "code"),
    [
        ("CANCELLED", State.STOPPED, 143), ("TIMEOUT", State.FAILED, 124),
        ("DEADLINE", State.FAILED, 124), ("PREEMPTED", State.FAILED, 71),
        ("NODE_FAIL", State.FAILED, 71), ("OUT_OF_MEMORY", State.FAILED, 137),
        ("FAILED", State.FAILED, 71), ("COMPLETED", State.FAILED, 71),
    ],
)  # fmt: skip
def test_ends_by_slurm(state: str, ended: State, code: int) -> None:
    found = queue.ending(state, "7")
    assert (found.state, found.code) == (ended, code)
    assert (found.failure is None) == (ended is State.STOPPED)


def test_a_job_that_its_node_refused() -> None:
    node = {
        "NodeName": "n0", "State": "IDLE+DRAIN",
        "Reason": "SlurmdSpoolDir is full [root@2026-11-24T19:44:22]",
    }  # fmt: skip
    assert queue.refused_by([node], "2026-11-24T19:44:22") == "n0: SlurmdSpoolDir is full"
    assert queue.refused_by([node], "2026-11-24T20:00:00") == ""  # that was before the job
    assert queue.refused_by([{"NodeName": "n0", "State": "IDLE"}], "2026-11-24T19:44:22") == ""


def waiting(*jobs: tuple[str, str, int]) -> list[parse.Job]:
    return [parse.Job(name, "PENDING", "", where, rank, "", "") for name, where, rank in jobs]


def test_places_in_the_queue() -> None:
    everybody = waiting(
        ("1", "a", 5), ("2", "a", 9), ("3", "a", 5), ("4", "b", 99), ("5", "a,b", 7)
    )
    found = queue.places([everybody[2]], everybody)
    assert found == {"3": (4, 4)}  # behind 2 and 5, and behind 1, which came first
    assert queue.places([everybody[3]], everybody) == {"4": (1, 2)}


LOG = "slurmstepd-n0: error: *** JOB 7 ON n0 CANCELLED AT 2026-11-24T19:23:33{} ***\n"
WHY = [
    ({"JobState": "COMPLETING", "Restarts": "0"}, "", 0, "stopped", ""),
    ({"JobState": "COMPLETING", "Reason": "TimeLimit", "TimeLimit": "00:01:00"}, "", 0, "failed",
     "00:01:00"),
    ({}, " DUE TO TIME LIMIT", 0, "failed", "time limit"),
    ({"Restarts": "1"}, " DUE TO PREEMPTION", 0, "pending", "preempted"),
    ({"Restarts": "1"}, " DUE TO PREEMPTION", 1, "failed", "preempted"),
    ({"Restarts": "0", "PreemptTime": "2026-11-24T19:09:17"}, "", 0, "failed", "preempted"),
    ({"Restarts": "2"}, "", 1, "pending", "queued again"),
    ({"Restarts": "1"}, " DUE TO NODE FAILURE", 0, "pending", "node"),
    ({}, " DUE TO NODE FAILURE, SEE SLURMCTLD LOG", 0, "failed", "node"),
    ({}, "", 0, "stopped", ""),
]  # fmt: skip


@pytest.mark.parametrize(("shown", "due", "restarts", "state", "text"), WHY)
def test_why_slurm_ends_a_job(
    shown: dict[str, str], due: str, restarts: int, state: str, text: str
) -> None:
    found = ending_reason.why(shown, LOG.format(due), "7", restarts)
    assert found["state"] == state
    said = found.get("reason", "") + str(found.get("failure", ""))
    assert text in said


def test_words_about_another_job_do_not_count() -> None:
    log = LOG.format(" DUE TO PREEMPTION").replace("JOB 7", "JOB 17")
    assert ending_reason.why({}, log, "7", 0)["state"] == "stopped"


# ---------------------------------------------------------------------------------- tools


def test_complaints_are_one_line() -> None:
    answer = tools.Answer(
        1, "", "sbatch: error: one\nsbatch: error: one\nallocation failure: two\n"
    )
    assert answer.complaint == "one; allocation failure: two"
    assert not answer.unheard
    assert tools.Answer(1, "", "squeue: error: Unable to contact slurm controller\n").unheard


def test_a_tool_that_hangs_is_killed() -> None:
    assert tools.ask(["sleep", "60"], patience=0.2).code is None
    assert tools.ask(["no-such-tool-of-slurm"]).code == 127


@pytest.mark.parametrize("shell", ["/bin/sh", "csh"])
def test_tools_that_only_a_login_shell_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    """Some shells do not take -lc."""
    (tmp_path / "sbatch").touch(mode=0o755)
    (tmp_path / "csh").write_text("#!/bin/sh\necho 'Unknown option: -lc'\nexit 1\n")
    (tmp_path / "csh").chmod(0o755)
    (tmp_path / ".profile").write_text(f"PATH={tmp_path}:$PATH\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("SHELL", str(tmp_path / shell))
    tools.find()
    assert tools.are_here()


MOUNTS = """\
22 1 0:1 / / rw - ext4 /dev/root rw
23 22 0:2 / /home rw - nfs4 server:/home rw
24 22 0:3 / /tmp rw - tmpfs tmpfs rw
25 22 0:4 / /scratch rw - lustre mgs rw
26 22 0:5 / /data\\040local rw - xfs /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("/home/ann/work", True), ("/scratch/ann", True), ("/tmp/x", False), ("/usr/bin/x", True),
        ("/data local/x", False), ("/root/x", False),
    ],
)  # fmt: skip
def test_what_nodes_see(path: str, seen: bool) -> None:
    assert submit.is_shared(path, "/home/ann", MOUNTS) is seen
