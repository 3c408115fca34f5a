"""Writes an `mlx.launch` line of the MPI backend as one for mpirun.

MLX's own would call mpirun and forget how that ended. The options are those of 0.32.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections import Counter
from typing import Any, Dict, List, NoReturn, Optional, Sequence

from shanty.runtime.errors import UsageError
from shanty.runtime.localhost import is_here
from shanty.runtime.mpi.hostfiles import Read, mlx_table, read_file
from shanty.runtime.mpi.layout import Layout
from shanty.runtime.unknown import nearest

_VALUES = ("--hosts", "--hostfile", "--backend", "--cwd", "--python")
# Of the other backends, or of no meaning to ranks of MPI.
_OTHERS = ("--connections-per-ip", "--starting-port", "-p", "--nccl-port")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, fix="`mlx.launch --help` lists its options")


def parse(words: Sequence[str], read: Read = read_file) -> Optional[argparse.Namespace]:
    """Returns what the line `words` (without `mlx.launch` itself) asks for; None if not of MPI.

    Beside the options it has the `command`, `words` for mpirun, and `hosts` with a name for each
    rank, empty where the line names none. `read` gives the text of a file or None. UsageError for
    a line that makes no sense.
    """
    parser = _Parser(prog="mlx.launch", add_help=False)
    for name in (*_VALUES, *_OTHERS):
        parser.add_argument(name, default="")
    for name in ("--env", "--mpi-arg"):
        parser.add_argument(name, action="append", default=[])
    for name in ("--verbose", "--print-python", "--help"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--repeat-hosts", "-n", type=int, default=1)
    given, command = parser.parse_known_args(list(words))
    named = _hostfile(given.hostfile, read) if given.hostfile else {}
    backend = given.backend or named.get("backend", "")
    if backend != "mpi" or given.print_python or given.help:
        return None
    if command[:1] == ["--"]:
        del command[0]
    elif command and command[0].startswith("-"):
        name = command[0].partition("=")[0]
        fix = nearest(name, parser._option_string_actions, "`mlx.launch --help` lists its options")
        raise UsageError(f"mlx.launch has no option {name}", fix=fix)
    if not command:
        raise UsageError("nothing to run", fix="give a script after the options")
    if given.repeat_hosts < 1:
        raise UsageError(f"-n must be 1 or more, not {given.repeat_hosts}")
    if given.python:
        command.insert(0, given.python)
    elif command[0].endswith(".py") and not os.access(command[0], os.X_OK):
        command.insert(0, "python")
    hosts = given.hosts.split(",") if given.hosts else []
    if not all(hosts):
        raise UsageError(f"--hosts {given.hosts} names an empty host", fix="write --hosts a,b")
    given.hosts = [host["ssh"] for host in named.get("hosts", ())]
    given.hosts = given.hosts or [host for host in hosts for _ in range(given.repeat_hosts)]
    given.command = command
    given.words = ["--wdir", given.cwd] if given.cwd else []
    for variable in [*named.get("envs", []), *given.env]:
        given.words += ["-x", variable]
    for text in given.mpi_arg:
        try:
            given.words += shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--mpi-arg {text}: {error}") from None
    return given


def mpirun_line(line: argparse.Namespace, layout: Layout) -> List[str]:
    """Returns the whole line for mpirun, without mpirun itself, amid a run with that layout."""
    own = [host.name for host in layout.hosts if host.slots > 0]
    hosts = line.hosts or [name for name in own for _ in range(line.repeat_hosts)]
    if len(own) == 1:
        hosts = [own[0] if is_here(name) else name for name in hosts]
    slots = ",".join(f"{name}:{count}" for name, count in Counter(hosts).items())
    return ["-np", str(len(hosts)), "-H", slots, *line.words, *line.command]


def _hostfile(path: str, read: Read) -> Dict[str, Any]:
    """Returns what a host file of MLX holds."""
    text = read(path)
    if text is None:
        raise UsageError(f"--hostfile {path} cannot be read")
    try:
        return mlx_table(text, path)
    except UsageError as error:
        raise UsageError(
            f"{path} is not a host file of MLX",
            f"{error.what}: {error.why}" if error.why else error.what,
            f"{error.fix}; mlx.distributed_config writes one, one of mpirun's is for mpirun",
        ) from None
