"""The parts of a run over several hosts that need none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.carry.agent.channel import Channel
from shanty.carry.agent.place import rank_script
from shanty.carry.agent.verdicts import TOP, late, misplaced
from shanty.carry.agent.world import World
from shanty.carry.mirror import Change, Mirror, is_safe, put
from shanty.carry.mpi.installation import Installation
from shanty.carry.rank.ssh import parse

MPI = Installation("openmpi5", "5", "/p", "/p/bin/mpirun", "/p/lib/libmpi.so.40", "shanty")


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
    place = {
        "workdir": str(work),
        "default": {"OMPI_MCA_btl": "ours", "OMPI_MCA_pml": "ours"},
        "set": {"QUOTED": "a 'b' $c"},
        "first": {"PATH": "/first"},
    }
    text = rank_script(place, {"MASTER_PORT": "1"})
    text = text[: text.rindex("\nexec ")] + "\nenv\npwd\n"
    script = tmp_path / "rank"
    script.write_text(text)
    theirs = {"HOME": "/lead", "XDG_RUNTIME_DIR": "/run/lead", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["/bin/sh", str(script), "7", "-", "python"],
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
        "MASTER_PORT=1",
        "SHANTY_WORLD=7",
    ):
        assert line in lines
    assert any(line.startswith("PATH=/first:") for line in lines)
    assert not any(line.startswith(("XDG_RUNTIME_DIR=", "SHANTY_PASS=")) for line in lines)
    assert "OMPI_MCA_btl=ours" not in lines  # what the host's user has set wins
    assert lines[-1] == str(work)


def world(expected: int, **hosts: str) -> World:
    found = World(expected, MPI)
    for rank, host in enumerate(hosts.values()):
        report = {"event": "started", "rank": rank, "size": expected, "host": host}
        found.report(report, 1.0)
    return found


def test_ranks_on_the_wrong_hosts() -> None:
    plan = {"placement": {"a": 1, "b": 1}}
    assert misplaced(plan, world(2, x="a", y="b")) is None
    verdict = misplaced(plan, world(2, x="a", y="a"))
    assert verdict is not None
    assert verdict.failure.why == "ranks on each host: a 2 (meant: 1), b 0 (meant: 1)"


def test_a_rank_that_never_starts_ends_a_line_of_the_users_too() -> None:
    """The plan does not know how many ranks a raw line starts; its first rank does."""
    plan = {"start_timeout": 60, "ranks": None}
    worlds = {"4711": world(3, x="a", y="b")}
    assert late(plan, worlds, 60.0, 0.0) is None
    verdict = late(plan, worlds, 62.0, 0.0)
    assert verdict is not None
    assert verdict.failure.what == "rank 2 of 3 did not start within 60 s"


def test_no_rank_at_all() -> None:
    verdict = late({"start_timeout": 5, "ranks": 2}, {}, 6.0, 0.0)
    assert verdict is not None
    assert verdict.failure.what == "ranks 0, 1 of 2 did not start within 5 s"
    assert TOP == "0"
