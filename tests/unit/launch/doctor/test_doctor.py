"""The doctor's frame: why a host cannot be had, what a report says, what a repair does."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import clients
from shanty import program
from shanty.client import options
from shanty.client.terminal import findings
from shanty.launch.doctor import check, fixes, reaching
from shanty.launch.doctor.check import Report
from shanty.launch.doctor.facts import need_of
from shanty.launch.finding import CODES, Finding, FoundError, Level, sentence
from shanty.launch.finding import refused as refused_run
from shanty.launch.lock import exclusive_lock
from shanty.launch.network.survey import addressed
from shanty.launch.transport import reachability
from shanty.launch.transport.refusal import Refusal
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import NotFoundError, PrepareError, StorageError, UsageError
from shanty.runtime.rpc import repair as repair_module
from shanty.runtime.site import Host
from shanty.runtime.spec import JobSpec, Program, Raw, State, Status

JOB = JobSpec(Program(("true",)))
NOTE = Finding("net-isolated", Level.NOTE, "a", "docker0 has the same address on all hosts")
ERROR = Finding(
    "shm-full", Level.ERROR, "b", "/dev/shm is full", "0 of 64 MiB are free", "remove files",
    "ssh b rm /dev/shm/x", fixable=True,
)  # fmt: skip
WARNING = Finding("clock-off", Level.WARNING, "a", "its clock is 50 min ahead")
OFF = Refusal(Host("b"), "host-unreachable", "it cannot be reached")


# ---------------------------------------------------------------------- what is asked


SURVEYS = {name: {"cores": 4, "gpus": []} for name in "abc"}
HOSTS = [Host("a"), Host("b", slots=8), Host("c")]


@pytest.mark.parametrize(
    ("job", "ranks"),
    [
        (JOB, {"a": 4, "b": 8, "c": 4}),
        (JobSpec(JOB.command, ranks=5), {"a": 4, "b": 1, "c": 0}),
        (JobSpec(JOB.command, ranks=3, ranks_per_host=1), {"a": 1, "b": 1, "c": 1}),
        (JobSpec(JOB.command, ranks=20, oversubscribe=True), {"a": 6, "b": 9, "c": 5}),
        (JobSpec(Raw(("mpirun", "x"))), {"b": 8}),
    ],
)
def test_how_many_ranks_a_host_is_to_hold(job: JobSpec, ranks: dict[str, int]) -> None:
    assert need_of(job, HOSTS, SURVEYS).ranks == ranks


def test_gpus_and_memory_that_are_needed() -> None:
    assert need_of(JOB, HOSTS, SURVEYS).gpus == 0
    surveys = {**SURVEYS, "b": {"cores": 4, "gpus": [{}, {}]}}
    need = need_of(JobSpec(JOB.command, memory_per_rank=5), HOSTS, surveys)
    assert (need.gpus, need.memory, need.ranks["a"], need.ranks["b"]) == (1, 5, 0, 8)


@pytest.mark.parametrize(
    ("text", "size"),
    [("5", 5), ("2K", 2048), ("1.5G", 3 << 29), ("4GiB", 4 << 30), ("1tb", 1 << 40)],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert options.size(text) == size


@pytest.mark.parametrize("text", ["", "G", "4 gigs", "-1G", "9" * 400 + "G"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError):
        options.size(text)


# ---------------------------------------------------------------------- in a run


def test_an_error_of_the_quick_checks_has_its_code() -> None:
    error = refused_run([ERROR])
    assert error.what == "b: /dev/shm is full [shm-full]"
    assert (error.why, error.fix) == (ERROR.evidence, ERROR.fix)
    both = refused_run([ERROR, WARNING])
    assert both.what == "2 things keep this run from working"
    assert "a: its clock is 50 min ahead [clock-off]" in both.why
    assert isinstance(both, FoundError)


def test_a_sentence_has_all_in_one_line() -> None:
    assert sentence(ERROR) == (
        "b: /dev/shm is full (0 of 64 MiB are free); remove files [shm-full]"
    )


def test_the_runs_that_the_doctor_explains() -> None:
    from shanty.runtime.spec import Failure

    def ended(code: int, rank: int | None = None, state: State = State.FAILED) -> bool:
        return findings.is_a_launch(Status(state, exit_code=code, failure=Failure("x", rank=rank)))

    assert ended(71) and ended(72)
    assert not ended(1) and not ended(71, rank=0) and not ended(143, state=State.STOPPED)


# ---------------------------------------------------------------------- reports, the verb

Doctor = Callable[..., tuple[int, str, str]]


@pytest.fixture
def doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Doctor:
    """`shanty doctor WORDS…` in this process, with these findings on the hosts a and b."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path / "home"))

    def call(*words: str, findings: tuple[Finding, ...] = ()) -> tuple[int, str, str]:
        asked: list[JobSpec] = []

        def examine(job: JobSpec, chosen: Any, *_: Any, holds_ranks: bool, limit: float) -> Report:
            asked.append(job)
            names = tuple(host.name for host in chosen)
            return Report((("",) if holds_ranks else ()) + names, findings, (), 2.06)

        monkeypatch.setattr(check, "examine", examine)
        monkeypatch.setattr(sys, "argv", ["shanty", "doctor", *words])
        with pytest.raises(SystemExit) as stop:
            program.main()
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return int(stop.value.code or 0), out, err

    return call


