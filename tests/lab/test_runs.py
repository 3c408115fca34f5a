"""Runs over three hosts, on every MPI: where the ranks are, and what comes back."""

from __future__ import annotations

import getpass
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

from runs import WORKERS, wait_for

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

WHERE = """
from mpi4py import MPI
world = MPI.COMM_WORLD
print("rank", world.rank, "of", world.size, "sum", world.allreduce(world.rank), "on",
      MPI.Get_processor_name(), flush=True)
"""


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    """Runs on the lab; afterwards nothing of them is there but what shanty keeps in its folder."""
    here = Site(lab, tmp_path / "work")
    here.write("where.py", WHERE)
    before = {host: here.files(host) for host in lab.hosts}
    yield here
    wait_for(lambda: not here.remains(here.last.id), 10, "processes are left")
    for host in lab.hosts:
        assert here.files(host) == before[host]


def lines(text: str) -> list[str]:
    """The ranks' lines, sorted, without the labels and without what shanty itself says."""
    found = [
        line.partition("] ")[2] if line.startswith("[") else line for line in text.splitlines()
    ]
    return sorted(line for line in found if line)


def ranks_on(*hosts: str) -> list[str]:
    """What where.py prints when its ranks are on these hosts."""
    total = sum(range(len(hosts)))
    return [f"rank {i} of {len(hosts)} sum {total} on {host}" for i, host in enumerate(hosts)]


def test_one_rank_a_host(site: Site, flavour: str) -> None:
    """One-sided communication works between them, with the setting that Open MPI 4.1 needs."""
    site.write("windows.py", WHERE + (WORKERS / "windows.py").read_text())
    needs = ["-e", "MPI4PY_RC_THREAD_LEVEL=serialized"] if flavour == "openmpi4" else []
    words = ("-n", "3", "--ppn", "1", *needs, "windows.py")
    done = site("run", "-q", "--on", "lab", "--mpi", flavour, *words)
    assert done.returncode == 0, done.stderr
    found = ranks_on("lab1", "lab2", "lab3") + ["windows of 3 and 1 ranks"] * 3
    assert lines(done.stdout) == sorted(found)
    assert site.status()["joined"] == 3


def test_slots_are_filled_host_by_host(site: Site, flavour: str) -> None:
    on = "lab2:2,lab1:1,lab3:1"
    done = site("run", "-q", "--on", on, "--mpi", flavour, "-n", "4", "where.py")
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout) == ranks_on("lab2", "lab2", "lab1", "lab3")


@pytest.mark.parametrize(
    ("line", "hosts"),
    [
        (
            "mpirun --allow-run-as-root -np 3 --hostfile /kube-openmpi/generated/hostfile "
            "-bind-to none -map-by slot -mca pml ob1 -mca btl ^openib python where.py",
            ("lab1", "lab2", "lab3"),
        ),
        (
            "mpirun --allow-run-as-root -np 3 --hostfile $HOSTFILE -bind-to none -map-by slot "
            "-mca pml ob1 -mca btl ^openib python where.py",
            ("lab1", "lab2", "lab3"),
        ),
        (
            "mpirun --allow-run-as-root -np 2 --hostfile /generated/hostfile python where.py",
            ("lab1", "lab2"),
        ),
        ("mpirun --hostfile hostfile -np 2 python where.py", ("lab1", "lab2")),
        (
            "mpirun --hostfile hostfile -np 2 bash -c 'exec python $PWD/where.py'",
            ("lab1", "lab2"),
        ),
        (
            "mpirun --hostfile addresses -np 2 --mca oob_tcp_if_include eth0 "
            "--mca btl_tcp_if_include eth0 bash -c 'python where.py'",
            ("lab1", "lab3"),
        ),
        ("mpirun -np 2 -H lab3:1,lab2:1 python where.py", ("lab3", "lab2")),
    ],
)
def test_lines_of_tutorials(site: Site, flavour: str, line: str, hosts: tuple[str, ...]) -> None:
    """Unchanged, with the platform's host file, a file of names, of addresses, and a list."""
    site.write("hostfile", "lab1 slots=1\nlab2 slots=1\n")
    shown = {entry["name"]: entry["addresses"]["eth0"] for entry in site.lab.show()["hosts"]}
    site.write("addresses", f"{shown['lab1']} slots=1\n{shown['lab3']} slots=1\n")
    on = "lab1:1,lab2:1,lab3:1"
    done = site("run", "-q", "--on", on, "--mpi", flavour, line)
    assert done.returncode == 0, done.stderr
    found = [text for text in lines(done.stdout) if text.startswith("rank ")]
    assert found == sorted(ranks_on(*hosts))


