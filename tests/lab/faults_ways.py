"""Faults on the way to a host: its name, its sshd, keys, the login, Python."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from faults_case import Fault, Planter, table
from faults_world import OWN, World

from runs import wait_for

WAYS: list[Fault] = []
fault = table(WAYS)

# Every Python that a host may be found to have.
PYTHONS = f"{OWN}/bin/python3 /usr/bin/python3* /usr/local/bin/python3* /opt/*/bin/python3*"
# Answers as Python 3.6 does: it knows no other version's words.
OLD_PYTHON = """\
#!/bin/sh
exec {real} -I -S -c 'import sys
sys.version_info, sys.version = (3, 6, 9, "final", 0), "3.6.9 (default)"
given = sys.argv[1:]
exec(given[given.index("-c") + 1])' "$@"
"""
HOLD = """
import socket, sys
held = socket.create_connection(("{address}", 22))
held.recv(1)
print("held", flush=True)
sys.stdin.read()
"""
WEB_SERVER = """
import http.server, sys
server = http.server.HTTPServer(("", 22), http.server.SimpleHTTPRequestHandler)
print("serves", flush=True)
server.serve_forever()
"""


@fault("its cable is pulled", "host-unreachable", "lab3", drops=True, runs=True)
def cut(world: World) -> Iterator[None]:
    world.lab.do("cut", "lab3")
    try:
        yield
    finally:
        world.lab.do("join", "lab3")


@fault(
    "its name resolves to an address that no machine has", "host-unreachable", "lab3", drops=True
)
def wrong_address(world: World) -> Iterator[None]:
    right = world.address("lab3")
    wrong = right.rpartition(".")[0] + ".99"
    with world.way_to("lab3", lambda text: text.replace(f"{right} 22", f"{wrong} 22")):
        yield from _name_on_lead(world, "lab3", wrong)


def _name_on_lead(world: World, name: str, address: str) -> Iterator[None]:
    """For a bare mpirun: what the name means on the host where it runs."""
    if not world.bare:
        yield
        return
    right = world.address(name)
    hosts = world.own("lab1", "etc/hosts")
    with world.text(hosts, lambda text: text.replace(f"{right} {name}", f"{address} {name}")):
        yield


@fault("it is frozen: every process is stopped", "host-silent", "lab3", drops=True, runs=True)
def frozen(world: World) -> Iterator[None]:
    world.lab.do("freeze", "lab3")
    try:
        yield
    finally:
        world.lab.do("thaw", "lab3")


@fault("a misspelled name", "name-unknown", "lab3..lan", on="lab1,lab2,lab3..lan")
def misspelt(world: World) -> Iterator[None]:
    yield


@fault("sshd listens on another port", "ssh-refused", "lab2", runs=True)
def another_port(world: World) -> Iterator[None]:
    with world.sshd_elsewhere("lab2"):
        yield


@fault("a firewall drops port 22", "ssh-filtered", "lab2", drops=True)
def port_22_dropped(world: World) -> Iterator[None]:
    with world.firewall("lab2", "tcp dport 22 drop"):
        yield


@fault("sshd already has as many unfinished logins as MaxStartups allows", "ssh-dropped", "lab2")
def max_startups(world: World) -> Iterator[None]:
    program = HOLD.format(address=world.address("lab2"))
    with (
        world.sshd("lab2", change=[("MaxStartups 200", "MaxStartups 1")]),
        world.held("lab1", program),
    ):
        yield


@fault("a web server has port 22", "not-ssh", "lab2")
def web_server(world: World) -> Iterator[None]:
    with world.sshd_elsewhere("lab2"), world.held("lab2", WEB_SERVER):
        yield


@fault("it offers only old algorithms", "ssh-mismatch", "lab2")
def old_algorithms(world: World) -> Iterator[None]:
    with world.sshd("lab2", "KexAlgorithms diffie-hellman-group1-sha1"):
        yield


@fault("an invalid word in ~/.ssh/config", "ssh-configuration", "", bare="does not use it")
def wrong_word(world: World) -> Iterator[None]:
    with world.way_to("lab2", lambda text: text.replace("User ", "Usr ", 1)):
        yield


@fault("its host key is not known", "host-key-unknown", "lab2")
def unknown_key(world: World) -> Iterator[None]:
    yield from _known_hosts(world, lambda line: "")


@fault("its host key has changed", "host-key-changed", "lab2")
def changed_key(world: World) -> Iterator[None]:
    other = world.own("lab3", "host_key.pub").read_text().split()[1]
    yield from _known_hosts(world, lambda line: f"{line.split()[0]} ssh-ed25519 {other}\n")


def _known_hosts(world: World, change) -> Iterator[None]:  # type: ignore[no-untyped-def]
    from contextlib import ExitStack

    def changed(text: str) -> str:
        lines = text.splitlines(keepends=True)
        return "".join(change(line) if line.startswith("lab2,") else line for line in lines)

    with ExitStack() as stack:
        for path in world.known_hosts:
            stack.enter_context(world.text(path, changed))
        yield


@fault("the key is not in its authorized_keys", "key-refused", "lab2", runs=True)
def key_refused(world: World) -> Iterator[None]:
    with world.text(world.lab.home("lab2") / ".ssh/authorized_keys", lambda _text: ""):
        yield


@fault("others can read the private key", "key-open", "")
def open_key(world: World) -> Iterator[None]:
    from contextlib import ExitStack

    with ExitStack() as stack:
        for path in world.private_keys:
            stack.enter_context(world.mode(path, 0o644))
        yield


@fault("it wants a password", "password-needed", "lab2")
def password(world: World) -> Iterator[None]:
    with world.sshd("lab2", "PubkeyAuthentication no", "PasswordAuthentication yes"):
        yield


@fault("a jump host forbids forwarding", "jump-refused", "lab2", bare="goes directly")
def jump_host(world: World) -> Iterator[None]:
    def through(text: str) -> str:
        lines = text.splitlines(keepends=True)
        return "".join("    ProxyJump lab1\n" if "ProxyCommand" in line else line for line in lines)

    with world.sshd("lab1", "AllowTcpForwarding no"), world.way_to("lab2", through):
        yield


@fault("the ProxyCommand ends at once", "proxy-failed", "lab2",
       bare="goes directly")  # fmt: skip
def broken_proxy(world: World) -> Iterator[None]:
    def through(text: str) -> str:
        lines = text.splitlines(keepends=True)
        return "".join(
            "    ProxyCommand false\n" if "ProxyCommand" in line else line for line in lines
        )

    with world.way_to("lab2", through):
        yield


@fault("~/.bashrc prints a greeting", "shell-noise", "lab2", level="warning")
def greeting(world: World) -> Iterator[None]:
    path = world.lab.home("lab2") / ".bashrc"
    with world.file(path, "echo Welcome, and mind the step\n"):
        yield


@fault("~/.bashrc takes six seconds", "workaround", "lab2", level="note", drops=True, runs=True)
def slow_login(world: World) -> Iterator[None]:
    with world.file(world.lab.home("lab2") / ".bashrc", "sleep 6\n"):
        yield


@fault("the first python3 on its PATH hangs", "workaround", "lab2", level="note", drops=True,
       runs=True, bare="uses the Python that it is given")  # fmt: skip
def hanging_python(world: World) -> Iterator[None]:
    with (
        world.file(world.own("lab2", "hangs/python3"), "#!/bin/sh\nsleep 1000\n", 0o755),
        world.login_through("lab2", f"PATH={OWN}/hangs:$PATH"),
    ):
        yield
        assert world.console("lab2", "pgrep -f '[s]leep 1000' || echo none") == "none\n"


@fault("the shared connection of ~/.ssh/config hangs", "workaround", "lab2", level="note",
       runs=True, bare="makes its own")  # fmt: skip
def silent_master(world: World) -> Iterator[None]:
    path = world.runtime / "master"
    master = socket.socket(socket.AF_UNIX)
    master.bind(str(path))
    master.listen()
    sharing = f"    ControlMaster auto\n    ControlPath {path}\n    User "
    with master, world.way_to("lab2", lambda text: text.replace("    User ", sharing, 1)):
        yield
    path.unlink()


@fault("the login shell is nologin", "shell-broken", "lab2")
def nologin(world: World) -> Iterator[None]:
    with world.login_shell("lab2", "/usr/sbin/nologin"):
        yield


@fault("it has no Python", "python-missing", "lab2", runs=True)
def no_python(world: World) -> Iterator[None]:
    with world.masked("lab2", PYTHONS):
        yield


@fault("its only Python is 3.6", "python-old", "lab2", bare="not tried: there is none here")
def old_python(world: World) -> Iterator[None]:
    real = world.console("lab2", "readlink -f $(command -v python3)").strip()
    keep = f"touch /run/python && mount --bind {real} /run/python"
    wrapper = world.own("lab2", "python-3.6")
    with (
        world.console_pair("lab2", keep, "umount /run/python"),
        world.file(wrapper, OLD_PYTHON.format(real="/run/python"), 0o755),
        world.masked("lab2", PYTHONS, f"{OWN}/python-3.6"),
    ):
        yield


@fault("it is a 32-bit machine", "arch-differs", "lab2")
def other_machine(world: World) -> Iterator[None]:
    with world.login_through("lab2", ":", "setarch i686 /bin/bash"):
        yield


def _here(*words: str | Path, **environ: str) -> str:
    """Run a command on the machine at which shanty is called; its output."""
    return subprocess.run(
        list(map(str, words)), env={**os.environ, **environ}, capture_output=True, text=True,
        check=True, timeout=30,
    ).stdout  # fmt: skip


def _new_key(path: Path, passphrase: str = "") -> Path:
    _here("ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", path)
    return path


def _with_key(path: Path, *lines: str) -> Callable[[str], str]:
    """The part of ssh's configuration about a host, with another key and further lines."""

    def changed(text: str) -> str:
        kept = [line for line in text.splitlines() if "IdentityFile" not in line]
        return "\n".join([*kept, f'    IdentityFile "{path}"', *(f"    {e}" for e in lines), ""])

    return changed


