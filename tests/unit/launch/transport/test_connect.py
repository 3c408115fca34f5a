"""Contact with hosts by real ssh and real sshds on loopback."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shanty.launch.transport import openssh
from shanty.launch.transport import rpc_client as client_module
from shanty.launch.transport.connect import attempt, connect, is_here
from shanty.launch.transport.openssh import OpenSSH
from shanty.launch.transport.refusal import Refusal
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import PrepareError, StorageError
from shanty.runtime.site import Host
from sshd import SSHD, Sshd, free_port, make_key

pytestmark = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None, reason="there is no OpenSSH on this machine"
)


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder for the sockets of shared connections; they are ended with the test."""
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        yield Path(folder)
        for path in Path(folder).glob("shanty/*"):
            subprocess.run(
                ["ssh", "-o", f"ControlPath={path}", "-O", "exit", "any"], capture_output=True
            )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    """Makes servers; they are stopped with the test."""
    servers: list[Sshd] = []

    def make(name: str = "one", **more: object) -> Sshd:
        servers.append(Sshd(tmp_path / name, **more))  # type: ignore[arg-type]
        return servers[-1]

    yield make
    for one in servers:
        one.stop()


def config(tmp_path: Path, *blocks: str) -> str:
    path = tmp_path / "ssh_config"
    path.write_text("\n".join(blocks))
    return str(path)


def known(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "known_hosts"
    path.write_text("".join(lines))
    return path


Only = Callable[..., tuple[Sshd, Host]]


@pytest.fixture
def only(tmp_path: Path, server: Callable[..., Sshd]) -> Only:
    """A server, and the host "a" that leads to it; `block` is added to its ssh configuration."""

    def make(block: str = "", **more: object) -> tuple[Sshd, Host]:
        one = server(**more)
        keys = known(tmp_path, one.known())
        return one, Host("a", config=config(tmp_path, one.block("a", keys, more=block)))

    return make


def close(clients: list[RpcClient]) -> None:
    for client in clients:
        client.close()


def test_a_second_contact_is_one_login_and_sends_little(only: Only) -> None:
    one, host = only()
    said: list[str] = []
    (first,) = connect([host], terminal=False, progress=lambda _host, text: said.append(text))
    first.close()
    assert any("sends" in text for text in said)
    (second,) = connect([host], terminal=False)
    assert second.bytes_sent < 3072
    assert second.home == str(one.home)
    facts = second.ask("survey").values
    assert facts["ssh"]["server_port"] == one.port
    assert facts["ssh"]["server"] == facts["ssh"]["client"] == "127.0.0.1"
    assert one.logins() == 1  # over one shared connection
    second.close()


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "ksh", "fish", "tcsh", "csh"])
def test_any_login_shell_will_do(only: Only, shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"there is no {shell} here")
    _, host = only(more=f'ForceCommand {path} -c "$SSH_ORIGINAL_COMMAND"')
    (client,) = connect([host], terminal=False)
    assert client.ask("survey").values["uid"] == os.getuid()
    client.close()


def test_what_a_login_prints_is_passed_over(only: Only) -> None:
    noise = 'printf "Welcome\\nto {}"; printf mess >&2; sh -c "$SSH_ORIGINAL_COMMAND"'
    _, host = only(more=f"ForceCommand {noise}")
    (client,) = connect([host], terminal=False)
    assert client.python
    client.close()


def test_hosts_behind_a_jump_host_share_one_connection_to_it(
    tmp_path: Path, server: Callable[..., Sshd]
) -> None:
    jump, inner = server("jump"), server("inner", addresses=9)  # more than are dialled at once
    keys = known(tmp_path, jump.known(), inner.known())
    blocks = [jump.block("jump", keys)]
    for number, address in enumerate(inner.addresses):
        blocks.append(inner.block(f"n{number}", keys, address, "  ProxyJump jump\n"))
    path = config(tmp_path, *blocks)
    hosts = [Host(f"n{number}", config=path) for number in range(len(inner.addresses))]
    clients = connect(hosts, terminal=False)
    assert [client.host for client in clients] == hosts
    assert [p.ask("survey").values["ssh"]["server"] for p in clients] == inner.addresses
    assert jump.logins() == 1
    assert inner.logins() == len(hosts)
    close(clients)


