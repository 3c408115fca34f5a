"""The RPC server and its client, over pipes of a process of this machine."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shanty
from shanty.launch.transport import rpc_client
from shanty.launch.transport.connection import LocalTransport
from shanty.launch.transport.refusal import refusal
from shanty.launch.transport.rpc_client import Bundle, NoAnswerError, RpcClient, bundle
from shanty.runtime import errors
from shanty.runtime.errors import PrepareError, ShantyError, StorageError
from shanty.runtime.gpus import parse_gpus
from shanty.runtime.rpc import survey
from shanty.runtime.rpc.survey import ssh_connection
from shanty.runtime.site import Host

# Verbs of an RPC server of our own: they stand in a module beside the real ones.
VERBS = """
from shanty.runtime.errors import WorldError
import subprocess, sys, os, time

def echo(ask, data, say):
    say({"at": 1})
    print("this is no answer", flush=True)
    subprocess.run(["sh", "-c", "echo nor this; cat"], check=True)
    return {"asked": ask["word"], "data": data.read()}

def half(ask, data, say):
    return {"first": data.read(3).decode()}

def fail(ask, data, say):
    raise WorldError("it went wrong", "because", "do that")

def full(ask, data, say):
    open("/no/such/folder/file", "w")

def crash(ask, data, say):
    raise ValueError("a bug")

def silent(ask, data, say):
    time.sleep(60)

def chat(ask, data, say):
    for number in range(20000):
        say({"number": number})
    return {"size": len(data.read())}
"""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RpcClient]:
    """An RPC server with verbs of the test's own."""
    real = bundle()
    own = [f for f in real.files if f[0] not in ("runtime/rpc/server.py", "runtime/rpc/verbs.py")]
    source = next(c for name, c, _ in real.files if name == "runtime/rpc/server.py").decode()
    names = ("echo", "half", "fail", "full", "crash", "silent", "chat")
    source += f"\nVERBS = {{**VERBS, **dict.fromkeys({names!r}, 'verbs')}}\n"
    own += [
        ("runtime/rpc/server.py", source.encode(), 0o644),
        ("runtime/rpc/verbs.py", VERBS.encode(), 0o644),
    ]
    changed = Bundle("test", tuple(own))
    monkeypatch.setattr("shanty.launch.transport.rpc_client.bundle", lambda: changed)
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path / "home"))
    made = connect()
    yield made
    made.close(0.5)


def connect(**more: Any) -> RpcClient:
    return RpcClient.connect(LocalTransport(Host("here")), pythons=[sys.executable], **more)


def test_data_and_progress_both_ways(client: RpcClient) -> None:
    said: list[dict[str, Any]] = []
    answer = client.ask("echo", word="ä", data=b"\x00\n{raw}", progress=said.append)
    assert answer.values["asked"] == "ä"
    assert answer.data == b"\x00\n{raw}"
    assert said == [{"at": 1}]
    pieces = [b"a" * 100_000, b"b" * 100_000]
    before = client.bytes_sent
    assert client.ask("echo", word="", data=iter(pieces), size=200_000).data == b"".join(pieces)
    assert 200_000 < client.bytes_sent - before < 200_200


def test_what_a_verb_leaves_of_its_data_is_passed_over(client: RpcClient) -> None:
    assert client.ask("half", data=b"abcdef").values == {"first": "abc"}
    assert client.ask("half", data=b"ghi").values == {"first": "ghi"}


def test_much_progress_while_much_is_sent_is_no_deadlock(client: RpcClient) -> None:
    data = bytes(1 << 20)
    assert client.ask("chat", data=data, patience=30).values == {"size": len(data)}


def test_errors_come_back_as_what_they_were(client: RpcClient) -> None:
    with pytest.raises(errors.WorldError) as caught:
        client.ask("fail", data=b"unread")
    assert caught.value.what == "on here: it went wrong"
    assert (caught.value.why, caught.value.fix) == ("because", "do that")
    with pytest.raises(StorageError, match="/no/such/folder/file: No such file"):
        client.ask("full")
    assert client.ask("half", data=b"abc").values == {"first": "abc"}  # it goes on


def test_a_server_that_crashes_says_how(client: RpcClient) -> None:
    with pytest.raises(ShantyError) as caught:
        client.ask("crash")
    assert "crash failed: ValueError: a bug" in caught.value.what


