"""Works out where a user's line wants its ranks, in no launcher's dialect."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from shanty.runtime.errors import TranslationError
from shanty.runtime.mpi.hostfiles import Named, hosts_listed
from shanty.runtime.mpi.parser import Given

# What Open MPI 4, Open MPI 5 and Hydra call the same part of a machine.
_PARTS = {"package": "socket", "numanode": "numa", "machine": "board", "unit": "hwthread"}
MACHINE_PARTS = frozenset((
    "hwthread", "core", "l1cache", "l2cache", "l3cache", "l4cache", "l5cache", "socket", "numa",
    "board",
))  # fmt: skip
_MODIFIERS = frozenset((
    "span", "nolocal", "hwtcpus", "corecpus", "display", "displayalloc", "displaydevel",
    "donotlaunch", "inherit", "noinherit", "ordered", "noresolve",
))  # fmt: skip
_VALUED = re.compile(r"^(file|qfile|pe-list|device)=.+$", re.IGNORECASE)
# What the codes of the table of options are about, where their names do not tell.
_ABOUT = {**dict.fromkeys(("per", "fill-host", "rankfile", "cores"), "map-by"), "hosts": "host"}
_QUALIFIERS = frozenset(("overload-allowed", "no-overload", "if-supported", "ordered", "report"))


@dataclass
class Placement:
    """What one program of a line asks for; a field that it leaves open is None or empty.

    `by` is the part of the machines over which the ranks are dealt out ("slot", "node",
    "core", …), `per_part` how many each part gets ("ppr:2:node" is 2 and "node"). `fills`
    tells that the number a host is Hydra's, which goes round the hosts until all ranks have a
    place; Open MPI's is a limit. `cores` is the number of cores to bind a rank to, `bind` the
    part, "none", or "user:LIST". `hosts_fill` tells that `hosts` is a list of Hydra's, in which
    a host without a number takes as many ranks as come. `said` has the user's own words for
    "map-by", "bind-to", "rank-by", "host" and "oversubscribe".
    """

    ranks: Optional[int] = None
    by: str = ""
    per_part: Optional[int] = None
    fills: bool = False
    modifiers: List[str] = field(default_factory=list)
    cores: Optional[int] = None
    oversubscribe: Optional[bool] = None
    rank_by: str = ""
    bind: str = ""
    qualifiers: List[str] = field(default_factory=list)
    hosts: Tuple[Named, ...] = ()
    hosts_fill: bool = False
    hostfile: str = ""
    said: Dict[str, str] = field(default_factory=dict)

    def take(self, code: str, option: Given) -> bool:
        """Takes an option of that code into account; False when it is not about placement."""
        code, _, argument = code.partition(" ")
        method = getattr(self, "_" + code.replace("-", "_"), None)
        if method is None:
            return False
        self.said[_ABOUT.get(code, code)] = option.said
        method(option, argument)
        return True

    def lacking(self, code: str) -> bool:
        """Returns True while no option has said what an option of that code would say."""
        mapped = self.by or self.per_part or self.cores
        return not {"map-by": mapped, "bind-to": self.bind, "rank-by": self.rank_by}[code]

    # One method a code; the table of options says which codes there are. It gets the option and
    # the rest of the rule, which for some has "{}" for the option's value.

    def _count(self, option: Given, _: str) -> None:
        self.ranks = option.number

    def _per(self, option: Given, part: str) -> None:
        number = option.number if option.values else 1
        self.by, self.per_part, self.fills = part, number, False

    def _fill_host(self, option: Given, _: str) -> None:
        self._per(option, "node")
        self.fills = True

    def _map_by(self, option: Given, template: str) -> None:
        """Takes Open MPI's PART[:MODIFIER…] or ppr:N:PART[:MODIFIER…]."""
        parts = (template or "{}").replace("{}", option.value).split(":")
        if parts[0].lower() == "ppr":
            if len(parts) < 3 or not parts[1].isdigit() or int(parts[1]) < 1:
                _no_sense(option, "ranks per part are written ppr:N:PART", "as ppr:2:node")
            self.by, self.per_part, self.fills = _part(parts[2]), int(parts[1]), False
            del parts[:3]
        else:
            part = _part(parts.pop(0))
            # `-N 2 --map-by slot` asks for two ranks a host all the same.
            if part and not (self.per_part is not None and part in ("slot", "node")):
                self.by, self.per_part = part, None
        for modifier in parts:
            self._modifier(option, modifier)

    def _rank_by(self, option: Given, _: str) -> None:
        self.rank_by = _part(option.value.split(":")[0])

    def _bind_to(self, option: Given, template: str) -> None:
        part, *rest = (template or option.value).split(":")
        part = _part(part)
        if part == "user" and rest:
            self.bind = "user:" + rest[0]
            return
        if part == "rr":  # Hydra's round-robin goes over hardware threads
            part = "hwthread"
        if part not in MACHINE_PARTS | {"", "none", "cpu-list", "default"}:
            _no_sense(option, "what to bind to is none, hwthread, core, socket, numa or a cache")
        if rest and rest[0].isdigit():
            number = int(rest.pop(0))
            if part == "core" and number > 0:
                self.cores = number
            elif number != 1:
                _no_sense(option, "only cores can be bound to in numbers", "write core:N")
        for qualifier in rest:
            if qualifier.lower() not in _QUALIFIERS:
                _no_sense(option, f"{qualifier!r} is no qualifier of a binding")
            self.qualifiers.append(qualifier.lower())
        self.bind = "" if part == "default" else part

    def _cores(self, option: Given, _: str) -> None:
        self.cores = option.number

    def _oversubscribe(self, option: Given, answer: str) -> None:
        self.oversubscribe = answer == "yes"

    def _hosts(self, option: Given, _: str) -> None:
        self._host(option, _)
        self.hosts_fill = True

    def _host(self, option: Given, _: str) -> None:
        hosts = hosts_listed(option.value)
        if not hosts or any(not host.name or host.slots == 0 for host in hosts):
            _no_sense(option, "it has to be a list of hosts, as a,b or a:2,b:2")
        self.hosts, self.hosts_fill = hosts, False

    def _rankfile(self, option: Given, _: str) -> None:
        self.by, self.per_part = "rankfile", None
        self.modifiers.append(f"file={option.value}")

    def _modifier(self, option: Given, modifier: str) -> None:
        lower = modifier.lower()
        if re.match(r"^pe=[1-9][0-9]*$", lower):
            self.cores = int(lower[3:])
        elif lower in ("oversubscribe", "nooversubscribe"):
            self.oversubscribe = lower == "oversubscribe"
        elif lower in _MODIFIERS or _VALUED.match(modifier):
            self.modifiers.append(modifier.upper() if lower in _MODIFIERS else modifier)
        else:
            _no_sense(option, f"{modifier!r} is nothing that a mapping can be modified with")


def _part(word: str) -> str:
    word = word.strip().lower()
    return _PARTS.get(word, word)


def _no_sense(option: Given, why: str, fix: str = "") -> None:
    raise TranslationError(f"{option.said} makes no sense", why=why, fix=fix)
