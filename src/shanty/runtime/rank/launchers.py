"""Takes the lines of launchers that know no MPI, so that what they start are the ranks of a run."""

from __future__ import annotations

import os
from typing import List, Mapping, Sequence

from shanty.runtime.mpi.hostfiles import Read, read_file
from shanty.runtime.mpi.layout import Layout
from shanty.runtime.rank.process_line import Gpus, ProcessLine

INTERPRETER = "SHANTY_LINE_PYTHON"  # the variable with the Python that a line was started by


def parse(
    name: str,
    words: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    read: Read = read_file,
) -> ProcessLine:
    """Returns what the line `words` of the launcher `name`, as `launcher_of` has both, asks for.

    UsageError or NotFoundError for a line that cannot be taken.
    """
    from shanty.runtime.rank import accelerate_launch, deepspeed, torchrun

    if name == "accelerate-launch":
        return accelerate_launch.parse(words, environ, read)
    if name == "deepspeed":
        return deepspeed.parse(words, environ, read)
    return torchrun.parse(words, environ, read, name)


def mpirun_line(line: ProcessLine, layout: Layout, python: str, gpus: Gpus) -> List[str]:
    """Returns the whole line for mpirun, without mpirun itself, amid a run with that layout."""
    hosts = [host for host in layout.hosts if host.slots > 0]
    if line.hostfile:
        line.left_out.setdefault("the run has its hosts", []).append(line.hostfile)
    count = line.count(len(hosts), hosts[0].slots, layout.ranks, gpus)
    ranks = count.ranks or sum(host.slots for host in hosts)
    words = ["-np", str(ranks)]
    if count.per_host:
        taken = hosts[: -(-ranks // count.per_host)]
        words += ["-H", ",".join(f"{host.name}:{count.per_host}" for host in taken)]
    elif len(hosts) == 1:  # such a launcher takes any number there
        words += ["-H", f"{hosts[0].name}:{ranks}"]
    if len(hosts) > 1:  # on one host they are inherited
        for name, value in line.variables.items():
            words += ["-x", f"{name}={value}"]
    return [*words, *line.argv(python)]


def answer(line: ProcessLine) -> str:
    """Returns what a line that starts nothing prints, else ""."""
    if not line.help:
        return ""
    named = [", ".join(option.names) for option in dict.fromkeys(line.options.values())]
    usage = f"usage: {line.program} [OPTION]… SCRIPT [ARGS]…\n"
    meaning = "In a run its processes are the ranks of the run.\n"
    return f"{usage}{meaning}\nOptions:\n  " + "\n  ".join(named)