def test_hostname_lines(site: Site, flavour: str) -> None:
    site.write("hostfile", "lab1 slots=1\nlab2 slots=1\n")
    line = ("mpirun", "--hostfile", "hostfile", "-np", "2", "hostname")
    done = site("run", "-q", "--on", "lab", "--mpi", flavour, "--", *line)
    assert done.returncode == 0, done.stderr
    assert {"lab1", "lab2"} <= set(lines(done.stdout))


def test_output_through_a_pipe(site: Site, flavour: str) -> None:
    """What the line sends elsewhere gets there from all hosts, in whole lines."""
    text = (
        "mpirun -np 3 -ppn 1 hostname"
        if flavour in ("mpich", "intel")
        else ("mpirun -np 3 --map-by ppr:1:node hostname")
    )
    done = site("run", "-q", "--on", "lab", "--mpi", flavour, f"{text} | sort > f; cat f")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["lab1", "lab2", "lab3"]


def test_standard_input(site: Site, flavour: str) -> None:
    done = site("run", "-q", "--on", "lab", "--mpi", flavour, "-n", "3", "cat", stdin="a\nb\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0] a\n[0] b\n"


def test_standard_input_that_is_not_read_is_left_to_others(site: Site, flavour: str) -> None:
    """As in `while read x; do shanty run …; done < list`."""
    site.write("reads.py", "import sys\nprint(sys.stdin.readline().strip())\n")
    reads, writes = os.pipe()
    os.write(writes, b"a\nb\n")
    os.close(writes)
    for words in (["echo", "x"], ["reads.py"]):
        process = site.start(
            "run", "-q", "--on", "lab", "--mpi", flavour, "-n", "1", *words, stdin=reads
        )
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out == ("x\n" if words[0] == "echo" else "a\n")
    os.close(reads)


def test_the_first_failure(site: Site, flavour: str) -> None:
    site.write(
        "fails.py",
        "import sys\nfrom mpi4py import MPI\nworld = MPI.COMM_WORLD\n"
        "world.barrier()\nif world.rank == 2:\n    print('bad data', flush=True)\n    sys.exit(3)\n"
        "world.barrier()\n",
    )
    done = site("run", "-q", "--on", "lab", "--mpi", flavour, "-n", "3", "--ppn", "1", "fails.py")
    assert done.returncode == 3
    assert "rank 2 on lab3 ended with exit code 3" in done.stderr
    failure = site.status()["failure"]
    assert (failure["rank"], failure["host"], failure["lines"]) == (2, "lab3", ["bad data"])
    assert Path(failure["log"]).is_file()


def test_a_file_that_was_not_sent_is_named(site: Site) -> None:
    site.write(".shantyignore", "*.csv\n")
    site.write("rows.csv", "1\n")
    site.write("reads.py", "from mpi4py import MPI\nopen('rows.csv')\n")
    try:
        done = site("run", "-q", "--on", "lab", "-n", "3", "--ppn", "1", "reads.py")
    finally:
        site.write(".shantyignore", "")
    assert done.returncode == 1
    assert "rows.csv exists here, but was not sent to the hosts: .shantyignore" in done.stderr
    assert "--inputs" in done.stderr


def test_the_first_failure_is_the_first_though_its_host_is_late_to_tell(
    site: Site, flavour: str
) -> None:
    """The host of the failed rank stands still for a moment; the others fail in the meantime."""
    site.write(
        "late.py",
        "import json, os, signal, socket, subprocess, sys\nfrom mpi4py import MPI\n"
        "world = MPI.COMM_WORLD\n"
        "if world.rank == 2:\n"
        "    with open(os.environ['SHANTY_RUN_DIR'] + '/agents.json') as file:\n"
        "        node_agent = json.load(file)['node_agent']['pid']\n"
        "    there = socket.create_connection(world.recv(source=0))\n"
        "    os.kill(node_agent, signal.SIGSTOP)\n"
        "    wakes = f'sleep 0.8; kill -CONT {node_agent}'\n"
        "    subprocess.Popen(['sh', '-c', wakes], start_new_session=True, close_fds=True)\n"
        "    sys.exit(3)\n"
        "if world.rank == 0:\n"
        "    with socket.create_server(('0.0.0.0', 0)) as server:\n"
        "        world.send((os.uname().nodename, server.getsockname()[1]), 2)\n"
        "        server.accept()[0].recv(1)  # until that rank is no more\n"
        "    os._exit(14)\n"
        "world.barrier()\n",
    )
    done = site("run", "-q", "--on", "lab", "--mpi", flavour, "-n", "3", "--ppn", "1", "late.py")
    assert done.returncode == 3, done.stderr
    assert "rank 2 on lab3 ended with exit code 3" in done.stderr


def test_stacks_of_all_hosts(site: Site) -> None:
    with site.running("openmpi5") as process:
        done = site("stacks", "last", "--json")
        assert done.returncode == 0, done.stderr
        answers = json.loads(done.stdout)
        assert {answer["rank"] for answer in answers} == {0, 1, 2}
        for answer in answers:
            frames = [frame for thread in answer["threads"] for frame in thread["frames"]]
            assert any(path.endswith("up.py") for path, _, _ in frames)
        assert site("stop", "last").returncode == 0
        assert process.wait(20) == 143
    assert site.status()["state"] == "stopped"


def test_what_ranks_save_comes_back(site: Site) -> None:
    site.write(
        "saves.py",
        "import shanty, socket\n"
        "shanty.log(loss=shanty.rank())\n"
        "(shanty.artifacts() / f'part-{shanty.rank()}').write_text(socket.gethostname())\n"
        "(shanty.artifacts() / 'model').write_text(socket.gethostname())\n"
        "print('saved', flush=True)\n",
    )
    mask = os.umask(0o027)
    done = site("run", "-q", "--on", "lab", "-n", "3", "--ppn", "1", "saves.py")
    os.umask(mask)
    assert done.returncode == 0, done.stderr
    saved = site.last.artifacts
    assert not [path for path in saved.rglob("*") if path.stat().st_mode & 0o027]
    assert [(saved / f"part-{i}").read_text() for i in range(3)] == ["lab1", "lab2", "lab3"]
    assert (saved / "model").read_text() == "lab1"  # the lead host's own; the others' beside it
    assert (saved / "lab2" / "model").read_text() == "lab2"
    assert set(site.last.rank_logs()) == {0, 1, 2}
    assert "loss" in site.last.metrics.read_text()
    for host in site.lab.hosts:
        assert site.last.id not in site.lab.out(host, "ls ~/.shanty/work")


def test_what_ranks_write_beside_is_named(site: Site) -> None:
    site.write("leaves.py", "import os; os.makedirs('out'); open('out/model.pt', 'w').close()")
    done = site("run", "--on", "lab", "-n", "1", "leaves.py")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("  left: ")]
    assert "out/model.pt on lab1, in " in line
    assert "left       out/model.pt on lab1, in " in site("show").stdout
    again = site("run", "--on", "lab", "-n", "1", "where.py")
    assert "  left: " not in again.stderr  # though the file is still there


