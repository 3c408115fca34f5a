"""The common part of lines for torchrun, `accelerate launch` and deepspeed.

These start a number of processes on each host, without MPI. The processes become the ranks of the
run. `torchrun`, `accelerate_launch` and `deepspeed` read the lines; this module works out how many
ranks there are and where, and what each of them runs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from shanty.runtime.counted import counted
from shanty.runtime.errors import UsageError
from shanty.runtime.gpus import visible_gpus
from shanty.runtime.lines.command import INTERPRETER, LOCAL_RANK
from shanty.runtime.lines.option_table import Line, Option, table
from shanty.runtime.localhost import free_ports
from shanty.runtime.mpi.layout import Layout

# Why an option has no meaning in a run.
ITSELF = "-the ranks of a run find each other by themselves"
ALL_HOSTS = "-a run starts the ranks of all its hosts"
OUTPUT = "-`shanty logs` has the output of each rank"
FIXED = "-the number of ranks does not change while a job runs"
RETRIES = "-`shanty run --retries N` makes further attempts"


class Count(NamedTuple):
    """The number of ranks in all, and on each host; None: as many as there are slots."""

    ranks: Optional[int]
    per_host: Optional[int]


def spelled_both_ways(*rows: Tuple[str, ...]) -> Dict[str, Option]:
    """Returns a table of options whose names may have dashes or underscores inside."""
    found = []
    for alike, *rest in rows:
        options = []
        for names in alike.split(" / "):
            words = names.split()
            inner = [each[2:] for each in words if each.startswith("--")]
            words += ["--" + each.replace("-", "_") for each in inner]
            words += ["--" + each.replace("_", "-") for each in inner]
            options.append(" ".join(dict.fromkeys(words)))
        found.append((" / ".join(options), *rest))
    return table(*found)


@dataclass
class ProcessLine(Line):
    """A line, and what it asks for; fields that it leaves open are None or empty.

    `nodes` are the least and the most hosts. `per_node` is the number of processes on each, or
    "gpu", "cpu" or "auto" as with torchrun, or "some": as many as there are GPUs, else one.
    `default` is used where neither the line nor the run has a number. `processes` is the number on
    all hosts together.
    """

    operand = "script"
    shown_by = "shanty run --"
    says_number: ClassVar[str]  # the option, for messages
    says_hosts: ClassVar[str]

    nodes: Optional[Tuple[int, int]] = None
    per_node: Union[int, str, None] = None
    default: Union[int, str] = 1
    processes: Optional[int] = None
    module: bool = False
    no_python: bool = False
    local_rank: str = ""  # the option by which the script gets its local rank

    def _nodes(self, spelled: str, value: str, _: str) -> None:
        low, _, high = value.partition(":")
        if not all(each.isdigit() and 0 < len(each) < 7 for each in (low, high or low)):
            raise UsageError(f"{spelled} takes a number or MIN:MAX, not {value!r}")
        self.nodes = int(low), int(high or low)
        if not 0 < self.nodes[0] <= self.nodes[1]:
            raise UsageError(f"{spelled} takes MIN:MAX from 1 on, not {value!r}")

    def checked(self) -> None:
        """Raises UsageError for options that contradict each other."""
        if self.module and self.no_python:
            raise UsageError(
                f"this {self.program} line asks for a module without Python",
                fix="leave one of the two options out",
            )

    def count(self, hosts: Optional[int], slots: int, own: Optional[int]) -> Count:
        """Works out how many ranks there are.

        `hosts` is the number of the run's hosts, None for several that are not known yet; `slots`
        are those of a single host. `own` is the run's own number (`-n`). UsageError where these
        contradict the line.
        """
        low, high = self.nodes or (None, None)
        if low is not None and low > (hosts or low):
            raise self._too_few_hosts(low, hosts or 1)
        nodes = hosts
        if low is not None and high is not None and (low == high or hosts):
            nodes = low if low == high else min(hosts or low, high)
        if low != high:
            taken = f"{self.says_hosts} {low}:{high} takes {nodes or 'all'} of the run's hosts"
            self.remarks.append(f"{taken}: {FIXED[1:]}")
        if self.processes is not None:
            return self._of_all(self.processes, nodes if low else None, own)
        each = self.per_node
        if each is None and own is not None:
            return self._of_all(own, nodes if low else None, own)
        if isinstance(each or self.default, str):
            each = self._devices(str(each or self.default), hosts, slots)
        elif each is None:
            each = int(self.default)
        if each is None:
            return Count(own, None)
        assert isinstance(each, int)
        if nodes is not None:
            return self._of_all(each * nodes, nodes, own)
        if own is not None and own % each:
            raise self._contradiction(own, f"a multiple of {each}")
        return Count(own, each)

    def _of_all(self, ranks: int, nodes: Optional[int], own: Optional[int]) -> Count:
        if own is not None and own != ranks:
            raise self._contradiction(own, str(ranks))
        if nodes and ranks % nodes:
            raise UsageError(
                f"{ranks} processes cannot be shared out evenly over {nodes} hosts",
                fix=f"take {nodes * -(-ranks // nodes)}, or leave {self.says_hosts} out",
            )
        return Count(ranks, ranks // nodes if nodes else None)

    def _devices(self, kind: str, hosts: Optional[int], slots: int) -> Optional[int]:
        if hosts != 1 and kind == "cpu" and self.nodes is None:
            return None
        if hosts != 1:
            raise UsageError(
                f"the number of processes on each host is unknown: {self.program}'s {kind!r}"
                if self.per_node
                else f"this {self.program} line lacks the number of processes",
                "the devices of a run's hosts are not known when its line is read",
                f"write the number: {self.says_number} N",
            )
        found = visible_gpus() if kind != "cpu" else slots
        if found:
            return found
        if kind == "gpu":
            raise UsageError(
                f"this {self.program} line starts a process for each GPU, and no GPU was found",
                fix=f"write the number of processes: {self.says_number} N",
            )
        return slots if kind == "auto" else 1

    def _contradiction(self, own: int, wanted: str) -> UsageError:
        return UsageError(
            f"the run has {counted(own, 'rank')}, and this {self.program} line asks for {wanted}",
            "the processes of the line become the ranks of the run, which are one world",
            f"leave -n {own} out: shanty run -- {self.program} …",
        )

    def _too_few_hosts(self, low: int, hosts: int) -> UsageError:
        here = self.per_node * low if isinstance(self.per_node, int) else self.processes
        here = here or low
        return UsageError(
            f"{self.says_hosts} asks for {counted(low, 'host')}, and the run has {hosts}",
            "a run starts the ranks of all its hosts, so the line is given once",
            f"name the hosts: shanty run --on HOST,HOST -- {self.program} …; or take one: "
            f"shanty run -- {self.program} {self.says_number} {here} …",
        )

    # ------------------------------------------------------------- what each rank runs

    def settle(self, python: str) -> None:
        """Adapts the line to the ranks' interpreter, an absolute path."""

    def words(self) -> List[str]:
        """Returns the script, module or program, and its arguments."""
        place = [f"{self.local_rank}={LOCAL_RANK}"] if self.local_rank else []
        return [self.command[0], *place, *self.command[1:]]

    def argv(self, python: str) -> List[str]:
        """Returns the command of each rank, with the interpreter `python`."""
        if self.no_python:
            return self.words()
        return [python, "-u", *(["-m"] if self.module else []), *self.words()]

    def mpirun_line(self, layout: Layout, environ: Mapping[str, str], python: str) -> List[str]:
        """Returns the whole line for mpirun; see `Line`."""
        hosts = [host for host in layout.hosts if host.slots > 0]
        if self.hostfile:
            self.leave_out(self.hostfile, "the run has its hosts")
        count = self.count(len(hosts), hosts[0].slots, layout.ranks)
        ranks = count.ranks or sum(host.slots for host in hosts)
        words = ["-np", str(ranks)]
        if count.per_host:
            taken = hosts[: -(-ranks // count.per_host)]
            words += ["-H", ",".join(f"{host.name}:{count.per_host}" for host in taken)]
        elif len(hosts) == 1:  # such a launcher takes any number there
            words += ["-H", f"{hosts[0].name}:{ranks}"]
        if len(layout.hosts) == 1:  # a script may start several at a time
            self.variables["MASTER_PORT"] = str(free_ports(1)[0])
        words += self.exported(layout)
        own = environ.get(INTERPRETER) or environ.get("PYTHON_EXEC", "")
        if os.path.dirname(own) in ("", os.path.dirname(python)):
            self.settle(python)
            return [*words, *self.argv("python")]  # every host has its own
        self.settle(own)
        return [*words, *self.argv(own)]
