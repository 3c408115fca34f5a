"""Real container engines for tests: images made of Debian's packages, a dockerd of our own, podman.

Images are made once and kept below .dev/images: a Debian with Python and nothing else, the same
with Debian's Open MPI 4.1 and mpi4py, or with MPICH or Intel MPI as pip has them, and one with a
shell alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import mpi4py
import pytest

from runs import LONG, Shanty, mpi_folder, wait_for

CACHE = Path(__file__).parents[1] / ".dev" / "images"
PYTHON, OPENMPI, SHELL = "shanty-test/python:1", "shanty-test/openmpi:1", "shanty-test/shell:1"
MPICH, INTEL = "shanty-test/mpich:1", "shanty-test/intel:1"
long_only = pytest.mark.skipif(not LONG, reason="takes long: SHANTY_TEST_LONG=1")
_VERSION = "1"  # of how images are made
_CGROUPS = Path("/sys/fs/cgroup")


def _run(*words: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(word) for word in words],
        **{"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, **options},  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done


# ------------------------------------------------------------------------------------ images


def root_of(image: str) -> Path:
    """The files of one of the images, as a folder; it is made where it is not there yet."""
    if os.geteuid():
        pytest.skip("images are made by root")
    name = image.partition("/")[2].partition(":")[0]
    folder = CACHE / f"{name}-{_VERSION}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".lock-{name}").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            draft = CACHE / f".draft-{name}"
            shutil.rmtree(draft, ignore_errors=True)
            makers = {PYTHON: _debian, OPENMPI: _with_openmpi, SHELL: _shell}
            makers.get(image, partial(_with_wheel, name))(draft)
            draft.rename(folder)
    return folder


def archive_of(image: str) -> Path:
    """The same as a tar."""
    folder = root_of(image)
    archive = folder.with_suffix(".tar")
    with (CACHE / f".lock-{archive.name}").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            draft = archive.with_suffix(".draft")
            _run("tar", "--numeric-owner", "-C", folder, "-cf", draft, ".")
            draft.rename(archive)
    return archive


def _debian(folder: Path) -> None:
    if not shutil.which("debootstrap"):
        pytest.skip("there is no debootstrap to make an image with")
    release = _run("sh", "-c", ". /etc/os-release && echo $VERSION_CODENAME").stdout.strip()
    packages = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "shanty-dev/debian")
    packages.mkdir(parents=True, exist_ok=True)
    words = ("--variant=minbase", "--include=python3", f"--cache-dir={packages}")
    _run("debootstrap", *words, release, folder)
    for junk in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
        shutil.rmtree(folder / junk, ignore_errors=True)


def _with_openmpi(folder: Path) -> None:
    _run("cp", "-a", root_of(PYTHON), folder)
    for name in ("etc/resolv.conf", "etc/apt/sources.list", "etc/apt/sources.list.d"):
        there = folder / name
        if there.is_dir():
            shutil.rmtree(there)
        there.unlink(missing_ok=True)
        if Path("/", name).is_dir():
            shutil.copytree(Path("/", name), there)
        elif Path("/", name).exists():
            shutil.copy(Path("/", name), there)
    for folder_of_keys in ("usr/share/keyrings", "etc/apt/apt.conf.d", "etc/apt/keyrings"):
        if Path("/", folder_of_keys).is_dir():
            shutil.copytree(Path("/", folder_of_keys), folder / folder_of_keys, dirs_exist_ok=True)
    for name in ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    inside = ["chroot", str(folder), "env", "DEBIAN_FRONTEND=noninteractive"]
    _run(*inside, "apt-get", "update", "-qq")
    packages = ("openmpi-bin", "python3-mpi4py")
    _run(*inside, "apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages)
    for junk in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
        shutil.rmtree(folder / junk, ignore_errors=True)


def _with_wheel(flavour: str, folder: Path) -> None:
    """An MPI as pip installs one, beside the image's Python, and mpi4py."""
    prefix = mpi_folder() / flavour
    if not prefix.is_dir():
        pytest.skip(f"{flavour} is not installed in {mpi_folder()}")
    _run("cp", "-a", root_of(PYTHON), folder)
    _run("cp", "-a", f"{prefix.resolve()}/.", folder / "usr/local")
    packages = folder / "usr/local/lib/python3.11/dist-packages"
    packages.mkdir(parents=True, exist_ok=True)
    (own,) = mpi4py.__path__
    shutil.copytree(own, packages / "mpi4py")