def test_jump_hosts_in_a_chain(tmp_path: Path, server: Callable[..., Sshd]) -> None:
    servers = [server(name) for name in ("one", "two", "three")]
    keys = known(tmp_path, *(one.known() for one in servers))
    path = config(
        tmp_path,
        servers[0].block("one", keys),
        servers[1].block("two", keys),
        servers[2].block("three", keys, more="  ProxyJump one,two\n"),
    )
    (client,) = connect([Host("three", config=path)], terminal=False)
    assert [one.logins() for one in servers] == [1, 1, 1]
    client.close()
    for hop in ("two", "three"):
        OpenSSH(Host(hop, config=path)).close()


def test_a_jump_host_that_refuses_is_named(tmp_path: Path, server: Callable[..., Sshd]) -> None:
    jump, inner = server("jump"), server("inner", addresses=3)
    jump.authorized.write_text("")
    keys = known(tmp_path, jump.known(), inner.known())
    blocks = [
        inner.block(f"n{number}", keys, address, "  ProxyJump jump\n")
        for number, address in enumerate(inner.addresses)
    ]
    path = config(tmp_path, jump.block("jump", keys), *blocks)
    hosts = [Host(f"n{number}", config=path) for number in range(3)]
    with pytest.raises(PrepareError) as caught:
        connect(hosts, terminal=False)
    assert caught.value.why.count("its jump host jump: it does not accept your keys") == 3
    assert jump.log.read_text().count("Connection closed by authenticating user") == 1


@pytest.mark.parametrize(
    ("forwarding", "code"),
    [("yes", "ssh-refused"), ("no", "jump-refused")],
    ids=["away", "forbidden"],
)
def test_why_a_jump_host_gets_nowhere(
    tmp_path: Path, server: Callable[..., Sshd], forwarding: str, code: str
) -> None:
    jump = server("jump", more=f"AllowTcpForwarding {forwarding}")
    path = config(
        tmp_path,
        jump.block("jump", known(tmp_path, jump.known())),
        f"Host a\n  HostName 127.0.0.1\n  Port {free_port()}\n  ProxyJump jump\n",
    )
    assert one_refusal(Host("a", config=path)).code == code


def test_what_a_proxy_command_complains_of_is_shown(tmp_path: Path) -> None:
    path = config(tmp_path, "Host a\n  ProxyCommand sh -c 'echo the host sleeps >&2'\n")
    refused = one_refusal(Host("a", config=path))
    assert refused.code == "proxy-failed"
    assert "the host sleeps" in refused.detail


def one_refusal(host: Host) -> Refusal:
    (outcome,) = attempt([host], terminal=False)
    assert isinstance(outcome, Refusal)
    return outcome


def test_causes(tmp_path: Path, server: Callable[..., Sshd]) -> None:
    one = server("one", more="KbdInteractiveAuthentication no")
    other = server("other", more="PasswordAuthentication yes")
    keys = known(tmp_path, one.known(), other.known())
    open_key = tmp_path / "open"
    other.authorized.write_text(make_key(open_key))
    open_key.chmod(0o644)
    changed = tmp_path / "changed"
    changed.write_text(one.known().replace(one.host_key.split()[1], other.host_key.split()[1]))
    none = tmp_path / "none"
    none.write_text("")
    strict = "  StrictHostKeyChecking yes\n"
    path = config(
        tmp_path,
        one.block("changed", changed),
        one.block("unknown", none),
        one.block("strict", none, more=strict),
        one.block("loop", keys, more="  ProxyJump loop2\n"),
        one.block("loop2", keys, more="  ProxyJump loop\n"),
        f"Host refused\n  HostName 127.0.0.1\n  Port {free_port()}\n",
        "Host nowhere\n  HostName no-such-host.invalid\n",
        f"Host keyless\n  HostName 127.0.0.1\n  Port {one.port}\n  UserKnownHostsFile {keys}\n"
        f"  IdentitiesOnly yes\n  IdentityFile {other.folder}/id\n",
        other.block("password", keys),
        other.block("open", keys).replace(f"{other.folder}/id", str(open_key)),
    )
    names = ("changed", "unknown", "strict", "loop", "refused", "nowhere", "keyless")
    found = {
        name: one_refusal(Host(name, config=path)).code for name in (*names, "password", "open")
    }
    assert found == {
        "changed": "host-key-changed",
        "unknown": "host-key-unknown",
        "strict": "host-key-unknown",
        "loop": "ssh-configuration",
        "refused": "ssh-refused",
        "nowhere": "name-unknown",
        "keyless": "key-refused",
        "password": "password-needed",
        "open": "key-open",
    }
    assert one_refusal(Host("open", config=path)).command == f"chmod 600 {open_key}"
    forget = one_refusal(Host("changed", config=path)).command
    assert forget == f"ssh-keygen -f {changed} -R '[127.0.0.1]:{one.port}'"


