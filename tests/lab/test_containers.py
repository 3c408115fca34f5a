"""Ranks in containers on several hosts: an engine on each, which sees nothing of the others."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import LabHosts, lab_in
from lab_engines import IMAGE_WORDS, containers_on, podman_on

import engines
import mpijobs
from engines import INTEL, MPICH, OPENMPI, PYTHON, long_only
from runs import accuracy, mpi_folder, wait_for
from shanty.launch.lab import control
from shanty.runtime.rundir import RunDir, read_json

HELLO = """
import os
from mpi4py import MPI
comm = MPI.COMM_WORLD
assert comm.allreduce(1) == comm.size
print(f"{comm.rank} of {comm.size} on {os.uname().nodename}")
"""
WAITING = """
from mpi4py import MPI
import time
MPI.COMM_WORLD.barrier()
print("up", flush=True)
time.sleep(600)
"""


def nsenter(lab: LabHosts, host: str) -> list[str]:
    """Words that run a command on a host."""
    pid = control.first_processes(lab.shanty.known(lab.name))[host]
    return ["nsenter", "-t", str(pid), "-m", "-n", "-p", "-u", "-i", "--"]


@pytest.fixture(scope="module")
def podman_lab(lab: LabHosts) -> Iterator[LabHosts]:
    """Three hosts with a podman each."""
    with podman_on(lab):
        yield lab


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "a workspace"
    folder.mkdir()
    (folder / "hello.py").write_text(HELLO)
    (folder / "wait.py").write_text(WAITING)
    return folder


def run(
    lab: LabHosts, *words: str | Path, timeout: float = 150
) -> subprocess.CompletedProcess[str]:
    return lab.shanty("run", "--on", lab.name, *IMAGE_WORDS, *words, timeout=timeout)


def test_ranks_join_from_containers_on_three_hosts(
    podman_lab: LabHosts, workspace: Path, flavour: str
) -> None:
    if flavour != "openmpi5":
        there = podman_lab.shanty.home / "mpi" / flavour
        if not there.exists():
            there.parent.mkdir(exist_ok=True)
            there.symlink_to(mpi_folder() / flavour)
    done = run(podman_lab, "-C", workspace, "-n", "3", "--ppn", "1", "--mpi", flavour, "hello.py")
    assert done.returncode == 0, done.stderr
    found = sorted(re.findall(r"(\d of 3 on lab\d)", done.stdout))
    assert found == ["0 of 3 on lab1", "1 of 3 on lab2", "2 of 3 on lab3"]
    assert not containers_on(podman_lab)


def started(lab: LabHosts, workspace: Path) -> RunDir:
    done = run(lab, "-d", "-C", workspace, "-n", "3", "--ppn", "1", "wait.py")
    assert done.returncode == 0, done.stderr
    found = RunDir(lab.shanty.home / "runs" / done.stdout.strip())

    def up() -> bool:
        out = lab.shanty("logs", found.id).stdout
        return out.count("up") == 3

    wait_for(up, 60, "ranks")
    return found


def processes_of(run: RunDir) -> dict[int, list[str]]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            ours = any(run.id in word for word in words[:-1])
            if ours or f"SHANTY_RUN_ID={run.id}".encode() in environ:
                found[int(entry.name)] = words
    return found


def subprocess_kill(pid: int) -> None:
    subprocess.run(["kill", "-9", str(pid)], check=False, capture_output=True)


@pytest.mark.parametrize("who", ["controller", "worker's command", "worker's node agent", "all"])
def test_whoever_is_killed_nothing_is_left_on_any_host(
    podman_lab: LabHosts, workspace: Path, who: str
) -> None:
    found = started(podman_lab, workspace)
    all_of_it = {
        pid: words for pid, words in processes_of(found).items() if "conmon" not in words[0]
    }
    chosen = {
        "controller": lambda words: "agent.start" in words,
        "worker's command": lambda words: (
            words[0].endswith("podman") and f"shanty-{found.id}.1" in words
        ),
        "worker's node agent": lambda words: (
            "agent.worker_agent" in words
            and not words[0].endswith("podman")
            and any(f"{found.id}.1" in word for word in words)
            and "agent.container_entry" not in words
        ),
        "all": lambda _words: True,
    }[who]
    victims = [pid for pid, words in all_of_it.items() if chosen(words)]
    assert victims
    for pid in victims:
        subprocess_kill(pid)
    began = time.monotonic()
    wait_for(lambda: not processes_of(found), 15, f"left: {processes_of(found)}")
    wait_for(lambda: not containers_on(podman_lab), 15, f"left: {containers_on(podman_lab)}")
    assert time.monotonic() - began < 15
    wait_for(
        lambda: (
            podman_lab.shanty("show", "--json", found.id).returncode != 0
            or (read_json(found.status) or {}).get("state") in ("failed", "lost")
        ),
        90,
        "an end",
    )


def test_stop(podman_lab: LabHosts, workspace: Path) -> None:
    found = started(podman_lab, workspace)
    assert podman_lab.shanty("stop", found.id).returncode == 0
    wait_for(lambda: not containers_on(podman_lab), 15, "containers are left")


@long_only
@pytest.mark.parametrize("hostfile", ["$HOSTFILE", "/kube-openmpi/generated/hostfile"])
def test_lines_of_tutorials_with_the_images_own_mpi(
    podman_lab: LabHosts, workspace: Path, hostfile: str
) -> None:
    line = (
        f"mpirun --allow-run-as-root -np 3 --hostfile {hostfile} -bind-to none -map-by slot "
        "-mca pml ob1 -mca btl ^openib python hello.py"
    )
    image = ("--image", OPENMPI, "--runtime", "podman", "--packages", "none", "--mpi", "image")
    on = ("--on", ",".join(f"{host}:1" for host in podman_lab.hosts), "-C", workspace)
    done = podman_lab.shanty("run", *on, *image, "--", *line.split(), timeout=150)
    assert done.returncode == 0, done.stderr
    found = sorted(re.findall(r"of 3 on (lab\d)", done.stdout))
    assert found == ["lab1", "lab2", "lab3"]


@long_only
@pytest.mark.parametrize(
    ("image", "implementation"), [(OPENMPI, "OpenMPI"), (MPICH, "MPICH"), (INTEL, "Intel")]
)
def test_an_mpijob_on_hosts(
    podman_lab: LabHosts, tmp_path: Path, image: str, implementation: str
) -> None:
    """Two workers with two slots each: two of three hosts have the ranks."""
    file = mpijobs.write(tmp_path, implementation, image)
    on = ("--on", podman_lab.name, "--runtime", "podman", "-C", tmp_path)
    done = podman_lab.shanty("run", *on, "--manifest", file, timeout=150)
    assert done.returncode == 0, done.stderr
    assert mpijobs.hosts_of(done.stdout) == ["lab1", "lab2"]


@long_only
def test_the_lead_host_has_an_image_of_its_own(podman_lab: LabHosts, workspace: Path) -> None:
    (workspace / "which.py").write_text(
        "import os, shutil\nfrom mpi4py import MPI\n"
        "MPI.COMM_WORLD.Barrier()\n"
        "print(MPI.COMM_WORLD.size, os.uname().nodename, shutil.which('orted'))\n"
    )
    words = ("--master-image", OPENMPI, "-C", workspace, "-n", "3", "--ppn", "1", "which.py")
    done = run(podman_lab, *words)
    assert done.returncode == 0, done.stderr
    said = sorted(line.partition("] ")[2] for line in done.stdout.splitlines())
    assert said == ["3 lab1 /usr/bin/orted", "3 lab2 None", "3 lab3 None"]
    assert done.stderr.count("and 3.1.4 on lab1") == 2, done.stderr  # mpi4py, of Debian


@long_only
def test_apptainer_on_three_hosts(lab: LabHosts, workspace: Path) -> None:
    if not shutil.which("apptainer"):
        pytest.skip("apptainer is not installed (Debian 12 has no package of it)")
    image = ("--image", engines.root_of(PYTHON), "--runtime", "apptainer", "--packages", "none")
    words = ("--on", lab.name, *image, "-C", workspace, "-n", "3", "--ppn", "1", "hello.py")
    done = lab.shanty("run", *words, timeout=150)
    assert done.returncode == 0, done.stderr
    found = sorted(re.findall(r"(\d of 3 on lab\d)", done.stdout))
    assert found == ["0 of 3 on lab1", "1 of 3 on lab2", "2 of 3 on lab3"]


def digits(lab: LabHosts, *on: str) -> None:
    """Train on real data, with PyTorch, which the image lacks."""
    pytest.importorskip("torch")
    done = lab.shanty(
        "run", *on, "-C", Path(__file__).parents[2], "-n", "3", "--ppn", "1",
        "examples/digits.py", "--epochs", "5", timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert accuracy(done.stdout) > 0.9


def forget(lab: LabHosts) -> None:
    """Remove what was brought: gigabytes, which take longer than the end of a lab may."""
    for host in lab.hosts:
        shutil.rmtree(lab.home(host) / ".shanty", ignore_errors=True)


@long_only
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_digits_by_podman(podman_lab: LabHosts) -> None:
    digits(podman_lab, "--on", podman_lab.name, "--image", PYTHON, "--runtime", "podman")
    forget(podman_lab)


@long_only
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_docker_on_three_hosts(tmp_path_factory: pytest.TempPathFactory, workspace: Path) -> None:
    """A dockerd on each host, and real data through PyTorch."""
    with ExitStack() as stack:
        lab = stack.enter_context(lab_in(tmp_path_factory.mktemp("lab"), 3))
        disk = stack.enter_context(engines.disk())
        for host in lab.hosts:
            found = engines.dockerd(
                disk / host, within=nsenter(lab, host), socket="/run/docker.sock"
            )
            stack.enter_context(found).load(PYTHON)
        on = ("--on", lab.name, "--image", PYTHON, "--runtime", "docker")
        words = ("-C", workspace, "--packages", "none", "-n", "3", "--ppn", "1", "hello.py")
        done = lab.shanty("run", *on, *words)
        assert done.returncode == 0, done.stderr
        assert len(re.findall(r"\d of 3 on lab\d", done.stdout)) == 3
        digits(lab, *on)
        forget(lab)