def test_healthy_hosts_are_one_line(doctor: Doctor) -> None:
    assert doctor("a,b")[:2] == (0, "ok  a, b\n2 hosts: nothing found; 2.1 s\n")
    code, out, _ = doctor()
    assert code == 0
    assert out.endswith("\n\nok  this machine\nall good: nothing found; 2.1 s\n")


def test_this_machine_says_its_versions(doctor: Doctor) -> None:
    version, python = importlib.metadata.version, ".".join(map(str, sys.version_info[:3]))
    said = doctor("--python", sys.executable)[1].splitlines()
    assert said[:2] == [
        f"shanty     {version('shanty')}",
        f"Python     {python} ({sys.executable})",
    ]
    assert said[2].startswith("packages   ") and f"mpi4py {version('mpi4py')}" in said[2]
    assert said[3].startswith("MPI        ") and "(taken)" in said[3]
    told = json.loads(doctor("--json")[1])["versions"]
    assert told["shanty"] == version("shanty")
    assert [each["taken"] for each in told["mpis"]].count(True) == 1
    assert "versions" not in json.loads(doctor("a", "--json")[1])


def test_a_python_that_does_not_run_is_said(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "python").chmod(0o755)
    code, out, err = doctor("--python", "./python")
    assert (code, out) == (0, "ok  this machine\nall good: nothing found; 2.1 s\n")
    assert "does not list its packages" in err


def test_findings_are_grouped_by_host_and_notes_are_asked_for(doctor: Doctor) -> None:
    found = (ERROR, WARNING, NOTE)
    code, out, _ = doctor("a,b,c", findings=found)
    assert code == 69
    assert out == (
        "b\n"
        "  error [shm-full] /dev/shm is full\n"
        "    seen: 0 of 64 MiB are free\n"
        "    fix:  remove files (--fix does it)\n"
        "      $ ssh b rm /dev/shm/x\n"
        "\n"
        "a\n"
        "  warning [clock-off] its clock is 50 min ahead\n"
        "\n"
        "ok  c\n"
        "3 hosts: 1 error, 1 warning, 1 note (-v shows the notes); 2.1 s\n"
    )
    assert "note [net-isolated]" in doctor("a,b,c", "-v", findings=found)[1]


def test_warnings_are_no_failure(doctor: Doctor) -> None:
    assert doctor("a,b", findings=(WARNING, NOTE))[0] == 0


def test_a_report_as_json(doctor: Doctor) -> None:
    code, out, _ = doctor("a,b", "--json", findings=(ERROR,))
    assert code == 69
    assert json.loads(out) == {
        "hosts": ["a", "b"],
        "findings": [
            {
                "code": "shm-full",
                "level": "error",
                "host": "b",
                "what": "/dev/shm is full",
                "evidence": "0 of 64 MiB are free",
                "fix": "remove files",
                "command": "ssh b rm /dev/shm/x",
                "fixable": True,
            }
        ],
        "unfinished": [],
        "seconds": 2.06,
    }


