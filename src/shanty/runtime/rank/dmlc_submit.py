"""A `dmlc-submit` line, written as one for mpirun, for a run of the user's own line.

What mpirun makes of it is up to the translation, as with any line of the user's.
"""

from __future__ import annotations

import os
import re
from typing import List, Mapping

from shanty.runtime.errors import UsageError
from shanty.runtime.localhost import all_here
from shanty.runtime.mpi.layout import Layout
from shanty.runtime.rank import output_files
from shanty.runtime.rank.dmlc_line import Wanted, hosts_of, parse
from shanty.runtime.rank.dmlc_options import OPTIONS

__all__ = ["NAME", "Wanted", "mpirun_line", "parse", "program", "usage"]

NAME = "dmlc-submit"

_BEGINNING = re.compile(r"\s*(?:\S+\s+\S|[A-Za-z_]\w*=)")  # several words, or a variable
_FOR_A_SHELL = re.compile(r"[$|&;<>*`'\"\\\n]")


def mpirun_line(wanted: Wanted, layout: Layout, environ: Mapping[str, str]) -> List[str]:
    """The whole line for mpirun, without mpirun itself, amid a run with that layout.

    `environ` is what dmlc-submit was started with. Relative paths are those of this process.
    What has no meaning within a run is put down in `wanted`.
    """
    several = len(layout.hosts) > 1
    words = _placement(wanted, layout)
    if wanted.name:
        wanted.leave_out(f"--jobname {wanted.name}", "the run has its name, `shanty run --name`")
    if wanted.memory is not None:
        wanted.leave_out("--worker-memory", "the run is on, `shanty run --memory-per-rank`")
    if wanted.cores is not None and "OMP_NUM_THREADS" not in environ:
        wanted.variables.setdefault("OMP_NUM_THREADS", str(wanted.cores))
    if wanted.log_file and several:
        wanted.leave_out(f"--log-file {wanted.log_file}", "`shanty logs` has what all hosts write")
    elif wanted.log_file:
        wanted.variables[output_files.LINES] = os.path.abspath(wanted.log_file)
    if several:  # on one host they are inherited
        for name, value in wanted.variables.items():
            words += ["-x", f"{name}={value}"]
    return [*words, "-np", str(wanted.ranks), *program(wanted.command)]


def _placement(wanted: Wanted, layout: Layout) -> List[str]:
    """The words that say where the ranks go."""
    first, several = layout.hosts[0].name, len(layout.hosts) > 1
    named = wanted.hosts or (hosts_of(wanted.hostfile) if wanted.hostfile else [])
    if wanted.cluster == "ssh" and several and named:
        wanted.leave_out("--host-file", "the run has its hosts")
        return []
    if wanted.cluster == "ssh" and not all_here(named):
        raise UsageError(
            f"this run is on {first} only, and --host-file names {', '.join(named)}",
            "within a run ranks go to the hosts of the run",
            "use `shanty dmlc-submit --cluster ssh …`, or `shanty run --hostfile FILE …`",
        )
    if wanted.hostfile:
        return ["--hostfile", wanted.hostfile]
    if several and wanted.cluster == "local":
        return ["-H", f"{first}:{wanted.ranks}"]
    if not several and wanted.ranks > layout.slots:  # dmlc-submit takes any number there
        return ["-H", f"{first}:{wanted.ranks}"]
    return []


def program(command: List[str]) -> List[str]:
    """The command of a line as an argv.

    DMLC's tracker joins its words and gives them to a shell in the working folder: so what only a
    shell understands is for `sh`, and the name of a file is that file. Beyond that, a script of
    Python's is for `python`, and words that a shell would leave as they are keep their spaces.
    """
    first, words = command[0], list(command)
    if _BEGINNING.match(first):
        return ["sh", "-c", " ".join(words)]
    if first.endswith(".py"):
        words.insert(0, "python")
    elif os.sep not in first and os.path.isfile(first):
        words[0] = f"./{first}"
    line = " ".join(words)
    return ["sh", "-c", line] if _FOR_A_SHELL.search(line) else words


def usage() -> str:
    """What `dmlc-submit --help` prints within a run."""
    rows = [(", ".join(each.names), each.help) for each in dict.fromkeys(OPTIONS.values())]
    lines = [f"  {names}\n      {text}" for names, text in rows]
    return f"usage: {NAME} [OPTION]… COMMAND [ARGS]…\n\nOptions:\n" + "\n".join(lines)