def test_too_many_ranks(site: Site) -> None:
    done = site("run", "--on", "lab1:1,lab2:1", "-n", "3", "where.py")
    assert done.returncode == 2
    assert "3 ranks do not fit on 2 slots of 2 hosts" in done.stderr
    site("run", "-q", "--on", "lab1", "-n", "1", "hostname")


def test_a_host_with_no_slots_is_left_out(site: Site) -> None:
    """A user before a host's name is kept; the rest of what the lab has for it counts, too."""
    site.write("hostfile", f"lab1 slots=0\n{getpass.getuser()}@lab2 slots=1\nlab3 slots=1\n")
    done = site("run", "-q", "--hostfile", "hostfile", "where.py")
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout) == ranks_on("lab2", "lab3")


def test_the_run_goes_on_without_its_terminal(site: Site) -> None:
    """The command line is killed; what it would have shown can be had later."""
    site.write(
        "long.py",
        "import os, pathlib, signal, time\nfrom mpi4py import MPI\nworld = MPI.COMM_WORLD\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('saved', flush=True))\n"
        "print('began', flush=True)\nworld.barrier()\n"
        "end = time.monotonic() + 60\n"
        "while not os.path.exists('/tmp/go') and time.monotonic() < end:\n    time.sleep(0.02)\n"
        "world.barrier()\nprint('went on', flush=True)\n",
    )
    process = site.start("run", "-q", "--on", "lab", "-n", "3", "--ppn", "1", "long.py")
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGUSR1)  # for the ranks, on all hosts
    assert all("saved" in str(process.stdout.readline()) for _ in range(3))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    shown = site("ps", "--active")
    assert "running" in shown.stdout
    for host in site.lab.hosts:
        site.lab.exec(host, "touch", "/tmp/go")
    done = site("logs", "-f", "last")
    for host in site.lab.hosts:
        site.lab.exec(host, "rm", "/tmp/go")
    assert done.stdout.count("went on") == 3, done.stderr
    assert site.status()["state"] == "succeeded"


def test_a_script_of_another_folder_is_sent_with_its_folder(site: Site, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "helper.py").write_text("WORD = 'found'\n")
    (other / "train.py").write_text("import helper, os; print(helper.WORD, os.listdir())\n")
    done = site("run", "--on", "lab2", "-n", "1", other / "train.py")
    assert done.returncode == 0, done.stderr
    assert "its own folder is sent to the hosts" in done.stderr
    assert "found" in done.stdout
    assert "where.py" not in done.stdout
