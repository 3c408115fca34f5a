"""What ssh's configuration says of hosts."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shanty.launch.transport import openssh
from shanty.launch.transport.openssh import OpenSSH, Route
from shanty.runtime.errors import PrepareError
from shanty.runtime.site import Host

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh")


def config(folder: Path, command: str) -> str:
    path = folder / "config"
    path.write_text(f'Match exec "{command}"\n  HostName 192.0.2.1\n')
    return str(path)


def test_hosts_do_not_wait_for_each_others_configuration(tmp_path: Path) -> None:
    """`Match exec` of each host waits for the other's."""
    both = " && ".join(f"[ -e {tmp_path}/{name} ]" for name in "ab")
    path = config(tmp_path, f"touch {tmp_path}/%n; until {both}; do sleep 0.05; done")
    with ThreadPoolExecutor(2) as pool:
        routes = list(pool.map(lambda name: OpenSSH(Host(name, config=path)).route, "ab"))
    assert [route.settings["hostname"] for route in routes] == ["192.0.2.1"] * 2


def test_a_configuration_that_hangs_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openssh, "_ASKING", 0.5)
    asked, run = [], openssh._run

    def counted(argv: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
        if any(str(tmp_path) in word for word in argv):  # threads of earlier tests may ask, too
            asked.append(argv)
        return run(argv, seconds)

    monkeypatch.setattr(openssh, "_run", counted)
    transport = OpenSSH(Host("a", config=config(tmp_path, "sleep 60")))
    for _ in range(2):
        with pytest.raises(PrepareError, match="does not finish reading its configuration"):
            _ = transport.route
    assert len(asked) == 1


def test_settings_that_keep_a_command_from_its_input_are_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda argv, **_: started.append(argv))
    for name in ("odd", "plain"):
        transport = OpenSSH(Host(name))
        settings = {"stdinnull": "yes", "sessiontype": "none"} if name == "odd" else {}
        transport._route = Route(transport.host, {"hostname": "192.0.2.1", **settings})
        transport.start(["true"])
    odd, plain = started
    assert {"StdinNull=no", "SessionType=default"} <= set(odd)
    assert not any(word.startswith(("StdinNull", "Fork", "SessionType")) for word in plain)
