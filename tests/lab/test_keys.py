"""Keys on real hosts: authorized_keys is as it was after whatever may happen to a run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import LabHosts, lab_in
from site_runs import Site

from runs import wait_for
from shanty.launch.lab import control
from shanty.launch.transport import keys
from shanty.runtime.errors import PrepareError
from shanty.runtime.rundir import read_json

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

HERS = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHersHersHersHersHersHersHersHersHersHersHer her@desk"
NEW = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINewNewNewNewNewNewNewNewNewNewNewNewNewNewNew new@desk"
# What a user may have there; lab1 is the lead host, which nobody has to enter.
KINDS = {
    "lab2": None,
    "lab3": b"# my keys\n\n" + HERS,  # no newline at the end
    "lab4": b"\xef\xbb\xbf# mine\r\n" + HERS + b"\r\n\r\n",
    "lab5": b"  " + HERS + b"\n",  # a link to a file elsewhere
}
HOSTS = ("lab1", *KINDS)
OURS = re.compile(
    rb'restrict,from="10\.77\.0\.1",expiry-time="\d{14}",'
    rb'command="[^\n]* agent\.worker_agent [^\n]*" '
    rb"ssh-ed25519 \S+ shanty:(\S+)\.(\d)@(lab\d) since-\d+( made-file)?\n"
)
RUN = ("run", "-q", "--on", "lab", "-n", "5", "--ppn", "1", "--packages", "none")
CANNOT_LAUNCH, CANNOT_STORE = 71, 73  # exit codes
# Ends when its home has a file `go`.
WAIT = """
import os, time
end = time.monotonic() + 90
while time.monotonic() < end and not os.path.exists(os.path.expanduser("~/go")):
    time.sleep(0.02)
"""


class State(NamedTuple):
    """All that there is to see of a host's keys."""

    content: bytes | None
    link: str
    mode: int
    folder: tuple[str, ...]


def keys_file(lab: LabHosts, host: str) -> Path:
    return lab.home(host) / ".ssh" / "authorized_keys"


def look(lab: LabHosts, hosts: Iterable[str] = HOSTS) -> dict[str, State]:
    """The keys of the hosts."""
    found = {}
    for host in hosts:
        file = keys_file(lab, host)
        there = file.exists()
        found[host] = State(
            file.read_bytes() if there else None,
            str(file.readlink()) if file.is_symlink() else "",
            file.stat().st_mode if there else 0,
            tuple(sorted(path.name for path in file.parent.iterdir())),
        )
    return found


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory, stores: Path) -> Iterator[LabHosts]:
    """A lab that lets us in by another file than the one that runs write."""
    with lab_in(tmp_path_factory.mktemp("keys"), 5, stores=stores) as lab:
        for host in HOSTS:
            file = keys_file(lab, host)
            file.rename(file.with_name("authorized_keys2"))
        elsewhere = lab.home("lab5") / "my files"
        elsewhere.mkdir()
        keys_file(lab, "lab5").symlink_to("../my files/keys")
        yield lab


@pytest.fixture
def site(five: LabHosts, tmp_path: Path) -> Site:
    """Runs on the lab, the first ones; the keys of its hosts are as in KINDS."""
    shutil.rmtree(five.shanty.home / "runs", ignore_errors=True)
    for host, content in KINDS.items():
        file = keys_file(five, host)
        if content is None:
            file.unlink(missing_ok=True)
        else:
            file.write_bytes(content)
            file.resolve().chmod(0o640)
    for host in HOSTS:
        (five.home(host) / "go").unlink(missing_ok=True)
    here = Site(five, tmp_path / "work")
    here.write("wait.py", WAIT)
    return here


@pytest.fixture
def before(site: Site) -> dict[str, State]:
    """The keys as they were."""
    return look(site.lab)


