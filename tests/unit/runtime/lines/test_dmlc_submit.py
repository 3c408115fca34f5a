"""Lines for dmlc-submit: each of its options means something here, or is named with the reason."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shanty.client.command import make_command
from shanty.client.terminal import start
from shanty.client.terminal.display import Show
from shanty.program import app, main
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.lines.command import stand_in
from shanty.runtime.lines.dmlc_submit import (
    CLUSTERS,
    OPTIONS,
    REFUSED,
    VERB,
    Wanted,
    parse,
    program,
)
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.mpi.processes import OUTPUT_LINES
from shanty.runtime.rank import redirect
from shanty.runtime.spec import JobSpec, Program, Raw, Script

DOCS = Path(__file__).parents[4] / "docs" / "how-to"
HERE = Layout((HostSlots("localhost", 2),), None, None, None, False, 2, "/run/hostfile")
HOSTS = (HostSlots("10.0.0.2", 2), HostSlots("10.0.0.3", 2))
THERE = Layout(HOSTS, None, None, None, False, 2, "/run/hostfile")

FILES = {
    "hosts": "localhost slots=2\n",
    "ssh": "# ours\n10.0.0.2\n\n10.0.0.3:22\nme@b:2222  # c\n",
    "twice": "a\nb\na\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def read(line: list[str] | str, **environ: str) -> Wanted:
    return parse(line.split() if isinstance(line, str) else line, environ, OPTIONS, FILES.get)


def test_the_docs_name_every_option_and_cluster() -> None:
    text = (DOCS / "dmlc-submit.md").read_text()
    named = set(re.findall(r"`(--?[a-z-]+)", text, re.IGNORECASE))
    assert set(OPTIONS) | set(VERB) <= named
    assert all(f"`{name}`" in text for name in CLUSTERS)


TUTORIAL = "--cluster mpi --num-workers 3 python xgboost/main.py --num_round 50 --data_dir DIR"


def test_the_line_of_the_tutorial() -> None:
    wanted = read(TUTORIAL)
    assert (wanted.cluster, wanted.ranks, wanted.notes) == ("mpi", 3, [])
    assert wanted.command == ["python", "xgboost/main.py", "--num_round", "50", "--data_dir", "DIR"]
    assert wanted.variables == {
        "DMLC_ROLE": "worker",
        "DMLC_NUM_WORKER": "3",
        "DMLC_NUM_SERVER": "0",
        "DMLC_JOB_CLUSTER": "mpi",
        "DMLC_NUM_ATTEMPT": "0",
    }


def test_options_after_the_command() -> None:
    """As argparse has it; once the line is complete, what comes after is the command's own."""
    late = read("python x.py --cluster=local --lr 1 --num-workers 2 --env A=1 data")
    assert (late.cluster, late.ranks, late.variables["A"]) == ("local", 2, "1")
    assert late.command == ["python", "x.py", "--lr", "1", "data"]
    assert read("-n 2 python x.py --cluster ssh --env A").command == [
        *("python", "x.py", "--cluster", "ssh", "--env", "A"),
    ]


# What DMLC's tracker gives to a shell, words with spaces in them parted by "|" here.
FOR_A_SHELL = {
    "python x.py > out": "python x.py > out",
    "python hello.py|a": "python hello.py a",
    "python hello.py|x.py|a": "python hello.py x.py a",
    "A=1|python|hello.py": "A=1 python hello.py",
    "echo|id $DMLC_TASK_ID": "echo id $DMLC_TASK_ID",
    "echo|'a  b'": "echo 'a  b'",
    "x.py|$DMLC_TASK_ID": "python x.py $DMLC_TASK_ID",
    "hosts|>out": "./hosts >out",
    "true|&&|ls|*.txt": "true && ls *.txt",
    "cd x;|ls": "cd x; ls",
}


@pytest.mark.parametrize("words", FOR_A_SHELL)
def test_a_command_for_a_shell(words: str) -> None:
    assert program(words.split("|")) == ["sh", "-c", FOR_A_SHELL[words]]


