"""Finding out where many runs stand, some of them on hosts that do not answer."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from shanty.launch.cluster.host import Host
from shanty.launch.index import Entry, Runs
from shanty.launch.settings import Settings
from shanty.launch.targets import hosts
from shanty.launch.targets.registry import Targets
from shanty.runtime.rundir import RunDir, write_json
from shanty.runtime.spec import JobSpec, Script, State, Status

COUNT = 5


class Silent:
    """A server that takes connections and never says a word, as a frozen host's sshd."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.taken: list[socket.socket] = []
        self.all_are_here = threading.Event()
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.taken.append(self._server.accept()[0])
                if len(self.taken) == COUNT:
                    self.all_are_here.set()

    def end(self) -> None:
        """Hang up, and take nobody any more."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)
        for connection in self.taken:
            connection.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    server = Silent()
    yield server
    server.end()


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no OpenSSH on this machine")
def test_runs_that_do_not_answer_are_asked_at_the_same_time(
    tmp_path: Path, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for one of them before the next is asked: with such a bound it would be seen."""
    monkeypatch.setattr(hosts, "_FIRST_LOOK", 600.0)
    config = tmp_path / "ssh_config"
    config.write_text("Host *\n  UserKnownHostsFile /dev/null\n  ControlPath none\n")
    for number in range(COUNT):
        run = RunDir(tmp_path / "runs" / f"20240101-00000{number}-bcdf")
        run.create()
        write_json(run.job, JobSpec(Script("train.py")).to_json())
        write_json(run.status, Status(State.RUNNING, 1, created=1.0).to_json())
        host = Host("127.0.0.1", port=silent.port, config=str(config))
        write_json(run.site, {"hosts": [asdict(host)]})
    found: list[Entry] = []
    runs = Runs(tmp_path, Targets(tmp_path, {}, Settings()))
    asking = threading.Thread(target=lambda: found.extend(runs.entries()), daemon=True)
    asking.start()
    assert silent.all_are_here.wait(60), f"{len(silent.taken)} of {COUNT} were asked"
    assert asking.is_alive()
    silent.end()
    asking.join(60)
    assert [entry.status.state for entry in found] == [State.RUNNING] * COUNT