def test_all_codes_are_listed(doctor: Doctor) -> None:
    code, out, _ = doctor("--codes")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["CODE", *CODES]
    assert json.loads(doctor("--codes", "--json")[1]) == CODES


def test_a_python_that_is_not_there(doctor: Doctor) -> None:
    code, _, err = doctor("a", "--python", "/nowhere")
    assert code == NotFoundError.exit_code
    assert "Python not found: '/nowhere'" in err


def test_one_repairs_at_a_time(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with exclusive_lock(tmp_path / "home", UsageError("held")):
        code, _, err = doctor("a", "--fix", findings=(ERROR,))
    assert code == 2
    assert "another `shanty doctor --fix` is running" in err


def test_a_check_that_breaks_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a mistake")

    refusals = [OFF]
    monkeypatch.setattr(reaching, "reached", lambda *_: ([], refusals, []))
    monkeypatch.setattr(reaching, "_views", lambda *_: {})
    monkeypatch.setattr(check.this_machine, "findings", breaks)
    report = check.examine(JOB, [Host("b")], tmp_path, {}, holds_ranks=False)
    assert [one.code for one in report.findings] == ["host-unreachable"]
    assert report.unfinished == ("this machine: a bug in shanty: ZeroDivisionError('a mistake')",)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a", "--on", "b"], "TARGET and --on"),
        (["a", "--memory", "much"], "invalid size 'much'"),
        (["a", "--packages", "maybe"], "check, sync or none"),
        (["a", "--yes"], "--yes is a part of --fix"),
    ],
)
def test_what_the_verb_refuses(doctor: Doctor, words: list[str], says: str) -> None:
    code, _, err = doctor(*words)
    assert code == 2
    assert says in err


# ---------------------------------------------------------------------- host keys

SHOWN = "SHA256:" + "x" * 43
UNKNOWN = Finding("host-key-unknown", Level.ERROR, "b", "its key is not known", fixable=True)


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ([], False),
        (["--yes"], False),
        (["--yes", "--accept-key", SHOWN[:-1]], False),
        (["--accept-key", SHOWN], True),
    ],
)
def test_no_host_key_is_kept_unseen(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, words: list[str], *, kept: bool
) -> None:
    remembered: list[str] = []

    def remember(host: Host, _offered: Any) -> str:
        remembered.append(host.name)
        return "known_hosts"

    offered = fixes.OfferedKey(f"{SHOWN} (ED25519)", b"")
    monkeypatch.setattr(fixes, "offered_key", lambda _host: offered)
    monkeypatch.setattr(fixes, "remember", remember)
    _, _, err = doctor("a,b", "--fix", *words, findings=(UNKNOWN,))
    assert remembered == (["b"] if kept else [])
    assert (f"b shows the host key {SHOWN} (ED25519)" in err) is not kept


# ---------------------------------------------------------------------- the limit


def test_the_names_that_a_host_of_many_looks_up() -> None:
    few = {f"h{n}": {f"h{n}"} for n in range(16)}
    assert check._names_for(few)["h3"] == set(few)
    many = {f"h{n}": {f"h{n}", f"n{n}"} for n in range(256)}
    assert check._names_for(many)["h254"] == {"h0", "n0", "h254", "n254"}


