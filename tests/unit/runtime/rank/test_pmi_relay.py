"""What stands between a rank and its launcher, on the socket of PMI."""

from __future__ import annotations

import os
import socket

import pytest

from shanty.runtime.rank import pmi_relay


class Pair:
    """A launcher, a rank, and the relay in between."""

    def __init__(self) -> None:
        self.launcher, end = socket.socketpair()
        self.kept: list[bytes] = []  # what the launcher had read when an abort was held
        relay = pmi_relay.between({"PMI_FD": str(end.fileno())}, self.before_abort)
        assert relay is not None
        self.relay = relay
        self.rank = socket.socket(fileno=end.detach())
        self.end_of_rank, self.end_of_launcher = relay.fds
        self.launcher.setblocking(False)

    def before_abort(self) -> None:
        try:
            self.kept.append(self.launcher.recv(100))
        except BlockingIOError:
            self.kept.append(b"")


@pytest.fixture
def pair():
    pair = Pair()
    yield pair
    pair.launcher.close()
    pair.rank.close()
    os.close(pair.end_of_launcher)


def test_both_directions(pair):
    pair.rank.sendall(b"cmd=get_maxes\n")
    assert pair.relay.pump(pair.end_of_rank)
    assert pair.launcher.recv(100) == b"cmd=get_maxes\n"
    pair.launcher.sendall(b"cmd=maxes rc=0\n")
    assert pair.relay.pump(pair.end_of_launcher)
    assert pair.rank.recv(100) == b"cmd=maxes rc=0\n"
    assert pair.kept == []


@pytest.mark.parametrize("line", [b"cmd=abort exitcode=3\n", b"    42cmd=abort;isworld=TRUE;"])
def test_an_abort_waits_for_what_is_done_before_it(pair, line):
    pair.rank.sendall(line)
    assert pair.relay.pump(pair.end_of_rank)
    assert pair.kept == [b""]
    assert pair.launcher.recv(100) == line


def test_what_a_rank_has_sent_before_its_end_is_forwarded(pair):
    pair.rank.sendall(b"cmd=abort exitcode=3\n")
    pair.rank.close()
    pair.relay.finish()
    assert pair.kept == [b""]
    assert pair.launcher.recv(100) == b"cmd=abort exitcode=3\n"
    pair.relay.finish()


def test_the_rank_learns_that_the_launcher_has_ended(pair):
    pair.launcher.close()
    assert not pair.relay.pump(pair.end_of_launcher)
    assert pair.rank.recv(100) == b""
    assert pair.relay.pump(pair.end_of_rank)  # of the same poll


@pytest.mark.parametrize("value", ["", "x", "-1", "9999", "9" * 30, "file"])
def test_a_launcher_without_pmi(value, tmp_path):
    if value == "file":  # a number that is left over from another launcher
        with (tmp_path / "log").open("w") as file:
            assert pmi_relay.between({"PMI_FD": str(file.fileno())}, lambda: None) is None
        return
    assert pmi_relay.between({"PMI_FD": value}, lambda: None) is None
