"""Reads an `mlx.launch` line of the MPI backend, and writes it as a line for mpirun.

MLX itself would call mpirun and ignore how it ended. The options are those of 0.32.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, List, Mapping, Optional, Sequence

from shanty.runtime.errors import UsageError
from shanty.runtime.lines.option_table import SWITCH, TEXT, WHOLE, Given, Line, table
from shanty.runtime.localhost import is_here
from shanty.runtime.mpi.hostfiles import Read, mlx_table, read_file
from shanty.runtime.mpi.layout import Layout

_OPTIONS = table(
    ("--hosts", TEXT, "@hosts"),
    ("--hostfile", TEXT, "@hostfile"),
    ("--repeat-hosts -n", WHOLE, "@count each"),
    ("--backend", TEXT, "@set backend"),
    ("--python", TEXT, "@set python"),
    ("--cwd", TEXT, "@words --wdir"),
    ("--env", TEXT, "@words -x"),
    ("--mpi-arg", TEXT, "@mpi-args"),
    ("--verbose", SWITCH, "@switch verbose"),
    ("--print-python / --help -h", SWITCH, "@ask mlx"),
    # Of the other backends
    ("--connections-per-ip / --starting-port -p / --nccl-port", TEXT, ""),
)


@dataclass
class Wanted(Line):
    """A line of mlx.launch; `hosts` has a name for each rank, or is empty."""

    program = "mlx.launch"
    options = _OPTIONS

    backend: str = ""
    python: str = ""
    hosts: List[str] = field(default_factory=list)
    each: int = 1  # ranks on each of the hosts that the line names
    file: Mapping[str, Any] = field(default_factory=dict)  # the host file

    def completed(self, given: List[Given]) -> List[Given]:
        """Returns the options with those after the script, unless `--` ended them."""
        return given if self.ended else [*given, *self.split_command(_OPTIONS)]

    def _hosts(self, spelled: str, value: str, _: str) -> None:
        self.hosts = value.split(",")
        if not all(self.hosts):
            raise UsageError(f"{spelled} {value} names an empty host", fix="write --hosts a,b")

    def _hostfile(self, spelled: str, path: str, _: str) -> None:
        text = self.read(path)
        if text is None:
            raise UsageError(f"{spelled} {path} cannot be read")
        try:
            self.file = mlx_table(text, path)
        except UsageError as error:
            raise UsageError(
                f"{path} is not a host file of MLX",
                f"{error.what}: {error.why}" if error.why else error.what,
                f"{error.fix}; mlx.distributed_config writes one; a host file of MPI is for mpirun",
            ) from None

    def checked(self) -> None:
        """Works out what the options mean together."""
        self.backend = self.backend or self.file.get("backend", "")
        if self.python:
            self.command.insert(0, self.python)
        elif self.command[0].endswith(".py") and not os.access(self.command[0], os.X_OK):
            self.command.insert(0, "python")
        named = [host["ssh"] for host in self.file.get("hosts", ())]
        self.hosts = named or [host for host in self.hosts for _ in range(self.each)]
        for variable in self.file.get("envs", ()):
            self.launcher += ["-x", variable]

    def mpirun_line(self, layout: Layout, environ: Mapping[str, str], python: str) -> List[str]:
        """Returns the whole line for mpirun; see `Line`."""
        own = [host.name for host in layout.hosts if host.slots > 0]
        hosts = self.hosts or [name for name in own for _ in range(self.each)]
        if len(own) == 1:
            hosts = [own[0] if is_here(name) else name for name in hosts]
        slots = ",".join(f"{name}:{count}" for name, count in Counter(hosts).items())
        return ["-np", str(len(hosts)), "-H", slots, *self.launcher, *self.command]


def parse(words: Sequence[str], read: Read = read_file) -> Optional[Wanted]:
    """Returns what the line `words` (without `mlx.launch` itself) asks for; see `Line.parsed`.

    None for a line that is left to MLX: it is for another backend, or starts nothing.
    """
    line = Wanted(os.environ, read)
    try:
        line.parsed(words)
    except UsageError:
        if "--backend=mpi" in words or "mpi" in (*words, line.file.get("backend")):
            raise
        return None
    return None if line.asks or line.backend != "mpi" else line