@fault("the agent offers more keys than its sshd lets anybody try", "keys-too-many", "lab2",
       bare="has no agent", runs=True)  # fmt: skip
def many_keys(world: World) -> Iterator[None]:
    socket_path = str(world.runtime / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket_path], stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: Path(socket_path).exists(), 10)
        for number in range(4):
            key = _new_key(world.runtime / f"agent-{number}")
            _here("ssh-add", "-q", key, SSH_AUTH_SOCK=socket_path)

        def changed(text: str) -> str:
            text = text.replace("IdentityAgent none", f"IdentityAgent {socket_path}")
            return text.replace("IdentitiesOnly yes", "IdentitiesOnly no")

        with world.sshd("lab2", "MaxAuthTries 3"), world.way_to("lab2", changed):
            yield
    finally:
        agent.terminate()
        agent.wait(10)


@fault("the certificate of the key has expired", "certificate-expired", "",
       bare="has no certificate", runs=True)  # fmt: skip
def expired_certificate(world: World) -> Iterator[None]:
    authority, key = (_new_key(world.runtime / name) for name in ("authority", "certified"))
    valid = ("-V", "20200101000000:20210101000000")
    _here("ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", "root", *valid, f"{key}.pub")
    with world.way_to("lab2", _with_key(key)):
        yield