def _shell(folder: Path) -> None:
    busybox = shutil.which("busybox")
    if busybox is None or b"statically" not in _run("file", "-L", busybox).stdout.encode():
        pytest.skip("there is no static busybox to make an image with")
    for name in ("bin", "tmp", "etc"):
        (folder / name).mkdir(parents=True)
    (folder / "tmp").chmod(0o1777)
    shutil.copy(busybox, folder / "bin" / "busybox")
    for name in ("sh", "ls", "cat", "id", "env", "mkdir", "sleep", "hostname", "test"):
        (folder / "bin" / name).symlink_to("busybox")


# ----------------------------------------------------------------------------------- engines


@dataclass
class Engine:
    """An engine that works here: `image` is a Debian with Python and nothing else.

    `environ` leads its command to it; `prefix` are words before that command (another user's).
    """

    name: str
    environ: Mapping[str, str]
    image: str = PYTHON
    prefix: Sequence[str] = ()
    loaded: set[str] = field(default_factory=set)

    def run(self, *words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `docker WORDS…`, or podman's like."""
        done = subprocess.run(
            [*self.prefix, self.name, *map(str, words)],
            env={**os.environ, **self.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def load(self, image: str) -> str:
        """Have one of the images; returns the name by which the engine takes it."""
        if self.name == "apptainer":
            return str(root_of(image))
        if image not in self.loaded:
            self.run("import", archive_of(image), image)
            self.loaded.add(image)
        return image

    def containers(self) -> list[str]:
        """The names of all containers, also of those that have ended."""
        if self.name == "apptainer":
            return []
        return self.run("ps", "--all", "--format", "{{.Names}}").stdout.split()


class ContainedShanty(Shanty):
    """The program, where it finds an engine of ours and no other."""

    engine: Engine

    @property
    def environ(self) -> dict[str, str]:
        return {**super().environ, **self.engine.environ}

    def in_container(
        self, *words: str | Path, **options: object
    ) -> subprocess.CompletedProcess[str]:
        """`shanty run` with the engine's image, and of this machine's packages mpi4py only."""
        return self("run", *self.image_words, "--packages", "none", *words, **options)  # type: ignore[arg-type]

    @property
    def image_words(self) -> tuple[str, ...]:
        return ("--image", self.engine.image, "--runtime", self.engine.name)

    def use(self, flavour: str) -> str:
        """Let the program find the tests' MPI of that flavour; returns its name."""
        there = self.home / "mpi" / flavour
        if flavour != "openmpi5" and not there.exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(mpi_folder() / flavour, there, symlinks=True)
        return flavour

    def passes_large_messages(self, flavour: str) -> None:
        """Ranks join and pass messages from memory to memory, which containers may forbid."""
        self.script(
            "import os\n"
            "from mpi4py import MPI\n"
            "comm, data = MPI.COMM_WORLD, bytearray(b'x' * (8 << 20))\n"
            "for _ in range(3):\n"
            "    comm.Send(data, 1) if comm.rank == 0 else comm.Recv(data, 0)\n"
            "print(comm.allreduce(1), 'got', data.count(b'x'), 'in', os.getcwd())\n"
        )
        done = self.in_container("-n", "2", "--mpi", self.use(flavour), "script.py")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(f"2 got {8 << 20} in {self.folder}\n") == 2
        assert "errno" not in done.stdout + done.stderr


@contextlib.contextmanager
def dockerd(
    folder: Path, *words: str, within: Sequence[str] = (), socket: str = ""
) -> Iterator[Engine]:
    """A dockerd of our own, which changes nothing of the machine but control groups.

    `within` are words that start it elsewhere, on a virtual host; `socket` is its path there.
    """
    if os.geteuid():
        pytest.skip("dockerd is for root")
    if not shutil.which("dockerd"):
        pytest.skip("docker is not installed")
    socket = socket or f"{folder}/docker.sock"
    parent = f"shanty-test-{os.getpid()}-{abs(hash(str(folder))) % 10000}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "daemon.json").write_text("{}")
    command = [
        *within, "dockerd", "--config-file", f"{folder}/daemon.json", "--data-root",
        f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid",
        "--host", f"unix://{socket}", "--cgroup-parent", f"/{parent}", "--bridge", "none",
        "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false", *words,
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    engine = Engine("docker", {"DOCKER_HOST": f"unix://{socket}"}, prefix=within)
    try:

        def works() -> bool:
            done = engine.run("version", "--format", "{{.Server.Version}}", check=False)
            return done.returncode == 0 or process.poll() is not None

        wait_for(works, 30, "dockerd")
        if process.poll() is not None:
            lines = (folder / "log").read_text(errors="replace").splitlines()
            pytest.skip(f"dockerd does not run here: {lines[-1] if lines else ''}")
        yield engine
        for name in engine.run("ps", "--all", "--quiet").stdout.split():
            engine.run("rm", "--force", name, check=False)
    finally:
        for pid in _children(process.pid) if within else [process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        if process.poll() is None:
            process.kill()
            process.wait()
        unmount(folder)
        _forget_groups(parent)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def disk() -> Iterator[Path]:
    """A folder on a disk that virtual hosts see, too: their /tmp is their own, and in memory.

    Its path is short: podman hears of a container's end 20 s late where that of its run root has
    more than 50 characters.
    """
    if os.geteuid():
        pytest.skip("engines of our own are for root")
    folder = Path(tempfile.mkdtemp(prefix="shanty-", dir="/var/lib"))
    try:
        yield folder
    finally:
        unmount(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError):  # it has ended
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def podman_files(folder: Path, *, rootless: bool = False, images: Path | None = None) -> Path:
    """Settings for a podman of our own: the folder of containers.conf and storage.conf.

    `images` is the storage of another one, of which it has the images, too.
    """
    etc = folder / "etc"
    etc.mkdir(parents=True)
    runtime = "crun" if shutil.which("crun") else "runc"
    (etc / "containers.conf").write_text(
        f'[engine]\nruntime = "{runtime}"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        # Or two of them with storage of their own would share locks, and wait for each other.
        f'lock_type = "file"\ntmp_dir = "{folder}/tmp"\n'
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]\n'
    )
    more = f'[storage.options]\nadditionalimagestores = ["{images}"]\n' if images else ""
    (etc / "storage.conf").write_text(
        f'[storage]\ndriver = "{"vfs" if rootless else "overlay"}"\n'
        f'graphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n{more}'
    )
    return etc


@contextlib.contextmanager
def podman(folder: Path) -> Iterator[Engine]:
    """A podman of root's with storage of its own."""
    if os.geteuid():
        pytest.skip("this podman is root's")
    if not shutil.which("podman"):
        pytest.skip("podman is not installed")
    etc = podman_files(folder)
    engine = Engine(
        "podman",
        {
            "CONTAINERS_CONF": f"{etc}/containers.conf",
            "CONTAINERS_STORAGE_CONF": f"{etc}/storage.conf",
        },
    )
    try:
        done = engine.run("info", check=False)
        if done.returncode:
            pytest.skip(f"podman does not run here: {done.stderr.strip()}")
        yield engine
        for name in engine.run("ps", "--all", "--quiet").stdout.split():
            engine.run("rm", "--force", "--time", "0", name, check=False)
    finally:
        unmount(folder)
        shutil.rmtree(folder, ignore_errors=True)


def unmount(folder: Path) -> None:
    """Unmount all that is mounted below a folder."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [line.split()[4] for line in lines]
    for mount in reversed([one for one in mounts if Path(one).is_relative_to(folder)]):
        subprocess.run(["umount", "--lazy", mount], check=False)


def _forget_groups(name: str) -> None:
    """Remove the control groups that dockerd made, which are empty by now."""
    tops = [*_CGROUPS.glob(f"*/{name}"), *_CGROUPS.glob(name)]
    until = time.monotonic() + 10
    for top in tops:
        for at, _, _ in os.walk(top, topdown=False):
            while time.monotonic() < until:
                try:
                    Path(at).rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.05)