def test_silence_has_a_bound(client: RpcClient) -> None:
    with pytest.raises(PrepareError, match="has not answered for"):
        client.ask("silent", patience=0.3)


def test_data_that_is_not_as_long_as_announced(client: RpcClient) -> None:
    with pytest.raises(PrepareError, match="not as long"):
        client.ask("half", data=[b"ab"], size=5)


def test_threads_take_turns(client: RpcClient) -> None:
    answers: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(client.ask("half", data=b"abc").values["first"])
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == ["abc"] * 8


def test_nothing_is_left_when_the_client_is_gone(client: RpcClient) -> None:
    process = client._stream.process
    client.close()
    assert process.poll() == 0


def test_a_version_that_is_there_is_not_sent_again_and_old_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    first = connect()
    assert first.bytes_sent > 50_000
    first.close()
    store = Path(first.root).parent
    old, cut_short = store / "0123", store / ".new-x"
    recent = store / "4567"
    for folder, days in ((old, 31), (cut_short, 2), (recent, 29)):
        folder.mkdir()
        then = time.time() - days * 86400
        os.utime(folder, (then, then))
    os.utime(first.root, (0, 0))  # in use again, it is young again
    second = connect()
    assert second.bytes_sent < 3072
    second.ask("store-sweep", days=30)
    second.close()
    assert sorted(path.name for path in store.iterdir()) == sorted(
        [recent.name, Path(first.root).name]
    )
    assert (Path(first.root) / "shanty" / "runtime" / "boot.py").is_file()
    assert not (Path(first.root) / "shanty" / "cli").exists()


