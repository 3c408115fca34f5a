"""The user's own launcher lines, as they stand in tutorials, on every MPI."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import socket
import struct

import pytest

from runs import WORKERS

SCRIPT = WORKERS / "allreduce.py"
KUBE = (
    "mpirun --allow-run-as-root -np 3 --hostfile {file} -bind-to none -map-by slot "
    "-mca pml ob1 -mca btl ^openib python {script}"
)


def run_line(shanty, flavour, *line, **options):
    return shanty("run", "--mpi", flavour, "-n", 4, "--oversubscribe", "--", *line, **options)


def check(done, ranks):
    assert done.returncode == 0, done.stderr
    total = ranks * (ranks + 1) // 2
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] rank {rank} of {ranks}: {total}" for rank in range(ranks)
    ]


@pytest.mark.parametrize("file", ["/kube-openmpi/generated/hostfile", "$HOSTFILE"])
@pytest.mark.parametrize("as_one_string", [False, True])
def test_a_tutorials_line(shanty, flavour, file, as_one_string):
    line = KUBE.format(file=file, script=SCRIPT)
    check(run_line(shanty, flavour, *([line] if as_one_string else line.split())), 3)


def test_a_host_file_variable_that_was_empty(shanty, flavour):
    line = f"mpirun -np 2 --hostfile -bind-to none python {SCRIPT}"
    done = run_line(shanty, flavour, *line.split())
    check(done, 2)
    assert "host file" in done.stderr


@pytest.fixture
def hostfile(shanty):
    path = shanty.folder / "hostfile"
    path.write_text("# two slots on this machine\nlocalhost slots=2\n")
    return path


def interface():
    """An interface with an IPv4 address that is not the loopback; None when there is none."""
    with socket.socket() as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
                if not answer[20:24].startswith(b"\x7f"):
                    return name
    return None


def test_two_machines_under_a_desk(shanty, flavour, hostfile):
    done = run_line(shanty, flavour, *["mpirun", "--hostfile", "hostfile", "-np", "2", "hostname"])
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    inner = f"$PYTHON_OF_MINE {SCRIPT}"
    words = ["mpirun", "--hostfile", "hostfile", "-np", "2", "bash", "-c", inner]
    check(run_line(shanty, flavour, *words, env={"PYTHON_OF_MINE": "python"}), 2)
    name = interface()
    if name is None and flavour == "openmpi5":
        return  # its daemons do not take the loopback interface, and there is no other one
    words[5:5] = f"--mca oob_tcp_if_include {name} --mca btl_tcp_if_include {name}".split()
    check(run_line(shanty, flavour, *words, env={"PYTHON_OF_MINE": "python"}), 2)


def test_mpiexec_deep_inside_a_script(shanty, flavour):
    (shanty.folder / "inner.sh").write_text(f"set -e\nmpiexec -n 4 python {SCRIPT}\n")
    (shanty.folder / "outer.sh").write_text("sh inner.sh && echo outer is done\n")
    done = shanty("run", "--mpi", flavour, "-n", 4, "--oversubscribe", "--raw", "sh", "outer.sh")
    assert done.returncode == 0, done.stderr
    *ranks, last = done.stdout.splitlines()
    assert last == "outer is done"
    assert sorted(ranks) == [f"[{rank}] rank {rank} of 4: 10" for rank in range(4)]


def test_output_that_the_line_sends_elsewhere(shanty, flavour):
    line = f"mpirun -np 2 python {SCRIPT} > out.txt; mpirun -n 2 hostname | wc -l"
    done = run_line(shanty, flavour, line)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2"]
    text = (shanty.folder / "out.txt").read_text()
    assert sorted(text.split("\n")) == ["", "rank 0 of 2: 3", "rank 1 of 2: 3"]


def test_a_line_that_copes_with_a_failure(shanty, flavour):
    done = run_line(shanty, flavour, "mpirun -np 2 false || echo it failed")
    assert done.returncode == 0
    assert "it failed" in done.stdout


def test_an_unknown_option_is_named(shanty, flavour):
    done = run_line(shanty, flavour, "mpirun", "--frobnicate", "-np", "2", "true")
    assert done.returncode == 2
    assert "--frobnicate" in done.stderr
    assert "Traceback" not in done.stderr


def test_horovodrun(shanty, flavour):
    check(run_line(shanty, flavour, *f"horovodrun -np 2 -H localhost:2 python {SCRIPT}".split()), 2)


def test_standard_input_goes_to_rank_zero_and_ends(shanty, flavour):
    done = shanty("run", "-q", "--mpi", flavour, "-n", 2, "wc", "-l", stdin=b"a\nb\nc\n")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["[0] 3", "[1] 0"]
    done = run_line(shanty, flavour, "mpirun -np 2 wc -l", stdin=b"a\nb\n")
    assert sorted(done.stdout.splitlines()) == ["[0] 2", "[1] 0"]


WORDS = ["$$", "\\$HOSTFILE", "--hostfile", "$HOSTFILE", "${HOME}", "", "1   2", "*", "it's", "é\n"]
TELL = """
import json, os, resource, sys
open(os.environ["SHANTY_RUN_DIR"] + "/artifacts/file", "w").close()
print(json.dumps([sys.argv[1:], os.environ["A"], os.environ.get("B"), sys.stdin.read(),
                  sorted(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"],
                  os.umask(0), os.nice(0), resource.getrlimit(resource.RLIMIT_STACK)[0]]))
"""
OWN = (0o027, os.nice(0) + 3, 7 << 20)


def as_a_shell_may() -> None:
    """Have a umask, a niceness and a limit of one's own, before a program is started."""
    os.umask(OWN[0])
    os.nice(3)
    resource.setrlimit(
        resource.RLIMIT_STACK, (OWN[2], resource.getrlimit(resource.RLIMIT_STACK)[1])
    )


CORES = "import os; print(sorted(os.sched_getaffinity(0)))"


def test_a_line_letter_by_letter(shanty, flavour, monkeypatch):
    """The program's words and variables, no input, its share of the cores, a file of its output.

    It has the shell's umask, niceness and limits; no file is wider than the umask.
    """
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    line = ["mpirun", "-np", "1", "--hostfile", "$HOSTFILE", "--stdin", "none", "--bind-to", "none"]
    line += ["-x", "A=$HOME=1", "-x", "B", "--output-filename", "out"]
    done = shanty(
        *("run", "-q", "--mpi", flavour, "--", *line, "python", shanty.script(TELL), *WORDS),
        env={"B": "b c"}, stdin=b"not for the ranks", preexec_fn=as_a_shell_may,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cores = sorted(os.sched_getaffinity(0))
    said = done.stdout.removeprefix("[0] ")
    assert json.loads(said) == [WORDS, "$HOME=1", "b c", "", cores, str(len(cores)), *OWN]
    written = shanty.folder / "out/1/rank.0/stdout"
    assert written.read_text() == said
    run = shanty.last
    made = [written, run.status, run.artifacts / "file", *run.rank_logs().values()]
    assert not [path for path in made if path.stat().st_mode & OWN[0]]


def test_ranks_stay_on_the_cores_of_the_run(shanty, flavour):
    """Launchers number the cores from 0, whichever of them the run may use."""
    cores = os.sched_getaffinity(0)
    line = ["mpirun", "-np", "1", "--bind-to", "core", "python", shanty.script(CORES)]
    os.sched_setaffinity(0, {max(cores)})
    try:
        done = shanty("run", "-q", "--mpi", flavour, "--", *line)
        refused = shanty("run", "-n", 2, "hostname")
    finally:
        os.sched_setaffinity(0, cores)
    assert done.stdout.removeprefix("[0] ") == f"[{max(cores)}]\n", done.stderr
    assert "2 ranks do not fit on 1 core" in refused.stderr
    assert len(cores) == 1 or f"may use 1 of the machine's {os.cpu_count()} cores" in refused.stderr


def test_input_that_ranks_do_not_get_is_refused(shanty, flavour):
    line = ["mpirun", "-np", "2", "--stdin", "1", "cat"]
    done = shanty("run", "--mpi", flavour, "--", *line, stdin=b"1")
    assert done.returncode == 2
    assert "only rank 0 of a run gets the standard input" in done.stderr
    words = ["mpirun", "-np", "2", "--oversubscribe", "python", "-"]
    done = shanty("run", "--mpi", flavour, "--", *words, stdin=b"print('trained alone')")
    assert done.returncode == 2
    assert "reads its script from standard input, which only rank 0 has" in done.stderr
    assert "trained alone" not in done.stdout
