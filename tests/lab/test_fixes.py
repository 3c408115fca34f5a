"""`shanty doctor --fix` on hosts on which something really is wrong: afterwards a run works."""

from __future__ import annotations

import ctypes
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from conftest import LabHosts, lab_in
from faults_world import World

from gadgets import environment, install, wheel
from runs import wait_for
from shanty.runtime.rpc.repair import BACKUP

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

PASSWORD = "open sesame"
SETTLED = 61.0  # seconds after which what a job left counts as left
HELLO = """
from mpi4py import MPI
print("sum", MPI.COMM_WORLD.allreduce(1), flush=True)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, stores: Path) -> Iterator[LabHosts]:
    with lab_in(tmp_path_factory.mktemp("fixes"), 3, stores=stores) as found:
        yield found


@pytest.fixture(scope="module")
def world(lab: LabHosts) -> Iterator[World]:
    """The lab, on whose third host a dead job fills /dev/shm from the start."""
    found = World(lab)
    code(found).mkdir()
    (code(found) / "hello.py").write_text(HELLO)
    fill = "echo >precious; dd if=/dev/zero of=sm_segment.lab3.0.dead bs=64k 2>/dev/null || true"
    with found.memory_disk("lab3", "/dev/shm", "size=64m,mode=1777", fill):
        yield found
    found.close()


def code(world: World) -> Path:
    """The folder of the runs."""
    return world.runtime / "code"


def doctor(world: World, on: str, *words: str) -> dict[str, Any]:
    """What doctor reports."""
    done = world.run("doctor", "--on", on, "--json", *words)
    assert done.stdout.startswith("{"), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def codes(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The code and the host of all that is more than a note."""
    return [(one["code"], one["host"]) for one in report["findings"] if one["level"] != "note"]


def mended(
    world: World, *faults: tuple[str, str], words: Sequence[str] = (), on: str = "lab1,lab2"
) -> dict[tuple[str, str], Any]:
    """See that doctor finds the first fault (code, host), and none after its repairs.

    Returns what it did, by code and host.
    """
    assert faults[0] in codes(doctor(world, on))
    report = doctor(world, on, "--fix", "--yes", *words)
    assert codes(report) == []
    done = {(one["code"], one["host"]): one for one in report["repairs"]}
    assert done.keys() == set(faults)
    assert {one["error"] for one in report["repairs"]} == {""}
    works(world, on)
    return done


