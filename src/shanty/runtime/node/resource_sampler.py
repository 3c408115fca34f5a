"""Samples how busy this host is: its cores, memory, links and GPUs. Linux only.

A node agent has a `ResourceSampler`, whose samples the controller writes into `resources.jsonl`
(`keep`). They come every 5 s at first. After `_STEADY` samples the interval doubles, again and
again, so that a day has some 2000 samples, and a month 4000.

All values but those of the GPUs are read from a few small files of the kernel.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from typing import Any, Dict, Iterator, NamedTuple, Optional, Tuple

from shanty.runtime import cgroups, proc_files
from shanty.runtime.diagnosis.network_watch import LEAST
from shanty.runtime.messages import Sample
from shanty.runtime.node.gpu_monitor import GpuMonitor
from shanty.runtime.programs import output_of
from shanty.runtime.rundir import RunDir, append_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shanty.runtime.messages import JsonObject

FIRST = 1.0  # seconds until the first sample
EVERY = 5.0  # seconds between two, at first
_STEADY = 360  # samples between two doublings of the interval
_ASKING = 1.0  # seconds for ss
_DOMINANT = 0.7  # the part of what was sent again that went to one address
_PIPE = 60.0  # seconds for which the pipe of nvidia-smi has room in any case

Links = Dict[str, proc_files.Counts]  # by name


class _Reading(NamedTuple):
    """What the kernel has counted up to a time."""

    at: float
    busy: float  # seconds of CPU time
    possible: float  # of which there were so many; since any time
    links: Links
    tcp: Tuple[int, int]  # segments sent, and sent again


class ResourceSampler:
    """Measures one host, from now on; rates are the mean since the previous sample."""

    def __init__(self, now: float, root: str = "", gpus: Optional[GpuMonitor] = None) -> None:
        self._root = root
        self._cores = os.sched_getaffinity(0)
        quota = cgroups.cpu_bound(root)
        self._quota = quota if quota is not None and quota.cores < len(self._cores) else None
        self._own_links = _OwnLinks(root)
        self._last = self._read(now)
        self._mtus = {name: proc_files.mtu(name, root) for name in self._last.links}
        self._resent: Counter[str] = Counter()
        self._due, self._interval, self._count = now + FIRST, EVERY, 0
        self._drained = now
        self._over = False
        self._gpus = gpus if gpus is not None else GpuMonitor()
        self._gpus.start()

    def tick(self, now: float) -> Optional[JsonObject]:
        """Return a sample, as in `resources.jsonl` but without time and host, when it is due.

        None when none is due, or where the kernel does not report how busy the cores are.
        """
        if self._over:
            return None
        if now > self._drained + _PIPE:
            self._drained = now
            self._gpus.drain()
        if now < self._due:
            return None
        self._count += 1
        if self._count % _STEADY == 0:
            self._interval *= 2
        self._due = now + self._interval
        before, self._last = self._last, self._read(now)
        return self._sample(before, self._last)

    def end(self) -> int:
        """Stop measuring; return the pid of a process that may take a moment to end, or 0."""
        self._over = True
        return self._gpus.end()

    def _read(self, now: float) -> _Reading:
        links = self._own_links.among(proc_files.links(self._root))
        tcp = proc_files.tcp(self._root)
        used = self._quota.used() if self._quota is not None else None
        if self._quota is not None and used is not None:
            return _Reading(now, used, now * self._quota.cores, links, tcp)
        cpus = parse_cpus(proc_files.read(f"{self._root}/proc/stat"), self._cores)
        return _Reading(now, *cpus, links, tcp)

    def _sample(self, before: _Reading, now: _Reading) -> Optional[JsonObject]:
        possible, seconds = now.possible - before.possible, now.at - before.at
        if possible <= 0 or seconds <= 0:
            return None
        used, total = self._memory()
        passed = [
            sum(max(0, now.links[name][way] - before.links[name][way]) for name in now.links
                if name in before.links)
            for way in (0, 1)
        ]  # fmt: skip
        return {
            "cpu": round(min(1.0, max(0.0, (now.busy - before.busy) / possible)), 4),
            "memory": used,
            "memory_total": total,
            "receive": round(passed[0] / seconds),
            "send": round(passed[1] / seconds),
            "gpus": [*self._gpus.usage()],
            "segments": now.tcp[0] - before.tcp[0],
            "resent": now.tcp[1] - before.tcp[1],
            **self._peer(now.tcp[1] - before.tcp[1]),
            **self._changed_mtus(now.links),
        }

    def _peer(self, again: int) -> Dict[str, Any]:
        """Return "resent_to": the address to which most of so many segments were sent again."""
        if again < LEAST:
            return {}
        counts: Counter[str] = Counter()
        for address, info in resent(output_of(["ss", "-tinH"], _ASKING) or ""):
            counts[address] += info
        newer = counts - self._resent
        self._resent = counts
        (address, most), *_ = [*newer.most_common(1), ("", 0)]
        return {"resent_to": address} if most > _DOMINANT * sum(newer.values()) else {}

    def _changed_mtus(self, links: Links) -> Dict[str, Any]:
        """Return "mtu": that at the start, and that of now, of each link where they differ."""
        found = {name: [old, proc_files.mtu(name, self._root)] for name, old in self._mtus.items()
                 if name in links}  # fmt: skip
        changed = {name: both for name, both in found.items() if all(both) and both[0] != both[1]}
        return {"mtu": changed} if changed else {}

    def _memory(self) -> Tuple[int, int]:
        """Return the bytes used, and the total: of the machine, or of a smaller limit."""
        machine = proc_files.memory(self._root)
        total = machine.get("MemTotal", 0)
        bound = cgroups.memory_bound(self._root)
        if bound is not None and bound.limit < total:
            used = bound.used()
            if used is not None:
                return used, bound.limit
        return total - machine.get("MemAvailable", machine.get("MemFree", 0)), total


def resent(text: str) -> Iterator[Tuple[str, int]]:
    """The peers of connections, and how many segments were sent again, from `ss -tinH`."""
    peer = ""
    for line in text.splitlines():
        if not line[:1].isspace():
            words = line.split()
            peer = words[4].rpartition(":")[0].strip("[]") if len(words) > 4 else ""
        elif found := re.search(r" retrans:\d+/(\d+)", line):
            yield peer.removeprefix("::ffff:"), int(found[1])


class _OwnLinks:
    """Selects the links that carry traffic of their own: a bond's traffic also passes its links."""

    def __init__(self, root: str) -> None:
        self._folder = f"{root}/sys/class/net"
        self._known: Dict[str, bool] = {}

    def among(self, links: Links) -> Links:
        """Return the links that count."""
        if self._known.keys() != links.keys():
            self._known = {name: self._counts(name) for name in links}
        return {name: link for name, link in links.items() if self._known[name]}

    def _counts(self, name: str) -> bool:
        if name == "lo":
            return False
        try:
            files = os.listdir(f"{self._folder}/{name}")
        except OSError:
            return True
        if any(each.startswith("lower_") for each in files):
            return False  # a bond, a bridge or a VLAN, made of others
        return "brport" not in files or "device" in files  # a container's end of a bridge


def parse_cpus(text: str, cores: Any) -> Tuple[float, float]:
    """Return busy and total time of these cores, from /proc/stat, in ticks of the system."""
    busy = possible = 0
    for line in text.splitlines():
        name, *words = line.split()[:9]
        if not name.startswith("cpu"):
            break  # what follows is long
        if name[3:].isdigit() and int(name[3:]) in cores and len(words) >= 4:
            times = [int(word) for word in words]
            idle = times[3] + (times[4] if len(times) > 4 else 0)  # with waiting for a disk
            possible += sum(times)
            busy += sum(times) - idle
    return busy, possible


def keep(run: RunDir, host: str, sample: Sample) -> None:
    """Write down a sample of a host; `sent` is by this host's monotonic clock."""
    taken = time.time() - (time.monotonic() - sample.sent)
    with contextlib.suppress(OSError):  # a full disk ends no run
        append_line(run.resources, {"time": round(taken, 2), "host": host, **sample.sample})