def test_the_limit_is_kept_where_a_host_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not done is said, and no host is blamed for our haste."""

    closed: list[str] = []

    class Mute:
        noise = ""

        def __init__(self, name: str) -> None:
            self.host = Host(name)

        def ask(self, _verb: str, *, patience: float, **_args: Any) -> Any:
            time.sleep(patience)
            raise PrepareError("it has said nothing")

        def close(self, _grace: float) -> None:
            closed.append(self.host.name)

    mute = [Mute(f"h{n}") for n in range(100)]
    monkeypatch.setattr(reaching, "reached", lambda *_: (mute, [], []))
    monkeypatch.setattr(check.this_machine, "findings", lambda *_, **__: [])
    began = time.monotonic()
    report = check.examine(
        JOB, [one.host for one in mute], tmp_path, {}, holds_ranks=False, limit=2.0
    )
    assert time.monotonic() - began < 4.0
    assert report.findings == ()
    assert any("the survey of h0, h1" in text for text in report.unfinished)
    assert (report.hosts, report.healthy) == ((), False)  # none of them is "ok"
    assert len(closed) == len(mute)


def test_a_host_that_is_off_is_named_though_nobody_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = threading.Event()
    off_host = [OFF]
    monkeypatch.setattr(reaching, "reached", lambda *_: ([], off_host, []))
    monkeypatch.setattr(reaching, "_views", lambda *_: off.wait(20) and {})
    monkeypatch.setattr(check.this_machine, "findings", lambda *_, **__: [])
    try:
        report = check.examine(JOB, [Host("b")], tmp_path, {}, holds_ranks=False, limit=1.5)
    finally:
        off.set()
    assert [(one.code, one.host) for one in report.findings] == [("host-unreachable", "b")]
    assert not report.healthy
    assert report.unfinished


def test_networks_are_judged_by_the_addresses_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what is measured would be kept under another name than a run looks for."""
    address = {"address": "10.0.0.1", "interface": "eth0"}
    survey = {"ssh": None, "addresses": [address]}  # reached without ssh, as localhost is
    other = {"ssh": {"server": "192.0.2.2"}, "addresses": []}
    clients: Any = [SimpleNamespace(host=Host("localhost")), SimpleNamespace(host=Host("b"))]
    surveys = {"localhost": survey, "b": other}
    ways = [{"source": "", "peer": ""}, {"source": "10.0.0.1", "peer": "10.0.0.2"}]
    monkeypatch.setattr(reachability, "to_hosts", lambda *_: ways)
    assert [one.address for one in addressed(clients, surveys)] == ["10.0.0.1", "10.0.0.2"]

    def blocked(*_: Any) -> Any:
        raise PrepareError("b is not reached")

    monkeypatch.setattr(reachability, "to_hosts", blocked)
    assert [one.address for one in addressed(clients, surveys)] == ["10.0.0.1", "192.0.2.2"]


# ---------------------------------------------------------------------- repairs on a host


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RpcClient]:
    with clients.client("host", tmp_path / "home") as found:
        yield found


def mended(client: RpcClient, what: str, **args: Any) -> list[str]:
    done: list[str] = client.ask("repair", what=what, **args).values["done"]
    return done


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINewNewNewNewNewNewNewNewNewNewNewNewNewNewNew me@desk"


@pytest.mark.parametrize("before", [None, "", "# mine\nssh-rsa AAAA her", "ssh-rsa AAAA her\n"])
def test_a_key_is_let_in_once_and_all_else_stays(
    client: RpcClient, tmp_path: Path, before: str | None
) -> None:
    file = tmp_path / "home/.ssh/authorized_keys"
    if before is not None:
        file.parent.mkdir(mode=0o775)
        file.write_text(before)
        file.chmod(0o664)
    assert mended(client, "add-key", key=KEY) == [f"your key is in {file}"]
    text = before or ""
    assert file.read_text() == text + ("" if not text or text[-1] == "\n" else "\n") + KEY + "\n"
    assert not (file.stat().st_mode | file.parent.stat().st_mode) & 0o022
    after = file.read_bytes()
    assert mended(client, "add-key", key=KEY) == [f"your key is in {file} already"]
    assert file.read_bytes() == after


@pytest.mark.parametrize("before", ["# ", 'from="10.9.9.9" ', 'command="true" '])
def test_a_key_with_options_is_not_there_yet(
    client: RpcClient, tmp_path: Path, before: str
) -> None:
    file = tmp_path / "home/.ssh/authorized_keys"
    file.parent.mkdir(mode=0o700)
    file.write_text(f"{before}{KEY}\n")
    assert mended(client, "add-key", key=KEY) == [f"your key is in {file}"]
    assert file.read_text() == f"{before}{KEY}\n{KEY}\n"


def test_what_is_no_key_is_not_let_in(client: RpcClient, tmp_path: Path) -> None:
    for key in ("", "ssh-rsa", "ssh-rsa AAAA\nssh-rsa BBBB"):
        with pytest.raises(UsageError):
            mended(client, "add-key", key=key)
    assert not (tmp_path / "home/.ssh").exists()


