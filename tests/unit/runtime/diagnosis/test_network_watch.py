"""What the samples of the hosts say about the network between them."""

from __future__ import annotations

from typing import Any

from shanty.runtime.diagnosis.network_watch import NetworkWatch
from shanty.runtime.node.resource_sampler import resent
from shanty.runtime.plan import Node

SS = """\
ESTAB 0      0      10.77.0.1:33012   10.77.0.2:1026
\t cubic wscale:7,7 rto:204 rtt:0.1/0.05 bytes_retrans:13032 retrans:1/12 lost:1 reordering:8
ESTAB 0      0      [::ffff:10.77.0.1]:22   [::ffff:10.77.0.254]:48634
\t cubic wscale:7,7 rto:204 retrans:0/3
ESTAB 0      0      10.77.0.1:44444   10.77.0.3:1024
\t cubic wscale:7,7 rto:204 rtt:0.1/0.05
"""


def watch() -> NetworkWatch:
    rest = (1, 1, "/run", "/work", "python", "python", "/package", {})
    return NetworkWatch([Node(i, f"n{i}", f"10.0.0.{i}", *rest) for i in (1, 2, 3)])


def sample(segments: int, again: int, **more: Any) -> dict[str, Any]:
    return {"segments": segments, "resent": again, "send": 100 << 10, **more}


def test_a_link_with_another_mtu_is_named_until_it_is_set_back() -> None:
    here = watch()
    assert not here.hear("n2", sample(1000, 0))
    assert here.hear("n2", sample(1000, 0, mtu={"eth0": [1500, 576]}))
    assert here.fault is not None
    assert here.fault.what == "eth0 on n2 has MTU 576, was 1500 when the run began"
    assert "ip link set eth0 mtu 1500 on n2" in here.fault.fix
    assert not here.hear("n2", sample(1000, 90, mtu={"eth0": [1500, 576]}))  # which is worse
    assert here.hear("n2", sample(1000, 0))
    assert here.fault is None


def test_many_lost_packets_are_named_at_once_and_fewer_if_it_lasts() -> None:
    here = watch()
    assert here.hear("n1", sample(300, 100, resent_to="10.0.0.2"))
    assert here.fault is not None
    assert here.fault.what == (
        "packets from n1 to n2 are lost: 25% of its TCP segments were sent again, at 100 KiB/s"
    )
    assert here.fault.host == "n2"
    assert not here.hear("n3", sample(300, 110, resent_to="10.0.0.2"))  # the same trouble
    assert not here.hear("n2", sample(300, 120, resent_to="10.0.0.1"))
    assert here.fault.host == "n2"  # which all of them have in common
    other = watch()
    assert not other.hear("n2", sample(1000, 80))
    assert other.hear("n2", sample(1000, 80))
    assert other.fault is not None
    assert other.fault.what.startswith("n2 loses packets: 7%")
    assert other.hear("n2", sample(1000, 20))
    assert other.fault is None


def test_a_dead_connection_is_not_a_loss_of_packets() -> None:
    here = watch()
    assert not here.hear("n1", sample(8, 8))
    assert not here.hear("n1", sample(8, 8))
    assert here.fault is None


def test_the_peers_of_what_was_sent_again() -> None:
    assert list(resent(SS)) == [("10.77.0.2", 12), ("10.77.0.254", 3)]