def test_all_that_failed_is_in_one_error(tmp_path: Path, server: Callable[..., Sshd]) -> None:
    one = server()
    path = config(
        tmp_path,
        one.block("good", known(tmp_path, one.known())),
        f"Host refused\n  HostName 127.0.0.1\n  Port {free_port()}\n",
        "Host workres\n  HostName no-such-host.invalid\n",
    )
    hosts = [Host(name, config=path) for name in ("good", "refused", "workres")]
    with pytest.raises(PrepareError) as caught:
        connect(hosts, terminal=False, groups=["workers"])
    assert caught.value.what == "2 of 3 hosts cannot be used"
    assert "refused  nothing listens on its ssh port" in caught.value.why
    assert "did you mean the group workers?" in caught.value.fix


def test_a_host_without_a_python_says_so(
    tmp_path: Path, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\necho 3.6.8\n")
    old.chmod(0o755)
    monkeypatch.setattr(
        client_module,
        "_SCRIPT",
        client_module._SCRIPT.replace(client_module._PLACES, f"{old} /no/python"),
    )
    _, host = only()
    refused = one_refusal(host)
    assert refused.code == "python-old"
    assert f"{old} is 3.6.8" in refused.what


def test_a_home_that_cannot_be_written(only: Only) -> None:
    one, host = only()
    one.home.write_text("a file in the way")
    refused = one_refusal(host)
    assert refused.code == "home-readonly"
    assert str(one.home) in refused.what


def test_a_login_that_runs_no_commands(only: Only) -> None:
    _, host = only(more="ForceCommand echo This account is closed. >&2; exit 1")
    refused = one_refusal(host)
    assert refused.code == "shell-broken"
    assert "closed" in refused.detail


def test_a_connection_that_dies_is_an_error_with_the_hosts_name(only: Only) -> None:
    _, host = only()
    (client,) = connect([host], terminal=False)
    client.connection.close()  # hangs up
    with pytest.raises(PrepareError, match="the connection to a is lost"):
        client.ask("survey")
    (again,) = connect([host], terminal=False)
    assert again.ask("survey").values["uid"] == os.getuid()
    again.close()


def test_a_dead_socket_of_a_shared_connection_is_no_obstacle(only: Only, runtime: Path) -> None:
    _, host = only()
    folder = openssh.socket_folder(os.environ)
    assert folder == runtime / "shanty"
    import socket

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / openssh.route_to(host).key))
    (client,) = connect([host], terminal=False)
    client.close()


def test_the_users_own_sharing_is_used(only: Only) -> None:
    own = Path(os.environ["XDG_RUNTIME_DIR"]) / "own"
    _, host = only(f"  ControlMaster auto\n  ControlPath {own}\n")
    (client,) = connect([host], terminal=False)
    assert own.exists()
    client.close()
    OpenSSH(host).close()
    assert own.exists()  # it is the user's
    argv = ["ssh", "-F", host.config, "-O", "exit", "a"]
    subprocess.run(argv, capture_output=True, check=True)


def test_this_machine_by_its_names() -> None:
    assert is_here(Host("localhost"))
    assert is_here(Host(os.uname().nodename))
    assert not is_here(Host("localhost", port=2222))
    assert not is_here(Host("localhost", config="x"))


def test_a_folder_of_somebody_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(openssh, "scratch_root", lambda: str(tmp_path / "shanty"))
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / "shanty").symlink_to(target)
    with pytest.raises(StorageError):
        openssh.socket_folder(os.environ)


def await_that(holds: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


class Terminal:
    """A program with a terminal of its own."""

    def __init__(self, *argv: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests in the background ignore it
            os.execv(argv[0], argv)
        self.seen = ""

    def expect(self, text: str, seconds: float = 20) -> None:
        until = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, until - time.monotonic()))
            assert ready, self.seen
            try:
                self.seen += os.read(self._fd, 4096).decode(errors="replace")
            except OSError:
                raise AssertionError(self.seen) from None

    def answer(self, text: str) -> None:
        os.write(self._fd, text.encode() + b"\n")
        self.seen = ""

    def end(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status)


TALK = """
import sys
from shanty.launch.transport import rpc_client
from shanty.launch.transport.connect import connect
from shanty.runtime.site import Host
clients = connect([Host(n, config=sys.argv[1]) for n in sys.argv[2:]], terminal=True)
print("reached", *(p.ask("survey").values["ssh"]["server"] for p in clients), flush=True)
for client in clients:
    client.close()
"""


