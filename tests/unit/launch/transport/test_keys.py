"""Our lines in authorized_keys: what the user has comes back to the last byte; sshd obeys them."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runs import examples
from shanty.launch.transport import keys
from shanty.runtime import authorized_keys
from shanty.runtime.errors import ShantyError, StorageError
from sshd import SSHD, Sshd

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAxyz0"
RUNS = ("20261121-101112-bcdf", "20261121-101113-xyz2")
HOUR = 3600.0


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where authorized_keys is in a new home; neither the file nor ~/.ssh is there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".ssh" / "authorized_keys"


def add(path: Path, run: str = RUNS[0], index: int = 0, **changed: object) -> None:
    values = {"command": 'sh -c "x y"', "sources": ["10.0.0.1", "fe80::1"]}
    values |= {"expires": time.time() + HOUR, **changed}
    authorized_keys.authorize_key(str(path), run, index, KEY, **values)  # type: ignore[arg-type]


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(content)


def test_a_line_says_who_may_do_what_from_where_until_when(path: Path) -> None:
    add(path, index=3, expires=time.mktime((2031, 2, 3, 4, 5, 5, 0, 0, -1)))
    assert path.read_text().startswith(
        'restrict,from="10.0.0.1,fe80::1",expiry-time="20310203040506",command="sh -c \\"x y\\"" '
        f"{KEY} shanty:{RUNS[0]}.3@{socket.gethostname()} since-"
    )
    (entry,) = authorized_keys.entries(str(path))
    assert entry.run, entry.host_index == (RUNS[0], 3)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_options_that_an_old_sshd_lacks_are_left_out(path: Path) -> None:
    add(path, without=("restrict", "expiry-time"))
    text = path.read_text()
    assert "restrict" not in text and "expiry" not in text
    assert text.startswith("no-agent-forwarding,no-port-forwarding,no-pty,")
    authorized_keys.revoke_key(str(path), RUNS[0], 0)
    assert not path.exists()


@pytest.mark.parametrize("command", ["a\nb", "ends in \\", 'nul \0"'])
def test_a_command_that_would_leave_its_quotes_is_refused(path: Path, command: str) -> None:
    with pytest.raises(ShantyError):
        add(path, command=command)
    assert not path.parent.exists()


@pytest.mark.parametrize("command", ['a"b', 'a\\"b', "a\\b", 'x" ssh-ed25519 AAAA evil', ""])
def test_any_other_command_makes_one_line_that_is_ours(path: Path, command: str) -> None:
    add(path, command=command)
    assert len(path.read_bytes().splitlines()) == len(authorized_keys.entries(str(path))) == 1


def test_a_folder_in_which_something_else_is_by_now_stays(path: Path) -> None:
    add(path)
    (path.parent / "known_hosts").write_text("x")
    authorized_keys.revoke_key(str(path), RUNS[0], 0)
    assert [p.name for p in path.parent.iterdir()] == ["known_hosts"]


def test_the_last_run_removes_a_file_that_has_nothing_else(path: Path) -> None:
    add(path, RUNS[0])
    add(path, RUNS[1])
    authorized_keys.revoke_key(str(path), RUNS[0], 0)
    assert path.exists()
    authorized_keys.revoke_key(str(path), RUNS[1], 0)
    assert not path.parent.exists()


def test_mode_and_link_stay(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles"
    target.write_bytes(b"# mine")
    target.chmod(0o640)
    path.parent.mkdir()
    path.symlink_to(target)
    add(path)
    assert path.is_symlink() and target.stat().st_mode & 0o777 == 0o640
    authorized_keys.revoke_key(str(path), RUNS[0], 0)
    assert target.read_bytes() == b"# mine" and path.is_symlink()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_said_so(path: Path) -> None:
    write(path, b"# mine")
    path.parent.chmod(0o500)
    with pytest.raises(StorageError, match="cannot change"):
        add(path)
    path.parent.chmod(0o700)


def test_renewed(path: Path) -> None:
    write(path, b"# mine")
    add(path)
    end = time.time() + 5 * HOUR
    assert authorized_keys.renew_key(str(path), RUNS[0], 0, end)
    (entry,) = authorized_keys.entries(str(path))
    assert entry.expires is not None and end <= entry.expires < end + 5
    assert not authorized_keys.renew_key(str(path), RUNS[1], 0, end)
    authorized_keys.revoke_key(str(path), RUNS[0], 0)
    assert path.read_bytes() == b"# mine"


def test_the_servers_own_time_zone_counts_not_the_logins(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(path, expires=1_900_000_000.0)
    there = path.read_text().partition('expiry-time="')[2][:14]
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    try:
        add(path, expires=1_900_000_000.0)
        assert path.read_text().partition('expiry-time="')[2][:14] == there
        assert os.environ["TZ"] == "Pacific/Kiritimati"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_swept_is_what_is_dead_or_expired_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = b"ssh-ed25519 AAAA shanty:not-a-run@here since-1\n# mine"
    write(path, mine)
    for index in range(4):
        add(path, index=index)
    add(path, index=4, expires=time.time() - 120)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    add(path, RUNS[1], index=5)
    add(path, RUNS[1], index=6, expires=time.time() - 2 * HOUR)  # in another zone: not expired
    add(path, RUNS[1], index=7, expires=time.time() - 30 * HOUR)
    monkeypatch.undo()
    says = {0: True, 1: False, 2: None, 3: True, 4: True}
    assert authorized_keys.sweep(str(path), lambda run, index: says[index]) == 3  # 1, 4 and 7
    assert {e.host_index for e in authorized_keys.entries(str(path))} == {0, 2, 3, 5, 6}
    assert authorized_keys.sweep(str(path), lambda run, index: says[index], grace=-2) == 1
    assert {e.host_index for e in authorized_keys.entries(str(path))} == {0, 3, 5, 6}
    for entry in authorized_keys.entries(str(path)):
        authorized_keys.revoke_key(str(path), entry.run, entry.host_index)
    assert path.read_bytes() == mine


def test_a_run_is_alive_while_its_agent_is(path: Path, tmp_path: Path) -> None:
    from shanty.runtime import platform, rundir

    assert authorized_keys.run_is_alive(RUNS[0], 0) is None
    own = platform.process(os.getpid())
    assert own is not None
    folder = tmp_path / ".shanty" / "work" / f"{RUNS[0]}.0"
    folder.mkdir(parents=True)
    for born, boot, expected in (
        (own.born, platform.boot_id(), True),
        ("0", platform.boot_id(), False),
        (own.born, "another boot", False),
    ):
        agents = {"node_agent": {"pid": own.pid, "born": born}, "boot": boot, "host": "x"}
        rundir.write_json(folder / "agents.json", agents)
        assert authorized_keys.run_is_alive(RUNS[0], 0) is expected


# ------------------------------------------------------------------ whatever the user does

lines = st.lists(st.sampled_from([b"# c", b"", b"ssh-rsa AAAA me\r", b"\xff\0\x80"]), max_size=3)
contents = st.one_of(st.none(), st.binary(max_size=40), lines.map(b"\n".join))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 1)),
        st.tuples(st.just("renew"), st.integers(0, 1)),
        st.tuples(st.just("revoke"), st.integers(0, 1)),
        st.tuples(st.just("append"), st.binary(min_size=1, max_size=10)),
        st.tuples(st.just("insert"), st.binary(max_size=6)),
        st.tuples(st.just("clear"), st.none()),
    ),
    max_size=10,
)


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(before=contents, script=steps)
def test_whatever_two_runs_and_the_user_do_the_users_bytes_come_back(
    path: Path, before: bytes | None, script: list[tuple[str, object]]
) -> None:
    users = before  # what the file would be without us
    cleared = False
    if before is not None:
        write(path, before)
    for step, value in script:
        if step == "add":
            add(path, RUNS[int(value)])  # type: ignore[call-overload]
        elif step == "renew":
            authorized_keys.renew_key(str(path), RUNS[int(value)], 0, time.time())  # type: ignore[call-overload]
        elif step == "revoke":
            authorized_keys.revoke_key(str(path), RUNS[int(value)], 0)  # type: ignore[call-overload]
        elif path.exists():
            ours, theirs = split(path.read_bytes())
            assert theirs == (users or b"")
            if step == "append":
                users = theirs + value  # type: ignore[operator]
                write(path, b"".join(ours) + users)
            elif step == "insert" and b"\n" not in value:  # type: ignore[operator]
                users = value + b"\n" + theirs  # type: ignore[operator]
                write(path, b"".join(ours[:1]) + value + b"\n" + b"".join(ours[1:]) + theirs)  # type: ignore[operator]
            elif step == "clear":
                users, cleared = b"", True
                write(path, b"".join(ours))
    for run in RUNS:
        authorized_keys.revoke_key(str(path), run, 0)
    if users:
        assert path.read_bytes() == users
    elif before is None and not cleared:
        assert not path.exists()
    assert not [p.name for p in path.parent.glob(".*")]
    shutil.rmtree(path.parent, ignore_errors=True)


def split(content: bytes) -> tuple[list[bytes], bytes]:
    all_lines = content.split(b"\n")
    ours = [line + b"\n" for line in all_lines if b" shanty:2" in line]
    return ours, b"\n".join(line for line in all_lines if b" shanty:2" not in line)


def test_many_at_once_lose_nothing(path: Path) -> None:
    write(path, b"# mine, without a newline")

    def work(number: int) -> None:
        for _ in range(5):
            add(path, index=number)
            authorized_keys.revoke_key(str(path), RUNS[0], number)
        add(path, index=number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(e.host_index for e in authorized_keys.entries(str(path))) == list(range(6))
    for number in range(6):
        authorized_keys.revoke_key(str(path), RUNS[0], number)
    assert path.read_bytes() == b"# mine, without a newline"


def test_an_edit_of_the_users_in_the_last_moment_survives(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, b"# old\n")
    real, edits = os.fsync, [b"# new\n", b"# newer"]

    def fsync(fd: int) -> None:
        real(fd)
        if edits:
            path.write_bytes(edits.pop(0))

    monkeypatch.setattr(os, "fsync", fsync)
    add(path)
    authorized_keys.revoke_key(str(path), RUNS[0], 0)
    assert path.read_bytes() == b"# newer"


def test_the_verbs(path: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o775)
    ask = {"run": RUNS[0], "index": 1, "key": KEY, "command": "true", "from": [], "seconds": 60}
    result = authorized_keys.authorize(ask, io.BytesIO(), lambda _: None)
    (finding,) = result["findings"]
    assert "StrictModes" in finding and str(tmp_path) in finding
    assert "from=" not in path.read_text()
    assert authorized_keys.sweep_keys({}, io.BytesIO(), lambda _: None) == {"swept": 0}
    authorized_keys.revoke({"run": RUNS[0], "index": 1}, io.BytesIO(), lambda _: None)
    assert not path.parent.exists()


@pytest.mark.parametrize("came", [False, True])
def test_a_client_that_goes_leaves_no_key_of_a_run_that_never_came(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, came: bool
) -> None:
    monkeypatch.setattr(authorized_keys, "_ARRIVAL", 0.2)
    monkeypatch.setattr(authorized_keys, "_authorized", set())
    monkeypatch.setattr(
        authorized_keys, "run_is_alive", lambda _run, _index: True if came else None
    )
    write(path, b"mine")
    ask = {"run": RUNS[0], "index": 1, "key": KEY, "command": "true", "from": [], "seconds": 60}
    authorized_keys.authorize(ask, io.BytesIO(), lambda _: None)
    add(path, RUNS[1], 1)  # another client's
    authorized_keys._leave_nothing()
    left = {entry.run for entry in authorized_keys.entries(str(path))}
    assert left == ({RUNS[0], RUNS[1]} if came else {RUNS[1]})
    assert path.read_bytes().endswith(b"\nmine")


# ------------------------------------------------------------------------- a real sshd


@pytest.fixture
def login(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Logs in to a real sshd on loopback that reads the keys in `tmp_path`/sshd/authorized_keys."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("OpenSSH is not installed here")
    server = Sshd(tmp_path / "sshd")
    (tmp_path / "known").write_text(server.known())
    (tmp_path / "config").write_text(server.block("a", tmp_path / "known"))

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        options = ["-F", str(tmp_path / "config"), "-o", "BatchMode=yes"]
        return subprocess.run(
            ["ssh", *options, *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    yield call
    server.stop()


def test_sshd_lets_the_key_in_for_its_one_command_only(
    tmp_path: Path, login: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    file = tmp_path / "sshd" / "authorized_keys"
    key = " ".join(file.read_text().split()[:2])
    file.unlink()

    def let_in(**changed: object) -> None:
        values = {"command": 'echo "$SSH_ORIGINAL_COMMAND" \'a"b\'', "sources": ["127.0.0.1"]}
        values |= {"expires": time.time() + 60, **changed}
        authorized_keys.authorize_key(str(file), RUNS[0], 0, key, **values)  # type: ignore[arg-type]

    def is_refused() -> bool:
        done = login("a", "uname")
        assert (done.stdout, done.returncode) in (("", 255), ('uname a"b\n', 0))
        return done.returncode == 255 and "Permission denied" in done.stderr

    assert is_refused()
    let_in()
    assert login("a", "uname").stdout == 'uname a"b\n'
    assert "PTY allocation request failed" in login("-tt", "a").stderr
    tunnel = login("-W", "127.0.0.1:22", "a")
    assert "prohibited" in tunnel.stderr
    assert tunnel.stdout == ""
    let_in(command="echo 'C:\\dir' \\\"x")
    assert login("a").stdout == 'C:\\dir "x\n'
    let_in(expires=time.time() - 5)
    assert is_refused()
    assert authorized_keys.renew_key(str(file), RUNS[0], 0, time.time() + 60)
    assert not is_refused()
    let_in(sources=["192.0.2.1"])
    assert is_refused()
    let_in(without=("restrict", "expiry-time"))
    assert not is_refused()
    authorized_keys.revoke_key(str(file), RUNS[0], 0)
    assert is_refused()


# -------------------------------------------------------------------------- host keys


def test_the_lead_is_told_the_host_keys_that_are_known_here(tmp_path: Path) -> None:
    one, two, three = (keys.make_pair(tmp_path).public for _ in range(3))
    user, every = tmp_path / "user", tmp_path / "global"
    user.write_text(f"node1,10.0.0.1 {one} comment\n[node1]:2222 {two}\n@revoked * {three}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(user)], check=True, capture_output=True)
    every.write_text(f"alias {three}\n@cert-authority * {three}\n")
    base = {"userknownhostsfile": f"{user} {tmp_path}/none", "globalknownhostsfile": str(every)}

    def lines(**resolved: str) -> list[str]:
        return keys.known_hosts_lines({**base, **resolved}, "shanty-3", ["ssh-x AAAA me"])

    revoked = f"@revoked shanty-3 {three}"
    assert lines(hostname="Node1", port="22") == [f"shanty-3 {one}", revoked]
    assert lines(hostname="node1", port="2222") == [f"shanty-3 {two}", revoked]
    known_by_alias = lines(hostname="x", port="7", hostkeyalias="alias")
    assert known_by_alias == [revoked, f"shanty-3 {three}"]
    assert lines(hostname="unknown", port="22") == [revoked, "shanty-3 ssh-x AAAA"]
    unchecked = lines(hostname="node1", port="2222", stricthostkeychecking="false")
    assert unchecked == [revoked, "shanty-3 ssh-x AAAA"]


def test_a_pair_leaves_nothing_and_keeps_to_itself(tmp_path: Path) -> None:
    pair = keys.make_pair(tmp_path)
    assert pair.private.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    assert pair.public.startswith("ssh-ed25519 AAAA") and len(pair.public.split()) == 2
    assert "PRIVATE" not in repr(pair) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("banner", "lacking"),
    [
        ("SSH-2.0-OpenSSH_9.2p1 Debian-2", ()),
        ("SSH-2.0-OpenSSH_10.0", ()),
        ("SSH-2.0-OpenSSH_7.4", ("expiry-time",)),
        ("SSH-2.0-OpenSSH_6.6.1p1", ("restrict", "expiry-time")),
        ("SSH-2.0-dropbear_2022.83", ("restrict", "from", "expiry-time")),
    ],
)
def test_what_an_sshd_lacks_is_told_by_its_banner(banner: str, lacking: tuple[str, ...]) -> None:
    assert keys.options_lacking(banner) == lacking