def run(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    """A program on every host, to its end."""
    return site(*RUN, *words)


def start(site: Site) -> subprocess.Popen[str]:
    """A run with one rank a host; it goes on until `let_go`, or until it is ended."""
    return site.start(*RUN, "wait.py")


def let_go(site: Site) -> None:
    for host in HOSTS:
        (site.lab.home(host) / "go").touch()


def lines(site: Site) -> dict[str, list[bytes]]:
    """The runs that each host lets in."""
    files = {host: keys_file(site.lab, host) for host in HOSTS}
    return {
        host: [found[1] for found in OURS.finditer(file.read_bytes())] if file.exists() else []
        for host, file in files.items()
    }


def await_ranks(site: Site, process: subprocess.Popen[str]) -> None:
    """Wait until all ranks of the run of this process are up."""
    folder = site.lab.shanty.home / "runs"

    def up() -> bool:
        assert process.poll() is None, process.communicate()
        found = [read_json(path / "status.json") or {} for path in folder.glob("*")]
        return any(one.get("up") == 5 and one["ended"] is None for one in found)

    wait_for(up, 60, "the ranks do not start")


def finish(process: subprocess.Popen[str], code: int) -> str:
    """Wait for the end of a run; what it said."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, out + err
    return err


def agents(site: Site) -> list[int]:
    """The agents of all runs, on all hosts, by the pids that they have here."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                inside = str((entry / "ns/net").readlink()) in site.lab.shanty.seen
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if inside and {b"agent.start", b"agent.worker_agent", b"agent.node_agent"} & set(words):
                found.append(int(entry.name))
    return found


def is_on(pid: int, site: Site, host: str) -> bool:
    """True for a process of that host."""
    first = control.first_processes(site.lab.shanty.known())[host]
    return Path(f"/proc/{pid}/ns/net").samefile(f"/proc/{first}/ns/net")


def kill(pids: list[int]) -> None:
    """End them all at one moment: none sees another one go."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


# --------------------------------------------------------------------------------- runs


def test_a_run_lets_its_lead_in_and_leaves_nothing(site: Site, before: dict[str, State]) -> None:
    process = start(site)
    await_ranks(site, process)
    name = site.last.id.encode()
    assert lines(site) == {"lab1": [], **{host: [name] for host in KINDS}}
    for host, content in KINDS.items():
        now = keys_file(site.lab, host).read_bytes()
        assert OURS.sub(b"", now) == (content or b"")
    assert look(site.lab)["lab5"].link == "../my files/keys"
    assert look(site.lab)["lab3"].mode == before["lab3"].mode
    private = {host: list(site.lab.home(host).glob(".shanty/work/*/key")) for host in HOSTS}
    assert [host for host in HOSTS if private[host]] == ["lab1"]
    assert private["lab1"][0].stat().st_mode & 0o777 == 0o600
    let_go(site)
    finish(process, 0)
    assert look(site.lab) == before
    assert not private["lab1"][0].exists()


def test_a_run_that_fails(site: Site, before: dict[str, State]) -> None:
    done = run(site, "false")
    assert done.returncode == 1, done.stderr
    assert look(site.lab) == before


def test_a_run_that_never_begins(site: Site, before: dict[str, State]) -> None:
    work = site.lab.home("lab1") / ".shanty" / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.parent.mkdir(exist_ok=True)
    work.write_text("no folder")
    try:
        done = run(site, "true")
        assert done.returncode == CANNOT_STORE, done.stderr
        assert "on lab1" in done.stderr
        assert look(site.lab) == before
    finally:
        work.unlink()


def test_a_host_that_does_not_let_the_lead_in(site: Site, before: dict[str, State]) -> None:
    settings = site.lab.folder / "hosts" / "lab4" / "sshd_config"
    text = settings.read_text()
    try:
        settings.write_text(text + "AuthorizedKeysFile .ssh/authorized_keys2\n")
        assert site.lab.exec("lab4", "kill", "-HUP", "1").returncode == 0
        done = run(site, "true")
        assert done.returncode == CANNOT_LAUNCH, done.stderr
        assert "host lab4 cannot be entered from lab1" in done.stderr
        assert look(site.lab) == before
    finally:
        settings.write_text(text)
        assert site.lab.exec("lab4", "kill", "-HUP", "1").returncode == 0


@pytest.mark.parametrize("own", [False, True])
def test_keys_that_nobody_may_change(site: Site, before: dict[str, State], *, own: bool) -> None:
    """As in pods, where they are mounted: then the lead host needs a key of its own."""
    folder, host = keys_file(site.lab, "lab4").parent, "lab4"
    pair = keys_file(site.lab, "lab1").with_name("id_ed25519")
    ways = folder / "authorized_keys2"
    known = ways.read_text()
    if own:
        assert not keys.keygen("-q", "-t", "ed25519", "-N", "", "-f", str(pair)).returncode
        ways.write_text(known + pair.with_suffix(".pub").read_text())
    mount = "mount --bind $HOME/.ssh $HOME/.ssh && mount -o remount,bind,ro $HOME/.ssh"
    assert site.lab.exec(host, "sh", "-c", mount).returncode == 0
    try:
        done = run(site, "hostname")
        seen = site("doctor", "lab", "--json")
    finally:
        assert site.lab.exec(host, "sh", "-c", "umount $HOME/.ssh").returncode == 0
        ways.write_text(known)
        for file in (pair, pair.with_suffix(".pub")):
            file.unlink(missing_ok=True)
    if own:
        assert done.returncode == 0, done.stderr
        assert sorted(line.split()[-1] for line in done.stdout.splitlines()) == list(HOSTS)
    else:
        assert done.returncode == PrepareError.exit_code, done.stderr
        assert "host lab4 does not let the lead host lab1 in" in done.stderr
        assert "read-only" in done.stderr and "Permission denied" in done.stderr
    assert ("run-key-refused" in seen.stdout) == (not own), seen.stdout
    assert look(site.lab) == before


def test_what_a_user_writes_meanwhile_stays_when_a_run_is_stopped(site: Site) -> None:
    process = start(site)
    await_ranks(site, process)
    files = {host: keys_file(site.lab, host) for host in KINDS}
    with files["lab2"].open("ab") as file:  # it was not there before
        file.write(NEW + b"\n")
    with files["lab3"].open("ab") as file:
        file.write(b"\n" + NEW)
    text = files["lab4"].read_bytes()
    files["lab4"].with_name("edited").write_bytes(NEW + b"\r\n" + text)  # as editors do it
    files["lab4"].with_name("edited").replace(files["lab4"])
    files["lab5"].write_bytes(files["lab5"].read_bytes().replace(HERS, NEW))
    assert site("stop", site.last.id).returncode == 0
    finish(process, 143)
    assert {host: file.read_bytes() for host, file in files.items()} == {
        "lab2": NEW + b"\n",
        "lab3": (KINDS["lab3"] or b"") + b"\n" + NEW,
        "lab4": NEW + b"\r\n" + (KINDS["lab4"] or b""),
        "lab5": (KINDS["lab5"] or b"").replace(HERS, NEW),
    }


def test_the_command_line_and_the_lead_are_killed(site: Site, before: dict[str, State]) -> None:
    process = start(site)
    await_ranks(site, process)
    pids = [pid for pid in agents(site) if is_on(pid, site, "lab1")]
    assert pids
    os.kill(process.pid, signal.SIGKILL)
    kill(pids)
    process.communicate(timeout=10)
    wait_for(lambda: look(site.lab) == before, 20, "a node agent by itself has not cleaned up")
    wait_for(lambda: not agents(site), 20, "agents are left")


def test_a_node_agent_is_killed(site: Site, before: dict[str, State]) -> None:
    process = start(site)
    await_ranks(site, process)
    kill([pid for pid in agents(site) if is_on(pid, site, "lab3")])
    assert "lab3" in finish(process, CANNOT_LAUNCH)
    assert look(site.lab) == before


def test_all_is_killed_and_the_next_run_cleans_up(site: Site, before: dict[str, State]) -> None:
    process = start(site)
    await_ranks(site, process)
    killed = site.last.id
    os.kill(process.pid, signal.SIGKILL)
    kill(agents(site))
    process.communicate(timeout=10)
    assert lines(site) == {"lab1": [], **{host: [killed.encode()] for host in KINDS}}
    done = run(site, "hostname")
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[-1] for line in done.stdout.splitlines()) == list(HOSTS)
    assert look(site.lab) == before
    assert not site.remains(killed)
    for host in HOSTS:
        assert not [path for path in site.files(host) if "shanty" in path]