def test_two_first_contacts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    found: list[RpcClient] = []
    threads = [threading.Thread(target=lambda: found.append(connect())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({client.root for client in found}) == 1
    assert len(found) == 4
    for client in found:
        assert client.ask("survey").values["shanty_home"] == str(tmp_path)
        client.close()
    assert len(list((tmp_path / "store" / "bundle").iterdir())) == 1


def test_what_is_shipped_can_be_imported_by_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    client = connect()
    code = "import sys; sys.path.insert(0, sys.argv[1]); import shanty; print(shanty.size())"
    argv = [sys.executable, "-I", "-S", "-c", code, client.root]
    assert subprocess.run(argv, capture_output=True, text=True).stdout == "1\n"
    client.close()


def test_a_host_that_says_nothing(tmp_path: Path) -> None:
    class Mute(LocalTransport):
        def start(self, argv: Any) -> subprocess.Popen[bytes]:
            return super().start(["sleep", "60"])

    with pytest.raises(NoAnswerError) as caught:
        RpcClient.connect(Mute(Host("here")), patience=0.3)
    assert caught.value.kind == "silent"


def test_a_busy_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No login file can be what keeps its Python from reading: it is awaited."""
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    monkeypatch.setattr(rpc_client, "_READING", 0.05)
    slow = tmp_path / "python3"
    slow.write_text(f'#!/bin/sh\nsleep 0.5; exec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    RpcClient.connect(LocalTransport(Host("here")), pythons=[str(slow)]).close()
    refused = refusal(Host("p", pod="k8s/team"), NoAnswerError("silent", ""))
    assert refused.code == "host-silent" and "kubectl describe pod p" in refused.fix


@pytest.mark.parametrize(
    ("command", "kind", "said"),
    [
        ("head -c 5000000 /dev/zero", "noise", ""),
        ("yes", "noise", ""),
        ("echo only git here", "ended", "only git here"),
    ],
)
def test_a_login_that_runs_something_else(command: str, kind: str, said: str) -> None:
    class Other(LocalTransport):
        def start(self, argv: Any) -> subprocess.Popen[bytes]:
            return super().start(["sh", "-c", command])

    with pytest.raises(NoAnswerError) as caught:
        RpcClient.connect(Other(Host("here")), patience=20)
    assert (caught.value.kind, caught.value.said) == (kind, said)
    refused = refusal(Host("here"), caught.value)
    assert refused.code == "shell-broken"
    assert (said or "prints more than 1 MiB") in refused.what


def test_the_survey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50000 10.0.0.1 22")
    client = connect()
    facts = client.ask("survey").values
    again = client.ask("survey").values
    client.close()
    assert facts["cores"] >= 1
    assert facts["memory"] > 1 << 20
    assert facts["hostname"] == socket.gethostname()
    assert facts["instance"] == again["instance"]
    assert abs(facts["time"] - time.time()) < 60
    assert facts["room"]["folders"]["home"]["free"] > 0
    assert facts["ssh"] == {
        "client": "10.0.0.9",
        "client_port": 50000,
        "server": "10.0.0.1",
        "server_port": 22,
    }
    assert {"127.0.0.1"} <= {one["address"] for one in facts["addresses"]}


def test_the_addresses_are_those_of_the_system() -> None:
    loopback = next(one for one in survey.addresses() if one["address"] == "127.0.0.1")
    assert loopback["prefix"] == 8
    assert loopback["loopback"]
    assert loopback["up"]


def test_gpus_and_connections_that_are_not_there() -> None:
    text = (
        "GPU 0: NVIDIA H200 (UUID: GPU-aa)\n  MIG 1g.18gb Device 0: (UUID: MIG-bb)\n"
        "GPU 1: NVIDIA H200 (UUID: GPU-cc)\n"
    )
    assert parse_gpus(text) == [
        {"name": "NVIDIA H200", "uuid": "GPU-aa"},
        {"name": "NVIDIA H200", "uuid": "GPU-cc"},
    ]
    assert parse_gpus("No devices were found\n") == []
    assert ssh_connection({}) is None


class Greeter:
    """Something that listens and says one thing."""

    def __init__(self, words: bytes) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.place = list(self._socket.getsockname())
        self._words = words
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.sendall(self._words)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def test_reach_takes_the_first_that_is_an_ssh_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path))
    ssh = Greeter(b"Mind the gap\r\nSSH-2.0-Test\r\n")
    other = Greeter(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    mute = socket.create_server(("127.0.0.1", 0))
    candidates = [list(mute.getsockname()), other.place, ssh.place, ssh.place]
    client = connect()
    began = time.monotonic()
    found = client.ask("find-ssh", groups=[candidates], timeout=10).values["answers"][0]
    took = time.monotonic() - began
    none = client.ask("find-ssh", groups=[[other.place]], timeout=10).values["answers"][0]
    client.close()
    assert found["found"] == {
        "address": ssh.place[0],
        "port": ssh.place[1],
        "peer": "127.0.0.1",
        "source": "127.0.0.1",
        "banner": "SSH-2.0-Test",
    }
    assert found["errors"][1] == "what listens there is not an ssh server"
    assert found["errors"][0]
    assert took < 5  # one that is silent does not keep the others waiting
    assert none == {"found": None, "errors": ["what listens there is not an ssh server"]}
    ssh.close()
    other.close()
    mute.close()


def test_what_travels_is_whole() -> None:
    """Nothing in it imports what of shanty stays here, but for types alone."""
    files = {name: content for name, content, _ in bundle().files if name.endswith(".py")}
    lacking = set()
    for name, content in files.items():
        tree = ast.parse(content)
        for node in {*ast.walk(tree)} - for_types(tree):
            if isinstance(node, ast.ImportFrom):
                needed = {_file_of(f"{node.module}.{each.name}") for each in node.names}
            elif isinstance(node, ast.Import):
                needed = {_file_of(each.name) for each in node.names}
            else:
                continue
            lacking |= {(name, each) for each in needed - {""} if each not in files}
    assert lacking == {("__init__.py", each) for each in STARTS_RUNS}


# What `shanty` loads at the use of a name that is for the machine that starts runs.
STARTS_RUNS = {
    "client/future.py", "client/runs.py", "integrations/notebook/magic.py", "sdk/submit.py",
    "sdk/tasks.py",
}  # fmt: skip


def for_types(tree: ast.Module) -> set[ast.AST]:
    """What is below an `if TYPE_CHECKING`."""
    return {
        each
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        for each in ast.walk(node)
    }


def _file_of(name: str) -> str:
    """The file of a module of shanty's, or of the module that has this name; "" for others."""
    first, *parts = name.split(".")
    if first != "shanty":
        return ""
    root = Path(shanty.__file__).parent
    for count in (len(parts), len(parts) - 1):
        for file in ("/".join(parts[:count]) + ".py", "/".join([*parts[:count], "__init__.py"])):
            if count >= 0 and (root / file).is_file():
                return file
    raise AssertionError(f"there is no {name}")
