"""A `horovodrun` line, written as one for mpirun.

What mpirun makes of it is up to the translation, as with any line of the user's.
"""

from __future__ import annotations

import os
from typing import List, Mapping

from shanty.runtime.mpi.layout import Layout
from shanty.runtime.rank import output_files
from shanty.runtime.rank.horovodrun_line import Wanted, parse
from shanty.runtime.rank.horovodrun_options import OPTIONS

__all__ = ["HOROVOD", "Wanted", "answer", "mpirun_line", "mpirun_words", "parse"]

HOROVOD = "0.28.1"  # whose line this is


def mpirun_words(wanted: Wanted) -> List[str]:
    """What mpirun is to be told, where a run has the hosts, the variables and the number."""
    words: List[str] = []
    if wanted.ranks is not None:
        words += ["-np", str(wanted.ranks)]
    if wanted.interfaces:
        words += ["-mca", "btl_tcp_if_include", ",".join(wanted.interfaces)]
    return [*words, *wanted.launcher, *wanted.command]


def mpirun_line(wanted: Wanted, layout: Layout, environ: Mapping[str, str]) -> List[str]:
    """The whole line for mpirun, without mpirun itself, amid a run with that layout.

    `environ` is what horovodrun was started with, which it hands on to all ranks. Relative paths
    are those of this process.
    """
    words: List[str] = []
    hosts, several = wanted.hosts, len(layout.hosts) > 1
    if not hosts and not wanted.hostfile and not several and (wanted.ranks or 0) > layout.slots:
        hosts = f"{layout.hosts[0].name}:{wanted.ranks}"  # horovodrun takes any number there
    if hosts:
        words += ["-H", hosts]
    if wanted.hostfile:
        words += ["--hostfile", wanted.hostfile]
    if wanted.ssh and not several:
        words += ["-mca", "plm_rsh_args", " ".join(wanted.ssh)]
    elif wanted.ssh:
        wanted.notes.append(
            f"{' '.join(wanted.ssh)} of horovodrun is left out: the run is connected to its hosts"
        )
    if wanted.start_timeout is not None:
        wanted.notes.append(
            "--start-timeout of horovodrun is left out: it is an option of `shanty run`"
        )
    if wanted.output:
        wanted.variables[output_files.VARIABLE] = os.path.abspath(wanted.output)
    if several:  # on one host they are inherited
        own = {name: environ[name] for name in sorted(environ) if name.startswith("HOROVOD_")}
        for name, value in {**own, **wanted.variables}.items():
            words += ["-x", f"{name}={value}"]
    return [*words, *mpirun_words(wanted)]


_TRY = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
_BUILD = """\
Horovod {version}, by shanty:

Available Frameworks:
    [ ] TensorFlow
    [{torch}] PyTorch
    [ ] MXNet

Available Controllers:
    [X] MPI
    [ ] Gloo

Available Tensor Operations:
    [ ] NCCL
    [ ] DDL
    [ ] CCL
    [X] MPI
    [ ] Gloo"""


def answer(wanted: Wanted, python: str) -> str:
    """What a line that starts nothing prints; `python` is the interpreter of the ranks."""
    if wanted.asks == "version":
        return HOROVOD
    if wanted.asks == "help":
        named = [" ".join(option.names) for option in dict.fromkeys(OPTIONS.values())]
        return "usage: horovodrun [OPTION]… COMMAND\n\nOptions:\n  " + "\n  ".join(named)
    import subprocess

    try:
        done = subprocess.run([python, "-c", _TRY], timeout=60, check=False)
        torch = "X" if done.returncode == 0 else " "
    except (OSError, subprocess.TimeoutExpired):
        torch = " "
    return _BUILD.format(version=HOROVOD, torch=torch)
