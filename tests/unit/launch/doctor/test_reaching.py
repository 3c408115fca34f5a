"""Getting to hosts: what ssh says and what others see decide which finding a host is."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from typing import Any

import pytest

from shanty.launch.doctor import reaching
from shanty.launch.finding import CODES
from shanty.launch.transport import connect, openssh
from shanty.launch.transport.openssh import OpenSSH
from shanty.launch.transport.refusal import TABLE, Refusal, refusal
from shanty.launch.transport.rpc_client import NoAnswerError
from shanty.runtime.rpc import reachability as host_reachability
from shanty.runtime.rpc.reachability import look
from shanty.runtime.site import Host


def refused(code: str) -> Refusal:
    return Refusal(Host("b"), code, "as ssh says", "as ssh says it")


def view(port: str, *, alive: bool = True) -> dict[str, Any]:
    return {"port": port, "alive": alive, "address": "10.0.0.2"}


@pytest.mark.parametrize(
    ("code", "views", "expected"),
    [
        ("host-unreachable", {}, "host-unreachable"),
        ("host-unreachable", {"a": view("silent", alive=False)}, "host-unreachable"),
        ("host-unreachable", {"a": view("unreachable", alive=False)}, "host-unreachable"),
        ("host-unreachable", {"a": view("silent")}, "ssh-filtered"),
        ("host-unreachable", {"": view("ssh"), "a": view("ssh")}, "ssh-filtered"),
        ("host-unreachable", {"a": view("ssh")}, "host-unreachable"),  # by a ProxyCommand
        ("host-silent", {"a": view("silent")}, "ssh-filtered"),
        ("host-silent", {"a": view("silent", alive=False)}, "host-unreachable"),
        ("host-silent", {"a": view("mute")}, "host-silent"),
        ("host-silent", {}, "host-silent"),
        ("ssh-dropped", {"a": view("closes")}, "ssh-dropped"),
        ("ssh-dropped", {"a": view("other")}, "not-ssh"),
        ("ssh-dropped", {"a": view("ssh")}, "proxy-failed"),
        ("ssh-dropped", {"": view("ssh"), "a": view("ssh")}, "ssh-dropped"),  # now and then
        ("ssh-refused", {"a": view("refused")}, "ssh-refused"),
        ("proxy-failed", {"a": view("refused")}, "ssh-refused"),
        ("proxy-failed", {"a": view("silent", alive=False)}, "proxy-failed"),
    ],
)
def test_what_others_see_of_a_host_decides(
    code: str, views: dict[str, dict[str, Any]], expected: str
) -> None:
    found, what, _ = reaching.explained(refused(code), views)
    assert found == expected
    assert what


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("kex_exchange_identification: Connection closed by remote host", "ssh-dropped"),
        (
            "kex_exchange_identification: Connection closed by remote host\n"
            "Connection closed by UNKNOWN port 65535",
            "ssh-dropped",
        ),
        (
            "the host sleeps\nkex_exchange_identification: Connection closed by remote host\n"
            "Connection closed by UNKNOWN port 65535",
            "proxy-failed",
        ),
        (
            "Unable to negotiate with UNKNOWN port 65535: no matching key exchange method found.",
            "ssh-mismatch",
        ),
        ("a@b: Permission denied (publickey,keyboard-interactive).", "password-needed"),
        ("ssh: Could not resolve hostname b: Temporary failure in name resolution", "name-unknown"),
        ("Connection timed out during banner exchange", "host-silent"),
        ("ssh: connect to host b port 22: Connection timed out", "host-unreachable"),
        ("banner line contains invalid characters", "not-ssh"),
        ("bind 192.0.2.77: Cannot assign requested address", "ssh-configuration"),
        ("/home/a/.ssh/config: line 3: Bad configuration option: usr", "ssh-configuration"),
    ],
)
def test_the_words_of_ssh(said: str, code: str) -> None:
    assert refusal(Host("b"), NoAnswerError("ended", said, 255)).code == code


def test_a_login_that_starts_another_shell() -> None:
    said = "zsh: bad pattern: " + "x" * 5000
    found = refusal(Host("b"), NoAnswerError("ended", said, 1))
    assert found.code == "shell-broken"
    assert found.what == "its login gave the command to zsh, which cannot run it"
    assert "before `exec zsh` in ~/.bashrc" in found.fix
    assert len(found.detail) < 400


def test_a_login_whose_path_leads_nowhere() -> None:
    found = refusal(Host("b"), NoAnswerError("ended", "bash: line 1: exec: sh: not found", 127))
    assert "sets a PATH without" in found.what
    assert found.fix.startswith("add /usr/bin and /bin to PATH in ~/.bashrc")


def test_a_private_key_is_named_in_the_command() -> None:
    said = "UNPROTECTED PRIVATE KEY FILE!\nPermissions 0644 for '/x y/id' are too open."
    assert refusal(Host("b"), NoAnswerError("ended", said, 255)).command == "chmod 600 '/x y/id'"


def test_every_code_of_a_refusal_is_a_code_of_the_doctor() -> None:
    assert {row[0] for row in TABLE} <= CODES.keys()
    assert set(reaching._SEEN.values()) <= CODES.keys()


def test_what_is_wrong_at_this_end_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "_views", lambda *_: {})
    found = reaching.explain(
        [
            Refusal(Host("a"), "key-open", "x", detail="of a"),
            Refusal(Host("b"), "key-open", "x", detail="of b"),
            Refusal(Host("c"), "name-unknown", "y"),
        ],
        [],
    )
    assert [(one.code, one.host) for one in found] == [("key-open", ""), ("name-unknown", "c")]


def test_a_port_is_looked_at_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_reachability, "_CLOSED_PORTS", ())
    monkeypatch.setattr(host_reachability, "_pinged", lambda *_: False)
    answers = {b"SSH-2.0-x\r\n": "ssh", b"HTTP/1.1 400 SSH-2.0-shanty\r\n": "other", b"": "closes",
               b"Exceeded MaxStartups\r\n": "closes"}  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve(words: bytes) -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(words)

        for words, expected in answers.items():
            thread = threading.Thread(target=serve, args=(words,))
            thread.start()
            assert look("127.0.0.1", port, 5.0)["port"] == expected
            thread.join()
        assert look("127.0.0.1", port, 0.3) == {
            "port": "mute", "alive": True, "address": "127.0.0.1",
        }  # fmt: skip
    assert look("127.0.0.1", port, 5.0)["port"] == "refused"
    assert look("no-such-host.invalid", 22, 5.0)["port"] == "unresolved"


def test_hosts_that_there_is_no_time_for_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login that hangs is ended; no other is begun after it."""
    monkeypatch.setattr(connect, "_LEAST", 0.2)
    monkeypatch.setattr(OpenSSH, "start", lambda *_: hanging())
    monkeypatch.setattr(openssh, "resolved", lambda _host: {})
    names = [Host(f"h{n}") for n in range(40)]  # more than are dialled at once
    began = time.monotonic()
    clients, refused, late = reaching.reached(names, began + 1.0)
    assert time.monotonic() - began < 5.0
    assert clients == []
    assert {host.name for host in names[32:]} <= set(late)
    assert {*late, *(each.host.name for each in refused)} == {host.name for host in names}


def hanging() -> subprocess.Popen[bytes]:
    """A login of which nothing comes."""
    pipe = subprocess.PIPE
    return subprocess.Popen(["sleep", "60"], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