@pytest.mark.parametrize("words", ["python|x.py|a b|--lr=0.1", "./a=1|x", "xgboost|eval[a]=b?c=d"])
def test_a_command_that_needs_no_shell(words: str) -> None:
    assert program(words.split("|")) == words.split("|")


def test_amid_a_run_on_hosts() -> None:
    local = read("--cluster local -n 3 true").mpirun_line(THERE, {}, "")
    assert local[:2] == ["-H", "10.0.0.2:3"]
    ssh = read("--cluster ssh --host-file ssh -n 3 --log-file l --jobname j true")
    assert "-H" not in ssh.mpirun_line(THERE, {}, "")
    assert "--host-file (the run has its hosts)" in " ".join(ssh.notes)
    assert "--log-file l (`shanty logs` has" in " ".join(ssh.notes)
    assert "--jobname j (the run has its name" in " ".join(ssh.notes)


def test_cores_amid_a_run_are_threads_unless_the_user_says() -> None:
    wanted = read("--worker-cores 2 -n 2 true")
    wanted.mpirun_line(HERE, {}, "")
    assert wanted.variables["OMP_NUM_THREADS"] == "2"
    wanted = read("--worker-cores 2 -n 2 true")
    wanted.mpirun_line(HERE, {"OMP_NUM_THREADS": "1"}, "")
    assert "OMP_NUM_THREADS" not in wanted.variables


def test_a_log_file_amid_a_run() -> None:
    wanted = read("--log-file l -n 2 true")
    wanted.mpirun_line(HERE, {}, "")
    assert wanted.variables[OUTPUT_LINES] == str(Path("l").absolute())


def test_hosts_for_ssh() -> None:
    wanted = read("--cluster ssh --host-file ssh -n 4 true")
    assert wanted.hosts == ["10.0.0.2", "10.0.0.3", "ssh://me@b:2222"]
    assert wanted.each == 2
    wanted = read("--cluster ssh --host-file twice -n 4 true")
    assert (wanted.hosts, wanted.each) == (["a", "b", "a"], None)
    wanted = read("--cluster ssh --host-file hosts -n 4 true")  # mpirun's
    assert (wanted.hosts, wanted.hostfile) == ([], "hosts")


def test_all_that_is_left_out_is_one_note() -> None:
    wanted = read("--num-servers 2 --server-memory 1g --queue q --num-workers 2 true")
    assert " ".join(wanted.notes) == (
        "left out of this dmlc-submit line: --num-servers 2, --server-memory 1g (the ranks "
        "talk to each other, without a parameter server); --queue q (a run starts at once and "
        "waits in no queue)"
    )
    assert read("--num-servers 0 --local-num-attempt 0 -n 2 true").notes == []
    assert "this machine" in read("--cluster local -H hosts -n 2 true").notes[0]


def test_the_cluster_of_the_environment() -> None:
    assert read("-n 2 true", DMLC_SUBMIT_CLUSTER="local").cluster == "local"
    assert read("-n 2 --cluster mpi true", DMLC_SUBMIT_CLUSTER="yarn").cluster == "mpi"
    with pytest.raises(UsageError, match=r"\$DMLC_SUBMIT_CLUSTER yarn is not supported"):
        read("-n 2 true", DMLC_SUBMIT_CLUSTER="yarn")


@pytest.mark.parametrize("cluster", REFUSED)
def test_a_cluster_that_is_refused(cluster: str) -> None:
    with pytest.raises(UsageError, match=rf"--cluster {cluster} is not supported") as error:
        read(f"-n 2 --cluster {cluster} true")
    assert "--cluster" in error.value.fix
    assert error.value.why


# ---------------------------------------------------------------------------------- the verb


class Started:
    """What `shanty dmlc-submit` would have started."""

    def __init__(self) -> None:
        self.job = JobSpec(Program(("none",)))
        self.more: dict[str, Any] = {}

    def __call__(self, _context: object, job: JobSpec, show: Show, **more: bool) -> int:
        self.job, self.more = job, {**more, "quiet": show.quiet, "json": show.as_json}
        if show.log is not None:
            self.more["log"] = show.log.name
            show.log.close()
        return 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Started:
    seen = Started()
    monkeypatch.setattr(start, "start", seen)
    monkeypatch.setenv("SHANTY_HOME", str(folder / "home"))
    monkeypatch.delenv("DMLC_SUBMIT_CLUSTER", raising=False)
    return seen