def works(world: World, on: str) -> None:
    """See that ranks on the hosts find each other."""
    count = str(on.count(",") + 1)
    ranks = ("-n", count, "--ppn", "1", "-C", str(code(world)))
    done = world.run("run", "-q", "--on", on, *ranks, "hello.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"sum {count}") == int(count)


def crypt(password: str) -> str:
    """The password as /etc/shadow has it."""
    library = ctypes.CDLL("libcrypt.so.1")
    library.crypt.restype = ctypes.c_char_p
    found: bytes = library.crypt(password.encode(), b"$6$shantylab$")
    return found.decode()


def test_a_password_is_asked_for_once_and_the_key_let_in(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = world.lab.home("lab2") / ".ssh/authorized_keys"
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHersHersHersHersHersHersHersHersHersHersHer her"
    answers = tmp_path / "askpass"
    answers.write_text(f"#!/bin/sh\necho asked >>{tmp_path}/asked\necho '{PASSWORD}'\n")
    answers.chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(answers))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    with ExitStack() as stack:
        stack.enter_context(world.text(keys, lambda _text: other))
        stack.enter_context(
            world.text(
                world.own("lab2", "etc/shadow"),
                lambda text: text.replace(":*:", f":{crypt(PASSWORD)}:", 1),
            )
        )
        stack.enter_context(world.sshd("lab2", "PasswordAuthentication yes", "PermitRootLogin yes"))
        unasked = doctor(world, "lab1,lab2", "--fix")
        assert codes(unasked) == [("password-needed", "lab2")]
        assert unasked["repairs"] == []  # nobody is there to say yes
        assert keys.read_text() == other
        mended(world, ("password-needed", "lab2"))
        assert (tmp_path / "asked").read_text() == "asked\n"
        first, second = keys.read_text().splitlines()
        assert first == other
        assert second == (world.lab.folder / "id_ed25519.pub").read_text().strip()
        assert keys.stat().st_mode & 0o077 == 0


def test_a_host_key_is_shown_and_kept(world: World) -> None:
    (known,) = world.known_hosts
    before = known.read_text()
    without = "".join(x for x in before.splitlines(keepends=True) if not x.startswith("lab2,"))
    with world.text(known, lambda _text: without):
        public = world.own("lab2", "host_key.pub")
        shown = subprocess.run(["ssh-keygen", "-lf", public], capture_output=True, check=True)
        fingerprint = shown.stdout.decode().split()[1]
        another = "SHA256:" + "A" * 43
        for words in ([], ["--yes"], ["--yes", "--accept-key", another]):
            unasked = world.run("doctor", "lab1,lab2", "--fix", *words)
            assert unasked.returncode == 69
            assert f"lab2 shows the host key {fingerprint}" in unasked.stderr
            assert known.read_text() == without
        accepted = ("--accept-key", another, "--accept-key", fingerprint)
        mended(world, ("host-key-unknown", "lab2"), words=accepted)
        (line,) = known.read_text().removeprefix(without).splitlines()
        key = public.read_text().split()[1]
        assert line.split()[0] == "lab2" and line.split()[2] == key


def test_what_is_seen_only_after_a_repair_is_repaired_too(world: World) -> None:
    (key,) = world.private_keys
    home = world.lab.home("lab2")
    path = world.lab.home("lab1") / ".openmpi/mca-params.conf"
    text = "# of the old cluster\nbtl_tcp_if_include = ib0\nmpi_show_handle_leaks = 0\n"
    stray = ("strays", "lab2")
    world.console(
        "lab2",
        "SHANTY_RUN_ID=20200102-030405-dead setsid sleep 1000 </dev/null >/dev/null 2>&1 & "
        "echo $! >/run/stray",
    )
    with world.mode(key, 0o644), world.mode(home, 0o777), world.file(path, text):
        assert codes(doctor(world, "lab1,lab2")) == [("key-open", "")]
        done = mended(
            world, ("key-open", ""), stray, ("home-open", "lab2"), ("mpi-parameters", "lab1")
        )
        assert key.stat().st_mode & 0o777 == 0o600
        assert "of run 20200102-030405-dead ended" in done[stray]["done"][0]
        gone = "kill -0 $(cat /run/stray) 2>/dev/null || echo gone"
        assert world.console("lab2", gone) == "gone\n"
        assert home.stat().st_mode & 0o022 == 0
        assert path.read_text() == text.replace("btl_tcp", "# btl_tcp")
        backup = path.with_name(path.name + BACKUP)
        assert backup.read_text() == text
        backup.unlink()


def test_what_shanty_keeps_gives_way_where_the_disk_is_full(world: World) -> None:
    home = world.member("lab2").home
    with world.memory_disk("lab2", home, "size=1300m,mode=700"):
        works(world, "lab1,lab2")
        world.console(
            "lab2",
            f"cd {home}/.shanty/store; mkdir -p env/0123456789abcdef0123; "
            "dd if=/dev/zero of=env/0123456789abcdef0123/filler bs=1M 2>/dev/null || true; "
            "touch -d 2020-01-01 env/0123456789abcdef0123",
        )
        full = ("disk-full", "lab2")
        assert " MB freed in " in mended(world, full)[full]["done"][0]


def test_packages_that_a_host_lacks(world: World, tmp_path: Path) -> None:
    # the hosts have a /tmp of their own, so they do not see this environment
    python = environment(tmp_path / "env")
    install(python, wheel(tmp_path / "gadgets", "1.0"))
    report = doctor(world, "lab2", "--fix", "--python", str(python))
    assert [one["code"] for one in report["findings"]] == ["packages-differ"]
    (repair,) = report["repairs"]
    assert repair["error"] == ""
    made = repair["done"][0].rpartition(" ")[2]
    assert world.lab.out("lab2", f"{made} -c 'import gadget; print(gadget.VERSION)'") == "1.0"


@pytest.mark.sampled(12)  # it waits for a minute
def test_segments_of_dead_jobs(world: World) -> None:
    """Last, since only what is old enough counts as left."""
    path = "/dev/shm/sm_segment.lab3.0.dead"
    made = float(world.console("lab3", f"stat -c %Z {path}"))
    wait_for(lambda: time.time() > made + SETTLED, SETTLED + 5, "the clock stands still")
    mended(world, ("shm-full", "lab3"), on="lab1,lab3")
    assert world.console("lab3", f"ls {path} 2>/dev/null || echo gone") == "gone\n"
    assert world.console("lab3", "ls /dev/shm/precious") == "/dev/shm/precious\n"