def test_a_person_is_asked_once_by_ssh_itself(tmp_path: Path, server: Callable[..., Sshd]) -> None:
    one = server(addresses=2)
    secret = tmp_path / "secret"
    one.authorized.write_text(make_key(secret, "open sesame"))
    (one.folder / "id").unlink()
    keys = tmp_path / "known_hosts"  # empty: each key has to be confirmed
    more = f"  IdentityFile {secret}\n"
    path = config(
        tmp_path,
        one.block("a", keys, "127.0.0.1", more),
        one.block("b", keys, "127.0.0.2", more),
    )
    terminal = Terminal(sys.executable, "-c", TALK, path, "a", "b")
    for _host in "ab":
        terminal.expect("(yes/no")
        terminal.answer("yes")
        terminal.expect("passphrase")
        terminal.answer("open sesame")
    terminal.expect("reached 127.0.0.1 127.0.0.2")
    assert terminal.end() == 0
    again = Terminal(sys.executable, "-c", TALK, path, "a", "b")
    again.expect("reached 127.0.0.1 127.0.0.2")
    assert again.end() == 0
    assert one.logins() == 2


def test_a_person_is_asked_at_the_jump_host_too(
    tmp_path: Path, server: Callable[..., Sshd]
) -> None:
    jump, inner = server("jump"), server("inner", addresses=2)
    secret = tmp_path / "secret"
    jump.authorized.write_text(make_key(secret, "open sesame"))
    (jump.folder / "id").unlink()
    keys = known(tmp_path, inner.known("inner1"))
    through = "  ProxyJump jump\n"
    path = config(
        tmp_path,
        jump.block("jump", keys, more=f"  IdentityFile {secret}\n"),
        inner.block("a", keys, "127.0.0.1", through + "  HostKeyAlias inner1\n"),
        inner.block("b", keys, "127.0.0.2", through + "  HostKeyAlias inner2\n"),
    )
    terminal = Terminal(sys.executable, "-c", TALK, path, "a", "b")
    terminal.expect("(yes/no")  # the jump host's key
    terminal.answer("yes")
    terminal.expect("passphrase")
    terminal.answer("open sesame")
    terminal.expect("(yes/no")  # b's key; a asks nothing
    assert "inner2" in terminal.seen
    terminal.answer("yes")
    terminal.expect("reached 127.0.0.1 127.0.0.2")
    assert terminal.end() == 0
    assert jump.logins() == 1


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]], ids=["one", "several"])
def test_ctrl_c_while_hosts_are_silent_ends_it_at_once(
    tmp_path: Path, server: Callable[..., Sshd], names: list[str]
) -> None:
    here = tmp_path / "here"
    one = server(addresses=3, more=f"ForceCommand touch {here}; sleep 60")
    keys = known(tmp_path, one.known())
    blocks = [
        one.block(name, keys, address) for name, address in zip(names, one.addresses, strict=False)
    ]
    terminal = Terminal(sys.executable, "-c", TALK, config(tmp_path, *blocks), *names)
    await_that(here.exists)
    began = time.monotonic()
    terminal.answer("\x03")
    assert terminal.end() in (-signal.SIGINT, 1, 130)
    assert time.monotonic() - began < 5


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """ssh notices within 3 s that a host is silent."""
    options = [each.replace("AliveInterval=5", "AliveInterval=1") for each in openssh._ALWAYS]
    monkeypatch.setattr(openssh, "_ALWAYS", tuple(options))


@pytest.mark.usefixtures("impatient")
def test_a_shared_connection_that_is_dead_is_made_again(only: Only) -> None:
    one, host = only()
    (client,) = connect([host], terminal=False)
    client.close()
    one.freeze_sessions()
    (client,) = connect([host], terminal=False)
    assert client.ask("survey").values["uid"] == os.getuid()
    assert one.logins() == 2
    client.close()


@pytest.mark.usefixtures("impatient")
def test_a_host_that_freezes_is_noticed(only: Only) -> None:
    one, host = only()
    (client,) = connect([host], terminal=False)
    one.freeze_sessions()
    began = time.monotonic()
    with pytest.raises(PrepareError, match="the connection to a is lost"):
        client.ask("survey")
    assert time.monotonic() - began < 10


def test_ctrl_c_while_ssh_asks_ends_it_all(tmp_path: Path, server: Callable[..., Sshd]) -> None:
    one = server()
    path = config(tmp_path, one.block("a", tmp_path / "known_hosts"))
    terminal = Terminal(sys.executable, "-c", TALK, path, "a")
    terminal.expect("(yes/no")
    terminal.answer("\x03")
    assert terminal.end() in (-signal.SIGINT, 1, 130)
    assert one.logins() == 0