Submit = Callable[..., int]


@pytest.fixture
def submit(started: Started, monkeypatch: pytest.MonkeyPatch) -> Submit:
    def call(line: str) -> int:
        monkeypatch.setattr(sys, "argv", ["shanty", "dmlc-submit", *line.split()])
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0)

    return call


def test_the_run_that_a_line_asks_for(submit: Submit, started: Started) -> None:
    line = f"--jobname a/b:c --worker-memory 1g --log-file log.txt --files hosts {TUTORIAL}"
    assert submit(line) == 0
    job = started.job
    assert job.command == Program(
        ("python", "xgboost/main.py", "--num_round", "50", "--data_dir", "DIR")
    )
    assert (job.ranks, job.memory_per_rank, job.name) == (3, 1 << 30, "a-b-c")
    assert (job.on, job.hostfile, job.oversubscribe) == (None, None, True)
    assert job.env["DMLC_NUM_WORKER"] == "3"
    assert started.more == {
        "dry_run": False,
        "detach": False,
        "quiet": False,
        "json": False,
        "log": "log.txt",
    }


def test_what_the_verb_takes_beside(submit: Submit, started: Started) -> None:
    assert submit("--dry-run --json -q -d --mpi mpich --on a,b:2 -n 2 true") == 0
    assert started.more == {"dry_run": True, "detach": True, "quiet": True, "json": True}
    assert (started.job.mpi, started.job.on, started.job.oversubscribe) == ("mpich", "a,b:2", False)


def test_cores_that_a_line_asks_for_have_to_be_there(submit: Submit, started: Started) -> None:
    assert submit("--worker-cores 2 -n 2 true") == 0
    assert (started.job.cpus_per_rank, started.job.oversubscribe) == (2, False)
    assert submit("--worker-cores 2 --oversubscribe -n 2 true") == 0
    assert started.job.oversubscribe


def test_where_the_verb_goes(submit: Submit, started: Started, folder: Path) -> None:
    assert submit("--cluster ssh -H ssh -n 4 true") == 0
    assert started.job.on == "10.0.0.2,10.0.0.3,ssh://me@b:2222"
    assert (started.job.ranks_per_host, started.job.oversubscribe) == (2, False)
    assert submit("--cluster mpi -H hosts -n 4 true") == 0  # names this machine only
    assert (started.job.on, started.job.hostfile, started.job.oversubscribe) == (None, None, True)
    (folder / "hosts").write_text("a slots=2\n")
    assert submit("--cluster mpi -H hosts -n 2 true") == 0
    assert started.job.hostfile == str(folder / "hosts")