def test_settings_become_comments(client: RpcClient, tmp_path: Path) -> None:
    file = tmp_path / "home/.openmpi/mca-params.conf"
    file.parent.mkdir()
    text = "# old\nbtl = ^tcp\n btl_tcp_if_include=ib0\nbtl_tcp_if_exclude = lo\n"
    file.write_text(text)
    settings = [[str(file), "btl_tcp_if_include"], [str(file), "btl"]]
    (said,) = mended(client, "comment-out", settings=settings)
    assert "btl_tcp_if_include, btl in " in said
    assert file.read_text() == (
        "# old\n# btl = ^tcp\n#  btl_tcp_if_include=ib0\nbtl_tcp_if_exclude = lo\n"
    )
    backup = file.with_name(file.name + repair_module.BACKUP)
    assert backup.read_text() == text
    assert mended(client, "comment-out", settings=settings) == []
    assert backup.read_text() == text  # as it was at first
    file.write_text("btl = ^sm\n")
    second = backup.with_name(backup.name + "-2")
    (said,) = mended(client, "comment-out", settings=settings)
    assert f"({second} has it as it was)" in said
    assert (backup.read_text(), second.read_text()) == (text, "btl = ^sm\n")


def test_settings_stay_where_no_copy_can_be_kept(client: RpcClient, tmp_path: Path) -> None:
    name = "m" * (254 - len(repair_module.BACKUP)) + ".conf"  # the copy's would be too long
    file = tmp_path / "home" / name
    file.write_text("btl = ^tcp\n")
    with pytest.raises(StorageError, match="was not changed"):
        mended(client, "comment-out", settings=[[str(file), "btl"]])
    assert file.read_text() == "btl = ^tcp\n"


def test_a_file_of_the_system_is_left_alone(client: RpcClient, tmp_path: Path) -> None:
    file = tmp_path / "system.conf"
    file.write_text("btl = ^tcp\n")
    with pytest.raises(UsageError, match="not in your home"):
        mended(client, "comment-out", settings=[[str(file), "btl"]])
    assert file.read_text() == "btl = ^tcp\n"


def test_a_home_is_closed_to_others(client: RpcClient, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.chmod(0o777)
    (home / ".ssh").mkdir(mode=0o700)
    assert mended(client, "close-home") == [f"only you may write {home} now"]
    assert home.stat().st_mode & 0o777 == 0o755
    assert mended(client, "close-home") == []


def test_what_no_run_uses_is_removed(client: RpcClient, tmp_path: Path) -> None:
    store = tmp_path / "home/.shanty/store"
    for name in ("0123456789abcdef0123", "fedcba9876543210fedc", "aaaa456789abcdef0123"):
        (store / "env" / name).mkdir(parents=True)
        (store / "env" / name / "file").write_bytes(os.urandom(1 << 20))
        if name[0] != "a":  # that one is of a run that is about to begin
            os.utime(store / "env" / name, (1e9, 1e9))
    plan = tmp_path / "home/.shanty/work/20260101-000000-abcd.0/plan.json"
    plan.parent.mkdir(parents=True)
    plan.write_text(json.dumps({"python": f"{store}/env/fedcba9876543210fedc/bin/python"}))
    mended(client, "make-room")
    left = sorted(path.name for path in (store / "env").iterdir())
    assert left == ["aaaa456789abcdef0123", "fedcba9876543210fedc"]
    assert next(store.glob("bundle/*")).is_dir()  # what serves here


def test_what_environments_are_made_of_stays_while_one_is_made(
    client: RpcClient, tmp_path: Path
) -> None:
    store = tmp_path / "home/.shanty/store"
    cache, made = store / "uv-cache", store / "env/.0123456789abcdef-x"
    made.mkdir(parents=True)
    cache.mkdir()
    mended(client, "make-room")
    assert cache.is_dir()  # it is younger than an hour
    os.utime(cache, (1e9, 1e9))
    mended(client, "make-room")
    assert cache.is_dir()
    made.rmdir()
    mended(client, "make-room")
    assert not cache.exists()


def test_a_repair_that_there_is_not(client: RpcClient) -> None:
    with pytest.raises(UsageError, match="unknown repair 'everything'"):
        mended(client, "everything")
