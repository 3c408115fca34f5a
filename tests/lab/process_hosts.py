"""A target whose hosts are processes of this machine, given late, and a connection into them.

It lives in the tests only and shows what another package has to write: a queue with three
methods, and a command that starts another one on a host. Each host is a process in namespaces
of its own (hostname, processes, /tmp, /dev/shm) that starts what it is asked for on a Unix socket.

    procs/<run>/wanted   how many hosts it asks for     granted     is there when it may have them
    procs/<run>/reason   why it waits                   <host>.pid  the host's process
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from shanty.launch.targets.base import Surroundings
from shanty.launch.targets.queued import Entry, QueuedTarget
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec

SELF = [sys.executable, __file__]
SLOTS = 2  # of each host


class ProcessQueue:
    """The queue: a folder a run, and a process that waits until the run may have its hosts."""

    scheme: ClassVar[str] = "procs"

    def __init__(self, home: Path) -> None:
        self.folder = home / "procs"

    def enqueue(self, run: RunDir, job: JobSpec, start: Sequence[str]) -> str:
        entry = self.folder / run.id
        entry.mkdir(parents=True)
        (entry / "wanted").write_text(str(-(-(job.ranks or 1) // (job.ranks_per_host or SLOTS))))
        (entry / "reason").write_text("waits for a host: all are taken")
        words = [*SELF, "queue", str(entry), str(run.path), *start]
        with (entry / "log").open("wb") as log:
            subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return run.id

    def look(self, names: Collection[str], age: float = 0.0) -> Mapping[str, Entry]:
        found = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                reason = (self.folder / name / "reason").read_text()
                found[name] = Entry(not (self.folder / name / "granted").exists(), reason)
        return found

    def dequeue(self, name: str) -> None:
        shutil.rmtree(self.folder / name)


def make_target(here: Surroundings) -> QueuedTarget:
    """What the entry point of `shanty.targets` names."""
    return QueuedTarget(here, ProcessQueue(here.home))


# ----------------------------------------------------------------------- the queue's process


def queue(entry: Path, run: Path, *start: str) -> None:
    """Wait until the hosts may be had, start them and the run; end them after it."""
    while not (entry / "granted").exists():
        if not entry.exists():
            return  # taken out
        time.sleep(0.02)
    names = [f"proc{number}" for number in range(int((entry / "wanted").read_text()))]
    hosts = [start_host(entry, name) for name in names]
    given = [
        {"name": name, "slots": SLOTS, "connection": {"kind": "exec", "argv": into(entry, name)}}
        for name in names
    ]
    (run / "hosts.json").write_text(json.dumps(given))
    subprocess.run([*into(entry, names[0]), *start])
    for host in hosts:
        host.kill()
        host.wait()
    shutil.rmtree(entry, ignore_errors=True)


def start_host(entry: Path, name: str) -> subprocess.Popen[bytes]:
    words = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    host = subprocess.Popen([*words, *SELF, "host", str(entry), name], start_new_session=True)
    while not (entry / f"{name}.socket").exists():
        assert host.poll() is None, f"{name} ended"
        time.sleep(0.01)
    (entry / f"{name}.pid").write_text(str(host.pid))
    return host


def into(entry: Path, name: str) -> list[str]:
    """The connection: the command that starts another one on a host, given as its arguments."""
    return [*SELF, "enter", str(entry / f"{name}.socket")]


# ------------------------------------------------------------------------------------ a host


def host(entry: Path, name: str) -> None:
    """Be a host: start what is asked for, each with the three streams that come with it."""
    socket.sethostname(name)
    checkout = Path(__file__).parents[2]  # with this file, and the Python that runs it
    everyones = dict.fromkeys((checkout, Path(sys.prefix), entry.parents[1], Path.cwd()))
    shared = [path for path in everyones if path.is_relative_to("/tmp")]
    fresh = entry / f"{name}.tmp"
    fresh.mkdir()
    mount("-t", "tmpfs", "tmp", str(fresh))
    for path in shared:  # what all hosts see stays where it is
        inside = fresh / path.relative_to("/tmp")
        inside.mkdir(parents=True, exist_ok=True)
        mount("--bind", str(path), str(inside))
    mount("--rbind", str(fresh), "/tmp")
    mount("-t", "tmpfs", "shm", "/dev/shm")
    # All have this machine's network; a launcher must not take the others for itself.
    lines = ["127.0.0.1 localhost", *(f"127.0.1.{number + 1} proc{number}" for number in range(8))]
    (entry / "hosts").write_text("\n".join(lines) + "\n")
    mount("--bind", str(entry / "hosts"), "/etc/hosts")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    door = socket.socket(socket.AF_UNIX)
    door.bind(short(entry / f"{name}.new"))
    door.listen(64)
    (entry / f"{name}.new").rename(entry / f"{name}.socket")
    while True:
        caller, _ = door.accept()
        if os.fork() == 0:
            serve(caller)
            os._exit(0)
        caller.close()


def short(path: Path) -> str:
    """A path that is not too long for a socket."""
    return f"/proc/self/fd/{os.open(path.parent, os.O_PATH)}/{path.name}"


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def serve(caller: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, ancillary, _, _ = caller.recvmsg(1 << 16, socket.CMSG_SPACE(12))
    streams = array.array("i", ancillary[0][2])
    asked = json.loads(data)
    done = subprocess.run(
        asked["argv"], stdin=streams[0], stdout=streams[1], stderr=streams[2], cwd=asked["cwd"]
    )
    caller.sendall(str(done.returncode).encode())


def enter(path: str, *argv: str) -> int:
    """Have a host start `argv` with our streams; ends as it does, or when the host is gone."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(short(Path(path)))
    message = json.dumps({"argv": argv, "cwd": "/"}).encode()
    socket.send_fds(line, [message], [0, 1, 2])
    for stream in (0, 1):  # ours would keep the pipes open
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    code = int(line.recv(16) or b"255")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb == "enter":
        sys.exit(enter(*rest))
    {"queue": lambda: queue(Path(rest[0]), Path(rest[1]), *rest[2:]),
     "host": lambda: host(Path(rest[0]), rest[1])}[verb]()  # fmt: skip
