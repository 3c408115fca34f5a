"""The first process of a pod: starts commands for who has the key, and for nobody else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shanty.runtime.kubernetes import dial, pod

KEY = b"0123456789abcdef"


_open: list[socket.socket] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while _open:
        _open.pop().close()


@pytest.fixture
def server() -> Iterator[int]:
    found = pod.Server(KEY, 0)
    found.start()
    yield found._listener.getsockname()[1]
    found._listener.shutdown(socket.SHUT_RDWR)
    found._listener.close()


def connection(port: int) -> socket.socket:
    _open.append(socket.create_connection(("127.0.0.1", port), 5))
    return _open[-1]


def connected(port: int, key: bytes = KEY) -> pod.Line:
    return pod.call(connection(port), key)


def said(line: pod.Line) -> tuple[bytes, bytes, int]:
    out, err = b"", b""
    while (frame := line.receive()) is not None:
        kind, data = frame
        if kind == pod.END:
            return out, err, int(data)
        out, err = (out + data, err) if kind == pod.OUT else (out, err + data)
    raise AssertionError("no end")


def run(port: int, *argv: str, stdin: bytes = b"") -> tuple[bytes, bytes, int]:
    import json

    line = connected(port)
    line.send(pod.OPEN, json.dumps({"argv": argv}).encode())
    if stdin:
        line.send(pod.DATA, stdin)
    line.send(pod.DATA)
    return said(line)


def test_a_command(server: int) -> None:
    assert run(server, "sh", "-c", "cat; echo no >&2; exit 3", stdin=b"yes") == (b"yes", b"no\n", 3)
    assert run(server, "sh", "-c", "kill -9 $$")[2] == 137
    out, err, code = run(server, "/no/such/program")
    assert code == 127 and b"No such file" in err and not out


def test_much_goes_through(server: int) -> None:
    data = os.urandom(3 << 20)
    line = connected(server)
    line.send(pod.OPEN, b'{"argv": ["cat"]}')

    def feed() -> None:
        for at in range(0, len(data), 1 << 16):
            line.send(pod.DATA, data[at : at + (1 << 16)])
        line.send(pod.DATA)

    threading.Thread(target=feed).start()
    assert said(line)[0] == data


def test_who_lacks_the_key_starts_nothing(server: int, tmp_path: Path) -> None:
    with pytest.raises(pod.WrongKeyError):
        connected(server, b"another")
    link = connection(server)
    link.sendall(b"x" * 64)  # no proof at all
    link.shutdown(socket.SHUT_WR)
    while link.recv(1 << 10):
        pass
    assert run(server, "echo", "well") == (b"well\n", b"", 0)  # it serves others


def test_a_frame_that_is_changed_is_refused() -> None:
    ours, theirs = socket.socketpair()
    _open.extend((ours, theirs))
    answered: list[pod.Line] = []
    thread = threading.Thread(target=lambda: answered.append(pod.answer_call(theirs, KEY)))
    thread.start()
    line = pod.call(ours, KEY)
    thread.join()
    line.send(pod.DATA, b"first")
    assert answered[0].receive() == (pod.DATA, b"first")
    other, copied = socket.socketpair()
    _open.extend((other, copied))
    pod.Line(other, b"wrong", b"in", b"out").send(pod.DATA, b"forged")
    ours.sendall(copied.recv(1 << 10))
    with pytest.raises(pod.WrongKeyError):
        answered[0].receive()


def test_a_wrong_server_is_told(tmp_path: Path) -> None:
    """Something else listens at the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    _open.append(listener)

    def serve() -> None:
        link, _ = listener.accept()
        link.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" * 4)
        link.close()

    threading.Thread(target=serve).start()
    with pytest.raises(pod.WrongKeyError, match="not a pod of the run"):
        connected(listener.getsockname()[1])


def test_dial(server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the controller uses it: a program with three streams and an exit code."""
    key = tmp_path / "key"
    key.write_bytes(KEY + b"\n")
    program = (
        "import sys; from shanty.runtime.kubernetes import dial, pod; "
        f"pod.KEY = {str(key)!r}; sys.exit(dial.main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", program, "127.0.0.1"]
    done = subprocess.run(
        [*words, str(server), "sh", "-c", "cat; exit 5"],
        input=b"in",
        capture_output=True,
        timeout=20,
    )
    assert (done.returncode, done.stdout) == (5, b"in")
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    done = subprocess.run([*words, str(port), "true"], capture_output=True, timeout=20)
    assert done.returncode == 255
    assert b"refused" in done.stderr
    assert dial.main.__doc__


def test_a_run_that_was_not_fetched(tmp_path: Path) -> None:
    assert not pod.unfetched(str(tmp_path))
    own = tmp_path / "work" / "run.1"
    own.mkdir(parents=True)
    (own / "status.json").touch()
    assert not pod.unfetched(str(tmp_path))  # a worker's part is sent to the lead pod
    lead = tmp_path / "work" / "run.0"
    lead.mkdir()
    assert not pod.unfetched(str(tmp_path))
    (lead / "status.json").touch()
    assert pod.unfetched(str(tmp_path))


def test_the_first_process_ends_when_nobody_needs_it(tmp_path: Path) -> None:
    """In a PID namespace of its own it is alone, so it ends; while something runs it stays."""
    key = tmp_path / "key"
    key.write_bytes(KEY)
    source = Path(pod.__file__).read_text().replace(f'KEY = "{pod.KEY}"', f"KEY = {str(key)!r}")
    program = tmp_path / "pod.py"
    program.write_text(source)
    environ = {**os.environ, "SHANTY_POD_PORT": "0", "SHANTY_POD_IDLE": "0.2"}
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable]
    try:
        done = subprocess.run(
            [*words, "-I", "-S", str(program), "serve"],
            env=environ,
            capture_output=True,
            timeout=30,
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if b"unshare failed" in done.stderr:
        pytest.skip("this user may have no PID namespace")
    assert done.returncode == 0, done.stderr
    assert b"nothing of the run has been here" in done.stdout
