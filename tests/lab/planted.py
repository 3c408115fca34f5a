"""Plants networks on a lab's host that a run must not take; the benchmark uses it too."""

from __future__ import annotations

import sys

SHOWN = ("tun0", "docker0")  # the interfaces that are there afterwards, and up

# A tunnel that somebody holds open and never reads: it is up, has a carrier, and leads nowhere.
_HOLD = """
import fcntl, os, struct, time
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH", b"tun0", 0x1001))
time.sleep(1 << 30)
"""
# A bridge that has the same address on every host, and how to remove it.
DOCKER = """
ip link add docker0 type bridge
ip link add port0 type veth peer name port1
ip link set port0 master docker0 up
ip link set port1 up
ip addr add 172.17.0.1/16 dev docker0
ip link set docker0 up
"""
NO_DOCKER = "ip link del port0; ip link del docker0"
_PLANT = f"""
set -e
setsid "$0" -c "$2" >/dev/null 2>&1 </dev/null &
until ip link show tun0 >/dev/null 2>&1; do sleep 0.02; done
ip addr add 10.8.0.$1/24 dev tun0
ip link set tun0 up
{DOCKER}"""


def words(number: int) -> list[str]:
    """The command that plants them on the host of that number: a dead tunnel, and a docker0
    that has the same address on every host."""
    return ["sh", "-c", _PLANT, sys.executable, str(number), _HOLD]
