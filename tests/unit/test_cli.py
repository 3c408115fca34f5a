"""The command line without MPI: what it refuses and how, and what it finds in damaged folders."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shanty.cli import app, jobs
from shanty.launch import mpis
from shanty.runtime import platform
from shanty.runtime.agent.control import lost_cause
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.rundir import RunDir, append_line, write_json
from shanty.runtime.spec import Failure, JobSpec, Script, State, Status

MPI = Installation("openmpi5", "5.0.11", "/mpi", "/mpi/bin/mpirun", "/mpi/lib/libmpi.so", "shanty")
LONG_AGO = 1_700_000_000.0
# None of them is needed for a help text, and each would be felt.
HEAVY = {
    "asyncio",
    "concurrent",
    "email",
    "http",
    "importlib.metadata",
    "jinja2",
    "logging",
    "mpi4py",
    "multiprocessing",
    "numpy",
    "pdb",
    "pydantic",
    "rich",
    "runpy",
    "sklearn",
    "ssl",
    "tomllib",
    "torch",
    "unittest",
    "urllib.request",
    "xml",
    "yaml",
}


class Done(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Done]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a workspace of one's own, and a machine with two cores and one MPI."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text("print('hi')\n")
    monkeypatch.chdir(tmp_path / "work")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "XDG_SESSION_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(platform, "usable_cores", lambda: 2)
    monkeypatch.setattr(mpis, "select", lambda *_: MPI)
    return tmp_path / "home"


@pytest.fixture
def cli(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """`shanty WORDS…` in this process; an exception that gets out of it fails the test."""

    def call(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["shanty", *words])
        code = 0
        try:
            app.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        sys.stdout.flush()
        return Done(code, *capfd.readouterr())

    return call


def make_run(
    home: Path,
    number: int,
    state: State | None = State.SUCCEEDED,
    *,
    suffix: str = "bcdf",
    name: str | None = None,
    tags: Sequence[str] = (),
    **status: Any,
) -> RunDir:
    """A run as its directory shows it, without status for the state None; alive unless ended."""
    run = RunDir(home / "runs" / f"20240101-0000{number:02d}-{suffix}")
    run.create()
    job = JobSpec(Script("train.py"), workdir="/work", name=name, tags=tuple(tags))
    write_json(run.job, job.to_json())
    if state is None:
        return run
    ended = LONG_AGO + 5 if state.final else None
    written = Status(state, 2, created=LONG_AGO, ended=ended, exit_code=0 if ended else None)
    write_json(run.status, replace(written, **status).to_json())
    if not state.final:
        me = platform.process(os.getpid())
        assert me is not None
        agent = {"pid": me.pid, "born": me.born}
        write_json(
            run.agents, {"controller": agent, "node_agent": agent, "boot": platform.boot_id()}
        )
    return run


def listed(done: Done) -> dict[str, str]:
    """The states of the runs that `ps --json` printed."""
    assert done.code == 0, done.err
    entries = [json.loads(line) for line in done.out.splitlines()]
    return {entry["id"][-11:-5]: entry["state"] for entry in entries}


@pytest.mark.parametrize("words", [["doctor", "--codes"], ["run", "--help"]])
def test_output_that_finds_no_room(words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "shanty", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 73
    assert done.stderr.splitlines()[0] == "shanty: the output cannot be written"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["0.001", "99999999999999h", "", "soon"])
def test_no_time_for_a_stall(text: str) -> None:
    with pytest.raises(UsageError):
        jobs.stall_after(text)


@pytest.mark.parametrize(("text", "wanted"), [("off", 0), ("OFF", 0), ("0", 0), ("2m", 120)])
def test_a_time_for_a_stall(text: str, wanted: float) -> None:
    assert jobs.stall_after(text) == wanted


def test_the_first_rank_that_writes_has_its_label(cli: Cli, home: Path) -> None:
    run = make_run(home, 1)  # of two ranks
    run.rank_log(0).write_text("1700000000.0 1 ready\n")
    assert cli("logs", "last") == Done(0, "[0] ready\n", "")
    assert cli("logs", "--rank", "0", "last") == Done(0, "ready\n", "")


# ------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["frobnicate"], 2, "No such command 'frobnicate'"),
        (["run"], 2, "Missing argument"),
        (["run", "--frobnicate", "train.py"], 2, "--frobnicate"),
        (["run", "-n", "two", "train.py"], 2, "'-n'"),
        (["run", "-n", "0", "train.py"], 2, "ranks must be at least 1, not 0"),
        (["run", "-n", "-1", "train.py"], 2, "ranks must be at least 1, not -1"),
        (["run", "--ppn", "0", "train.py"], 2, "ranks per host must be at least 1"),
        (["run", "-c", "0", "train.py"], 2, "cpus per rank must be at least 1"),
        (["run", "-n", "3", "train.py"], 2, "take -n 2, or --oversubscribe"),
        (["run", "-n", "2", "-c", "2", "train.py"], 2, "2 ranks with 2 cpus each do not fit"),
        (["run", "-n", "2", "--ppn", "1", "train.py"], 2, "leave -n or --ranks-per-host out"),
        (["run", "nothing.py"], 66, "there is no script 'nothing.py'"),
        (["run", "-C", "nowhere", "train.py"], 2, "check --workdir"),
        (["run", "-m"], 2, "-m needs the name of a module"),
        (["run", "--time-limit", "soon", "train.py"], 2, "write 90, 90s, 15m, 2h, 1h30m"),
        (["run", "--start-timeout", "-1", "train.py"], 2, "'-1' is no time"),
        (["run", "-e", "=1", "train.py"], 2, "'=1' is no KEY=VALUE"),
        (["run", "--env-file", "nowhere", "train.py"], 66, "cannot read the env file nowhere"),
        (["run", "--python", "./nowhere", "train.py"], 66, "there is no Python at './nowhere'"),
        (["run", "--python", "nopython", "train.py"], 66, "there is no Python at 'nopython'"),
        (["run", "--debug", "0", "-d", "train.py"], 2, "--debug needs a terminal"),
        (["show", "nothing"], 66, "there is no run 'nothing'"),
        (["show"], 66, "there are no runs yet"),
        (["logs", "nothing"], 66, "there is no run 'nothing'"),
        (["rerun", "nothing"], 66, "there is no run 'nothing'"),
        (["stop"], 2, "which run?"),
        (["rm"], 2, "Missing argument"),
        (["rm", "nothing"], 66, "there is no run 'nothing'"),
        (["prune", "--keep", "-1"], 2, "--keep must be 0 or more"),
        (["ps", "--state", "dead"], 2, "known are pending, starting, running"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_words(cli: Cli, words: list[str], code: int, says: str) -> None:
    done = cli(*words)
    assert done.code == code
    assert says in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_no_command_shows_the_help(cli: Cli) -> None:
    done = cli()
    assert done.code == 2
    assert "Commands:" in done.out + done.err


@pytest.mark.parametrize("verb", ["", "run", "ps", "show", "logs", "stop", "stacks", "mpi"])
def test_help(cli: Cli, verb: str) -> None:
    done = cli(*verb.split(), "--help")
    assert done.code == 0
    assert done.out.startswith("Usage: ")
    assert cli(*verb.split(), "-h").out == done.out


def test_too_few_cores_may_be_shared_on_request(cli: Cli) -> None:
    assert cli("run", "-n", "5", "--oversubscribe", "--dry-run", "train.py").code == 0


def test_a_dry_run_writes_nothing(cli: Cli, home: Path) -> None:
    done = cli("run", "-n", "2", "--dry-run", "train.py", "--epochs", "3")
    assert done.code == 0
    assert done.out.splitlines()[-1].endswith("train.py --epochs 3")
    assert not home.exists()


def loaded_for_help() -> set[str]:
    code = "import sys, shanty.cli.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_a_help_text_loads_nothing_heavy() -> None:
    assert not HEAVY & loaded_for_help()


def test_a_help_text_loads_nothing_that_looks_at_runs() -> None:
    avoidable = {
        "shanty.runtime.mpi.detect",
        "shanty.launch.index",
        "shanty.launch.mpis",
        "shanty.launch.targets.local",
        "socket",
        "sqlite3",
    }
    assert not avoidable & loaded_for_help()


# ----------------------------------------------------------------------- words of a command


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["-n", "2"],
        ["-n2"],
        ["--ranks=2"],
        ["--ranks", "2"],
        ["-np", "2"],
        ["-q"],
        ["--name", "x", "--tag", "a", "-e", "A=1", "--oversubscribe"],
    ],
    ids=" ".join,
)
def test_a_module_and_the_options_after_it(cli: Cli, options: list[str]) -> None:
    words = ["-m", "pack.train", "-n", "7", "--frobnicate", "-m", "x"]
    done = cli("run", "--dry-run", *options, *words)
    assert done.code == 0, done.err
    assert done.out.rstrip().endswith("-m pack.train -n 7 --frobnicate -m x")


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (["train.py", "-n", "7", "--quiet", "--", "-x"], "train.py -n 7 --quiet -- -x"),
        (["--", "train.py", "-n", "7"], "train.py -n 7"),
        (["sh", "-c", "echo $RANK"], "sh -c 'echo $RANK'"),
        (["--", "mpirun", "-np", "2", "train.py"], "\nmpirun -np 2 train.py"),
        (["mpiexec.hydra", "-n", "2", "x"], "\nmpiexec.hydra -n 2 x"),
        (["mpirun -np 2 python train.py"], "\nsh -c 'mpirun -np 2 python train.py'"),
        (["--raw", "./all.sh", "3"], "\n./all.sh 3"),
    ],
)
def test_what_a_command_means(cli: Cli, words: list[str], end: str) -> None:
    done = cli("run", "--dry-run", *words)
    assert done.code == 0, done.err
    assert done.out.rstrip().endswith(end)


def test_environment_variables() -> None:
    given = ["A=1", "B=", "C=x=y ' z", "HOME", "UNSET", "A=2"]
    assert jobs.environment(given, [], {"HOME": "/home/ann"}) == {
        "A": "2",
        "B": "",
        "C": "x=y ' z",
        "HOME": "/home/ann",
    }
    for bad in ("=1", "A B=1", " =", "A\nB=1"):
        with pytest.raises(UsageError, match="no KEY=VALUE"):
            jobs.environment([bad], [], {})


def test_env_files(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("# words\n\nexport A=1\n B = two words \nC='a b'\nD=\"\"\nE='x\nUSER\nNONE\n")
    assert jobs.environment(["A=9"], [file], {"USER": "ann"}) == {
        "A": "9",
        "B": "two words",
        "C": "a b",
        "D": "",
        "E": "'x",
        "USER": "ann",
    }
    file.write_text("A=1\n=2\n")
    with pytest.raises(UsageError, match=r"env:2: '=2'"):
        jobs.environment([], [file], {})
    file.write_bytes(b"A=\xff\n")
    with pytest.raises(NotFoundError):
        jobs.environment([], [file], {})


_NUMBER = st.integers(0, 99)


@given(_NUMBER, _NUMBER, _NUMBER, _NUMBER)
def test_times_with_units(days: int, hours: int, minutes: int, rest: int) -> None:
    wanted = days * 86400 + hours * 3600 + minutes * 60 + rest
    assert jobs.seconds(f"{days}d{hours}h{minutes}m{rest}s") == wanted
    assert jobs.seconds(f" {hours}h{minutes}m{rest} ") == wanted - days * 86400
    assert jobs.seconds(f"{hours}:{minutes}:{rest:02d}") == wanted - days * 86400
    assert jobs.seconds(f"{minutes}:{rest:02d}") == minutes * 60 + rest
    assert jobs.seconds(f"{days}.5h") == (days + 0.5) * 3600


@example("9" * 400 + ":00")
@example("9" * 5000 + "s")
@given(st.text() | st.from_regex(r"[\d.:dhms \-+]{1,9}", fullmatch=True))
def test_a_time_is_a_number_or_refused(text: str) -> None:
    try:
        assert 0 <= jobs.seconds(text) < float("inf")
    except UsageError as error:
        assert repr(text) in error.what


# ------------------------------------------------------------------------ files of the user


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[run\n", "is no valid TOML"),
        ("[run]\nrnaks = 2\n", "unknown key 'rnaks'"),
        ("[run]\nranks = 'two'\n", "ranks in [run]"),
        ("[run]\nranks = true\n", "must be a whole number, not True"),
        ("[run]\nranks = 0\n", "ranks must be at least 1"),
        ("[run]\ntime_limit = 'soon'\n", "'soon' is no time"),
        ("[run]\nenv = 'A=1'\n", "must be a table"),
        ("[run]\ntags = [1]\n", "tags"),
        ("run = 3\n", "run"),
        (b"[run]\nname = '\xff'\n", "cannot read"),
    ],
)
def test_a_bad_shanty_toml(cli: Cli, text: str | bytes, says: str) -> None:
    Path("shanty.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    done = cli("run", "--dry-run", "train.py")
    assert done.code == 2
    assert says in done.err
    assert "shanty.toml" in done.err or "time" in says or "at least" in says


def test_shanty_toml_gives_defaults(cli: Cli) -> None:
    Path("shanty.toml").write_text(
        "[run]\nranks = 2\ntime_limit = '2m'\ntags = ['a']\nenv = { A = 'x', B = 3 }\n"
    )
    done = cli("run", "--dry-run", "-e", "A=mine", "train.py")
    assert {"# ranks   2", "export A=mine", "export B=3"} <= set(done.out.splitlines())
    assert "# ranks   1" in cli("run", "--dry-run", "-n", "1", "train.py").out
    job = jobs.make_job(Script("train.py"), Path.cwd(), {"env": {}, "tags": ("b",)})
    assert (job.time_limit, job.tags) == (120.0, ("b",))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("keep_rnus = 3\n", "unknown setting 'keep_rnus'"),
        ("keep_runs = 'all'\n", "keep_runs"),
        ("stop_grace = -1\n", "stop_grace"),
        ("log_limit = true\n", "log_limit"),
        ("log_limit\n", "is no valid TOML"),
    ],
)
def test_bad_settings(cli: Cli, home: Path, text: str, says: str) -> None:
    home.mkdir()
    (home / "config.toml").write_text(text)
    done = cli("ps")
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert "config.toml" in done.err


# ------------------------------------------------------------------------------ bad storage


@pytest.mark.parametrize("kind", ["a file", "nowhere"])
def test_a_home_that_cannot_be_written(
    cli: Cli, home: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "a file":
        home.write_text("")
    else:
        if not Path("/proc/self").exists():
            pytest.skip("there is no /proc")
        monkeypatch.setenv("SHANTY_HOME", "/proc/nonexistent")
    done = cli("run", "-n", "2", "train.py")
    assert done.code == 73, done.err
    assert "SHANTY_HOME" in done.err
    assert "Traceback" not in done.err


def test_a_full_disk(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (tmp_path / "train.py").write_text("")
    unshare = next(
        (
            words
            for words in (["unshare", "-m"], ["unshare", "-rm"])
            if shutil.which("unshare")
            and not subprocess.run(
                [*words, "mount", "-t", "tmpfs", "none", str(folder)], capture_output=True
            ).returncode
        ),
        None,
    )
    if unshare is None:
        pytest.skip("no file system can be mounted here (unshare -m)")
    script = (
        'mount -t tmpfs -o size=64k none "$1" && { head -c 1000000 /dev/zero >"$1/fill"; '
        'SHANTY_HOME="$1" "$2" -m shanty run -n 1 train.py; }'
    )
    done = subprocess.run(
        [*unshare, "sh", "-c", script, "sh", str(folder), sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 73, done.stderr
    assert "No space left on device" in done.stderr
    assert "free some space" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"state": "none"}',
        b'{"state": 3}',
        b'{"state": "failed", "failure": 3}',
        b'{"state": "failed", "failure": {"lines": 1}}',
    ],
)
def test_a_damaged_status_is_made_up_for_from_the_events(
    cli: Cli, home: Path, damage: bytes
) -> None:
    run = make_run(home, 1)
    status = Status(State.FAILED, 2, exit_code=3, failure=Failure("rank 1 fell"))
    append_line(run.events, {"event": "state", "status": status.to_json()})
    with run.events.open("ab") as events:
        events.write(b'\xff{"event": "state"\n{"event": "sta')
    run.status.write_bytes(damage)
    done = cli("show", "last", "--json")
    shown = json.loads(done.out)
    assert (shown["state"], shown["exit_code"]) == ("failed", 3)
    assert shown["failure"]["what"] == "rank 1 fell"


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff",
        b"[1]",
        b'{"event": "state"}\n',
        b'{"state": "lost"}\n' * 3,
        b'{"state": "failed", "created": "x"}',
    ],
)
def test_no_damage_loses_a_run(cli: Cli, home: Path, damage: bytes) -> None:
    good, bad = make_run(home, 1), make_run(home, 2)
    for file in (bad.status, bad.events, bad.job, bad.plan, bad.agents, bad.progress):
        file.write_bytes(damage)
    make_run(home, 3)
    assert set(listed(cli("ps", "--json"))) == {"000001", "000002", "000003"}
    for words in (["ps"], ["show", bad.id], ["logs", bad.id], ["show", good.id]):
        assert cli(*words).code == 0, words
    assert "damaged" in cli("rerun", bad.id).err


@pytest.mark.parametrize(
    "statement",
    [
        None,
        "DROP TABLE runs",
        "UPDATE runs SET status = '{'",
        "UPDATE runs SET status = '{}'",
        "ALTER TABLE runs RENAME COLUMN tags TO labels",
    ],
)
def test_a_damaged_index_loses_no_run(cli: Cli, home: Path, statement: str | None) -> None:
    make_run(home, 1)
    make_run(home, 2, State.FAILED)
    wanted = {"000001": "succeeded", "000002": "failed"}
    assert listed(cli("ps", "--json")) == wanted
    if statement is None:
        (home / "index.sqlite").write_bytes(b"no database at all" * 100)
    else:
        with sqlite3.connect(home / "index.sqlite") as index:
            index.execute(statement)
        index.close()
    assert listed(cli("ps", "--json")) == wanted
    (home / "index.sqlite").unlink()
    assert listed(cli("ps", "--json")) == wanted


# ----------------------------------------------------------------------------- finding runs


def test_a_run_is_found_by(cli: Cli, home: Path) -> None:
    first = make_run(home, 1, name="small", suffix="bbbb")
    second = make_run(home, 2, name="big", suffix="cccc")
    third = make_run(home, 3, name="small", suffix="dddd")
    for reference, run in {
        first.id: first,
        first.id[:15]: first,
        second.id[:-1]: second,
        "big": second,
        "small": third,
        "last": third,
    }.items():
        assert json.loads(cli("show", reference, "--json").out)["id"] == run.id, reference
    assert json.loads(cli("show", "--json").out)["id"] == third.id
    done = cli("show", "20240101")
    assert done.code == 2
    assert "'20240101' fits 3 runs" in done.err
    assert second.id in done.err


def test_what_is_no_run_is_passed_over(cli: Cli, home: Path) -> None:
    make_run(home, 1)
    (home / "runs" / "notes").mkdir()
    (home / "runs" / "a.txt").write_text("")
    assert set(listed(cli("ps", "--json"))) == {"000001"}


def test_ps_filters(cli: Cli, home: Path) -> None:
    make_run(home, 1, name="a", tags=["x", "y"])
    make_run(home, 2, State.FAILED, name="a", tags=["x"], exit_code=3)
    make_run(home, 3, State.RUNNING, name="b")
    for words, wanted in {
        (): "1 2 3",
        ("--active",): "3",
        ("--state", "failed"): "2",
        ("--name", "a"): "1 2",
        ("--state", "failed", "--state", "running"): "2 3",
        ("--tag", "x"): "1 2",
        ("--tag", "x", "--tag", "y"): "1",
        ("--name", "a", "--active"): "",
    }.items():
        found = [run[-1] for run in listed(cli("ps", "--json", *words))]
        assert found == wanted.split(), words
    assert cli("ps", "-q", "--active").out == "20240101-000003-bcdf\n"
    assert "failed (3)" in cli("ps").out
    assert cli("ps", "--active", "--name", "a").out == "no run is on\n"


def test_ps_shows_the_newest_and_all_on_request(cli: Cli, home: Path) -> None:
    for number in range(23):
        make_run(home, number)
    assert cli("ps", "-q").out.split()[0] == "20240101-000003-bcdf"
    assert len(cli("ps", "-q").out.split()) == 20
    assert len(cli("ps", "-q", "-a").out.split()) == 23


def test_rm_and_prune_spare_what_is_on(cli: Cli, home: Path) -> None:
    make_run(home, 1)
    active = make_run(home, 2, State.RUNNING)
    make_run(home, 3, State.FAILED)
    make_run(home, 4, State.STOPPED)
    refused = cli("rm", active.id)
    assert refused.code == 2
    assert f"shanty stop {active.id}" in refused.err
    assert "2 runs deleted" in cli("prune", "--keep", "1").err
    assert listed(cli("ps", "--json")) == {"000002": "running", "000004": "stopped"}
    assert cli("rm", "last").code == 0
    assert set(listed(cli("ps", "--json"))) == {"000002"}


def test_rm_deletes_nothing_when_one_of_several_is_unknown(cli: Cli, home: Path) -> None:
    run = make_run(home, 1)
    assert cli("rm", run.id, "nothing").code == 66
    assert run.path.exists()


def test_what_an_ended_run_is_asked(cli: Cli, home: Path) -> None:
    run = make_run(home, 1)
    assert "has ended already" in cli("stop", run.id).err
    done = cli("stacks", run.id)
    assert done.code == 2
    assert "the run has ended" in done.err


# -------------------------------------------------------------------------------- lost runs


def test_a_run_whose_agents_are_gone_is_lost(cli: Cli, home: Path) -> None:
    run = make_run(home, 1, State.RUNNING)
    agent = {"pid": 2**22 + 1, "born": "1"}
    write_json(run.agents, {"controller": agent, "node_agent": agent, "boot": platform.boot_id()})
    assert listed(cli("ps", "--json")) == {"000001": "lost"}
    written = json.loads(run.status.read_text())
    assert (written["state"], written["exit_code"]) == ("lost", 75)
    assert "the run's agents were killed" in cli("show", run.id).out


def test_a_new_run_is_given_time_for_its_agent(cli: Cli, home: Path) -> None:
    run = make_run(home, 1, State.PENDING, created=time.time())
    run.agents.unlink()
    assert listed(cli("ps", "--json")) == {"000001": "pending"}
    write_json(run.status, Status(created=LONG_AGO).to_json())
    assert listed(cli("ps", "--json")) == {"000001": "lost"}
    assert "never came up" in cli("show", run.id).out


@pytest.mark.parametrize(
    ("answer", "session_left", "cause"),
    [("b true", False, "at log-out"), ("b true", True, "killed"), ("b false", False, "killed")],
)
def test_log_out_is_named(tmp_path: Path, answer: str, session_left: bool, cause: str) -> None:
    for name, text in {
        "busctl": f"echo {answer}",
        "loginctl": f"test $2 = c1 && exit {1 - session_left}",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_SESSION_ID": "c2"}
    failure = lost_cause({"boot": "b", "session": "c1"}, "b", environ)
    assert cause in failure.what
    assert ("enable-linger" in failure.fix) == (cause == "at log-out")


def test_other_causes_of_a_loss() -> None:
    assert "never came up" in lost_cause(None, "b", {}).what
    assert "started anew" in lost_cause({"boot": "a"}, "b", {}).what
    assert "killed" in lost_cause({"boot": "b"}, "b", {}).what