def test_files_that_hosts_do_not_get(
    submit: Submit, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(folder / "hosts", folder.parent / "outside")
    try:
        line = "--cluster ssh -H ssh -n 2 --files ../outside --files hosts true"
        assert submit(line) == 0
        said = capfd.readouterr().err
        assert "--files ../outside (it is outside of the workspace" in said
        assert "--files hosts" not in said
    finally:
        (folder.parent / "outside").unlink()


REFUSED_HERE = {
    "--num-workers 2 --frob true": "has no option --frob",
    "--cluster ssh -n 2 true": "--cluster ssh needs hosts",
    "--cluster local --on a -n 2 true": "--cluster local is this machine",
    "--on a -H hosts -n 2 true": "--host-file and --on both name hosts",
    "-d --log-file l -n 2 true": "--log-file and --detach do not go together",
    "--log-file none/l -n 2 true": "--log-file none/l cannot be written",
    "-n 200000 true": "200000 ranks are too many",
}


@pytest.mark.parametrize("line", REFUSED_HERE)
def test_what_the_verb_refuses(
    line: str, submit: Submit, capfd: pytest.CaptureFixture[str]
) -> None:
    assert submit(line) == 2
    assert REFUSED_HERE[line] in capfd.readouterr().err


def test_help_and_completion(
    submit: Submit, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert submit("--help") == 0
    said = " ".join(capfd.readouterr().out.split())
    assert all(each.names[0] in said for each in VERB.values())
    assert "shanty dmlc-submit --cluster mpi --num-workers 3 python train.py" in said
    for words, found in {
        "--num-w": ["--num-workers"],
        "--cluster ": ["mpi", "local", "ssh"],
        "-n 2 --dry": ["--dry-run"],
    }.items():
        line = f"shanty dmlc-submit {words}"
        monkeypatch.setenv("_SHANTY_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        with pytest.raises(SystemExit):
            app.main(prog_name="shanty")
        assert [out.partition(",")[2] for out in capfd.readouterr().out.split()] == found


# ------------------------------------------------------------------------------ in a run's line

BY_PATH = {
    "/dmlc-core/tracker/dmlc-submit -n 2 true": ["dmlc-submit", "-n", "2", "true"],
    "python3 ../dmlc-core/tracker/dmlc-submit -n 2 true": ["dmlc-submit", "-n", "2", "true"],
    "dmlc-submit -n 2 true": ["dmlc-submit", "-n", "2", "true"],
}


@pytest.mark.parametrize("line", BY_PATH)
def test_the_path_of_the_tracker_need_not_exist(line: str, folder: Path) -> None:
    assert make_command(line.split(), folder, raw=False) == Raw(tuple(BY_PATH[line]))
    text = f"cd x && {line}; echo $?"
    assert make_command([text], folder, raw=False) == Raw(
        (f"cd x && {' '.join(BY_PATH[line])}; echo $?",), shell=True
    )


def test_a_folder_beside_the_program(folder: Path) -> None:
    """One that Python can run is a script; another does not stand in a program's way."""
    for name in ("xgboost", "true", "data"):
        (folder / name).mkdir()
    make = partial(make_command, workspace=folder, raw=False)
    assert make(["xgboost", "a.conf"]) == Program(("xgboost", "a.conf"))
    assert make(["./xgboost", "a.conf"]) == Program(("./xgboost", "a.conf"))
    assert make(["true"]) == Program(("true",))
    for name in ("data", "./data", "."):
        with pytest.raises(NotFoundError, match=r"is a folder without __main__\.py"):
            make([name])
    (folder / "data" / "__main__.py").write_text("")
    assert make(["data", "a"]) == Script("data", ("a",))


def test_other_lines_stay_as_they_are(folder: Path) -> None:
    text = "echo dmlc-submit && ls /x/dmlc-submits"
    assert make_command([text], folder, raw=False) == Raw((text,), shell=True)


def test_the_program_xgboost(folder: Path) -> None:
    module = ["py", "-m", "shanty.compat.xgboost_program", "a.conf", "b=1"]
    assert stand_in(["../../xgboost", "a.conf", "b=1"], "py") == module
    own = folder / "xgboost"
    own.mkdir()
    assert stand_in(["./xgboost", "a.conf", "b=1"], "py") == module  # a folder is none
    own.rmdir()
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    assert stand_in(["./xgboost", "a.conf"], "py") == ["./xgboost", "a.conf"]
    assert stand_in(["python", "xgboost"], "py") == ["python", "xgboost"]


def test_a_file_for_the_lines_of_all_ranks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "log.txt"
    ranks = [redirect.copies_of({OUTPUT_LINES: str(path), "RANK": str(rank)}) for rank in (0, 1)]
    first, second = ranks
    assert first is not None
    assert second is not None
    first.feed(1, b"a\nbeg")
    second.feed(1, b"b\n")
    first.feed(2, b"error\n")
    first.feed(1, b"un")
    first.close()
    second.close()
    assert path.read_text() == "[0] a\n[1] b\n[0] error\n[0] begun\n"
    lost = redirect.copies_of({OUTPUT_LINES: str(folder), "RANK": "0"})
    assert lost is not None
    lost.feed(1, b"a\nb\n")
    lost.feed(1, b"c\n")
    assert capsys.readouterr().err.count("cannot write") == 1