@fault("the key has a passphrase, and no agent has it", "key-locked", "",
       bare="has another key", runs=True)  # fmt: skip
def locked(world: World) -> Iterator[None]:
    key = _new_key(world.runtime / "locked", "secret")
    with world.way_to("lab2", _with_key(key)):
        yield


@fault("a `Match exec` of ~/.ssh/config hangs", "ssh-configuration", "", bare="does not use it",
       drops=True, runs=True)  # fmt: skip
def hanging_match(world: World) -> Iterator[None]:
    line = 'Match originalhost lab2 exec "sleep 1111"\n    Port 22\nHost lab2 '
    with world.text(world.lab.config, lambda text: text.replace("Host lab2 ", line)):
        yield
        assert "sleep 1111" not in _here("ps", "-eo", "args")


def _login_file(name: str, text: str) -> Planter:
    """A file of the login of lab2; nothing of the logins is left there in the end."""

    def plant(world: World) -> Iterator[None]:
        with world.file(world.lab.home("lab2") / name, f"{text}\n"):
            yield
            if world.bare:  # mpirun leaves them
                world.console("lab2", "pkill -f '[s]leep 12' || true")
                return
            commands = world.console("lab2", "ps -eo args").splitlines()
            hang = [one for one in commands if "sleep 12" in one or "shanty-tries" in one]
            assert not [one for one in hang if "ps -eo" not in one], commands

    plant.__name__ = f"{name}-{text.split()[0]}".strip(".").replace("/", "-")
    return plant


for _name, _title, _text in (
    (".bashrc", "~/.bashrc sleeps", "sleep 1234"),
    (".bashrc", "~/.bashrc reads a line", "read line"),
    (".bashrc", "~/.bashrc reads all of the input", "cat >/dev/null"),
    (".bashrc", "~/.bashrc closes the standard output", "exec >&-"),
    (".bashrc", "~/.bashrc redirects the output", ": ; exec >/dev/null"),
    (".ssh/rc", "~/.ssh/rc hangs", "sleep 1235"),
    (".bashrc", "~/.bashrc ends the shell", "exit 3"),
):
    fault(_title, "shell-broken", "lab2", drops=True, runs=True)(_login_file(_name, _text))


@fault("its sshd opens no sessions (MaxSessions 0)", "shell-broken", "lab2")
def no_sessions(world: World) -> Iterator[None]:
    with world.sshd("lab2", "MaxSessions 0"):
        yield


@fault("each of two hosts is the other one's jump host", "ssh-configuration", "",
       bare="goes directly")  # fmt: skip
def jump_circle(world: World) -> Iterator[None]:
    def through(other: str) -> Callable[[str], str]:
        return lambda text: text.replace("    User ", f"    ProxyJump {other}\n    User ", 1)

    with world.way_to("lab2", through("lab3")), world.way_to("lab3", through("lab2")):
        yield


@fault("its password has to be changed", "account-closed", "lab2", runs=True)
def expired_password(world: World) -> Iterator[None]:
    text = "WARNING: Your password has expired.\nPassword change required but no TTY available."
    with world.login_through("lab2", f"echo '{text}' >&2; exit 1"):
        yield
