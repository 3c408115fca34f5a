"""Labs of virtual hosts, each in a home of its own, and a look around after their end.

Where the product says that this machine cannot have a lab, tests are skipped with its reason;
SHANTY_TEST_LAB=required makes that a failure.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rotation import thin
from runs import STARTED, flavour, interruptible, wait_for
from shanty.launch.lab import control, files
from shanty.launch.lab.model import Lab

__all__ = ["flavour"]
CANNOT = 69  # the exit code of a PrepareError
# Files whose tests leave a lab as they found it. A new one takes time: its hosts have to receive
# our code and each MPI before a first run.
SHARING = frozenset(
    f"test_{name}"
    for name in (
        *("dmlc_submit", "experiments", "failures", "lines", "machines"),
        *("process_lines", "profile", "programs", "resources", "runs", "stalls"),
    )
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file is for one worker of pytest-xdist, since its tests share a lab."""
    thin(items, Path(__file__).parent, every=6)
    for item in items:
        if item.path.parent == Path(__file__).parent:
            name = "slurm" if "slurm" in item.path.stem else item.path.stem  # they share a cluster
            item.add_marker(pytest.mark.xdist_group(f"lab {name}"))


@dataclass
class LabHome:
    """A home with labs in it, and the program that makes them."""

    home: Path
    seen: set[str] = field(default_factory=set)  # the network namespaces of all its hosts

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "SHANTY_HOME": str(self.home)}

    def start(self, *words: str | Path, **options: Any) -> subprocess.Popen[str]:
        """Start `shanty WORDS…`, its output in pipes."""
        STARTED[str(words[0])] += 1
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [sys.executable, "-m", "shanty", *map(str, words)],
            **{**pipes, "env": self.environ, "text": True, "preexec_fn": interruptible, **options},
        )

    def __call__(
        self, *words: str | Path, stdin: str = "", timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run `shanty WORDS…` to its end."""
        STARTED[str(words[0])] += 1
        return subprocess.run(
            [sys.executable, "-m", "shanty", *map(str, words)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.environ,
        )

    def known(self, name: str = "lab") -> Lab:
        return control.find(self.home, name)

    def remember(self, name: str) -> None:
        """Note the namespaces of a lab, to find out later whether something still is in them."""
        known = self.known(name)
        pids = [known.pid, *control.first_processes(known).values()]
        self.seen |= {str(Path(f"/proc/{pid}/ns/net").readlink()) for pid in pids}

    def _is_another(self, pid: int) -> bool:
        """True for a process of a lab with another home: numbers of namespaces come again."""
        while pid > 1:
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                stat = Path(f"/proc/{pid}/stat").read_text()
            except OSError:
                return False
            if b"shanty.launch.lab.supervisor" in words:
                return f"{self.home}/".encode() not in words
            # outside of its lab; the next word is the lab's supervisor
            if b"/proxy_command.py\0" in words:
                pid = int(words.partition(b"/proxy_command.py\0")[2].split(b"\0")[0])
                continue
            pid = int(stat.rpartition(")")[2].split()[1])
        return False

    def left(self) -> list[str]:
        """What is still there of the labs: processes, mounts, files."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                try:
                    inside = str((entry / "ns/net").readlink()) in self.seen
                    words = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                ours = f"{self.home}/".encode() in words
                if ours or (inside and not self._is_another(int(entry.name))):
                    found.append(f"process {entry.name} {words!r}")
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        found += [f"mount {line}" for line in mounts if f" {self.home}/" in line]
        for folder in ("lab", "hosts"):
            if (self.home / folder).is_dir():
                found += [str(path) for path in (self.home / folder).iterdir()]
        return found


@dataclass
class LabHosts:
    """A lab that is up."""

    shanty: LabHome
    name: str

    @property
    def folder(self) -> Path:
        return self.shanty.home / "lab" / self.name

    @property
    def config(self) -> Path:
        return self.folder / "ssh_config"

    def home(self, host: str) -> Path:
        """Where the home of a host's user is on this machine."""
        return self.folder / "hosts" / host / "home"

    @property
    def hosts(self) -> list[str]:
        return [member.name for member in self.shanty.known(self.name).hosts]

    def ssh_words(self, host: str, *words: str) -> list[str]:
        return ["ssh", "-F", str(self.config), "-o", "ConnectTimeout=2", host, *words]

    def ssh(
        self, host: str, *words: str, stdin: str = "", timeout: float = 30
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host through its sshd."""
        return subprocess.run(
            self.ssh_words(host, *words),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def out(self, host: str, *words: str) -> str:
        """What a command on a host writes; it has to succeed."""
        done = self.ssh(host, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def exec(self, host: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command on a host's console, as `shanty lab exec` does."""
        if os.getuid():
            return self.shanty("lab", "exec", host, *words, stdin=stdin)
        # Without a Python that has to start: tests do this hundreds of times.
        known = self.shanty.known(self.name)
        pid = control.first_processes(known)[host]
        home = next(member.home for member in known.hosts if member.name == host)
        enter = ["nsenter", "-t", str(pid), "-m", "-n", "-p", "-u", "-i", "--"]
        return subprocess.run(
            [*enter, "sh", "-c", 'cd && exec "$@"', "sh", *words],
            env={"HOME": home, "USER": known.user, "PATH": files.host_path(known)},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def do(self, verb: str, host: str) -> None:
        """cut, join, freeze, thaw, reboot."""
        done = self.shanty("lab", verb, host)
        assert done.returncode == 0, done.stderr

    def show(self) -> dict[str, Any]:
        shown = self.shanty("lab", "show", self.name, "--json")
        assert shown.returncode == 0, shown.stderr
        value: dict[str, Any] = json.loads(shown.stdout)
        return value

    def state(self, host: str) -> str:
        states: dict[str, str] = {entry["name"]: entry["state"] for entry in self.show()["hosts"]}
        return states[host]


def links() -> list[str]:
    """The network interfaces of this machine."""
    return sorted(path.name for path in Path("/sys/class/net").iterdir())


def _bring_up(home: LabHome, count: int, *words: str) -> LabHosts:
    done = home("lab", "up", str(count), *words)
    if done.returncode == CANNOT and os.environ.get("SHANTY_TEST_LAB") != "required":
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    name = words[words.index("--name") + 1] if "--name" in words else "lab"
    home.remember(name)
    return LabHosts(home, name)


def _end(home: LabHome, before: list[str]) -> None:
    for known in control.labs(home.home):
        done = home("lab", "down", known.name)
        assert done.returncode == 0, done.stderr
    wait_for(lambda: not home.left(), 5, f"the labs leave something: {home.left()}")
    wait_for(lambda: links() == before, 5, "the machine has other interfaces than before")


@pytest.fixture
def lab_home(tmp_path: Path) -> Iterator[LabHome]:
    """A home without a lab; whatever labs are in it at the end of the test are ended."""
    before = links()
    home = LabHome(tmp_path / "a home")  # paths with spaces have to do
    home.home.mkdir()
    yield home
    _end(home, before)


@pytest.fixture
def make_lab(lab_home: LabHome) -> Callable[..., LabHosts]:
    """`make_lab(3, "--bare")`: a lab for one test."""
    return lambda count, *words: _bring_up(lab_home, count, *words)


@contextmanager
def lab_in(folder: Path, count: int, *words: str, stores: Path | None = None) -> Iterator[LabHosts]:
    """A lab that has the folder as its home, up to the end of the block.

    `stores` has what hosts of earlier labs were sent: these get a copy of it.
    """
    before = links()
    home = LabHome(folder)
    try:
        found = _bring_up(home, count, *words)
        if stores is not None and stores.is_dir():
            _fill(found, stores)
        yield found
    finally:
        _end(home, before)


def _fill(lab: LabHosts, stores: Path) -> None:
    """Give each host what an earlier lab's was sent; what differs by now has another name."""
    for home in {lab.home(host).resolve() for host in lab.hosts}:  # they may share one
        there = home / ".shanty"
        there.mkdir(mode=0o700)
        subprocess.run(["cp", "-a", stores, there / "store"], check=True)


def _keep(lab: LabHosts, stores: Path) -> None:
    """Keep our code and the MPIs, as the first host has them, for labs of this test session."""
    for kind in ("bundle", "mpi"):
        (stores / kind).mkdir(parents=True, exist_ok=True)
        for item in (lab.home(lab.hosts[0]) / ".shanty" / "store" / kind).glob("[!.]*"):
            with suppress(OSError):  # it is there, maybe by another worker of pytest-xdist
                item.rename(stores / kind / item.name)


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what hosts were sent, the same for all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "stores"


@pytest.fixture(scope="session")
def shared_lab(tmp_path_factory: pytest.TempPathFactory, stores: Path) -> Iterator[LabHosts]:
    """Three hosts for the files of SHARING that one worker of pytest-xdist has."""
    with lab_in(tmp_path_factory.mktemp("shared"), 3, stores=stores) as found:
        yield found
        _keep(found, stores)
        _empty(found)


@pytest.fixture(scope="module")
def lab(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, stores: Path
) -> Iterator[LabHosts]:
    """Three hosts for all tests of a file, whose first run sends nothing but its own files."""
    if request.path.stem in SHARING:
        yield request.getfixturevalue("shared_lab")
        return
    with lab_in(tmp_path_factory.mktemp("lab"), 3, stores=stores) as found:
        yield found
        _keep(found, stores)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, stores: Path) -> Iterator[Any]:
    """A real Slurm for the tests of all files that need one."""
    from slurm_cluster import cluster_in  # which takes its labs from here

    with cluster_in(tmp_path_factory.mktemp("slurm"), stores) as found:
        yield found


@pytest.fixture(scope="module")
def bare_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHosts]:
    """Three hosts with sshd and a Python only, for all tests of a file."""
    with lab_in(tmp_path_factory.mktemp("bare"), 3, "--bare") as found:
        yield found
        _empty(found)


def _empty(lab: LabHosts) -> None:
    """Remove what the hosts were sent: it may take longer than the end of a lab may."""
    for host in lab.hosts:
        shutil.rmtree(lab.home(host) / ".shanty", ignore_errors=True)
