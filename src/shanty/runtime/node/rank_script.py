"""Makes a host ready for the ranks of a run over several hosts.

A launcher gives one command line to all hosts, and some give them the controller's environment too.
So every host has, at one and the same path, a small shell script through which its ranks start:
it sets what differs from host to host (home, Python, MPI, the run's folder) and becomes
`rank.exec`. Beside it `work` leads to the workspace.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Mapping

from shanty.runtime import cleanup, foreign_variables
from shanty.runtime.errors import LaunchError
from shanty.runtime.mpi.parameters import overruling
from shanty.runtime.plan import Node
from shanty.runtime.platform import cpu_numbers
from shanty.runtime.rank_start import NOTHING, environment, rank_prefix

# Variables that a launcher may bring along from the controller, and that each host sets itself.
_OWN = (
    *("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "XDG_RUNTIME_DIR", "SSH_CONNECTION"),
    *("SLURM_JOBID", "SLURM_JOB_ID", "SLURM_NODEID", "SLURMD_NODENAME"),  # `Flavour.named_daemon`
)


def prepare(node: Node, scratch: str, shared: Mapping[str, str]) -> None:
    """Make the folders at the path that all hosts share, and the script in it.

    LaunchError when the path is taken: another host of the run is this very machine, or its /tmp
    is this one.
    """
    for folder in cleanup.folders(scratch):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            raise LaunchError(
                f"{folder} is there already on {os.uname().nodename}",
                "two hosts of the run are the same machine, under two names, or share that folder",
                "name each machine once, with the sum of its slots: host:4; each host needs a /tmp "
                "of its own",
            ) from None
    os.symlink(node.workdir, f"{scratch}/work")
    script = Path(scratch, "rank")
    script.write_text(rank_script(node, shared))
    script.chmod(0o700)


def rank_script(node: Node, shared: Mapping[str, str]) -> str:
    """Return the text of the script through which this host's ranks start."""
    settings = node.environment
    own = {name: os.environ[name] for name in _OWN if name in os.environ}
    own.update(foreign_variables.of_allocation(os.environ))
    overruled = overruling(os.environ).difference(settings.own)
    given = overruled.union(os.environ)
    ranks = {k: v for k, v in settings.ranks.items() if k not in given}
    values = {**own, **ranks, **environment(settings, shared, os.environ)}
    values["SHANTY_CPUS"] = cpu_numbers()
    missing = [name for name in _OWN if name not in own]
    ours = {*settings.default, *settings.ranks}.difference(settings.own).intersection(values)
    # `sh` cannot export what has another name than its variables: a function of bash, "a.b".
    exports, others = {}, []
    for name, value in values.items():
        exports[name] = f"export {name}={shlex.quote(value)}"
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
            others.append(f"{name}={value}")
            del exports[name]
    setting = ["env", *others] if others else []
    home, work = shlex.quote(values.get("HOME", "/")), shlex.quote(node.workdir)
    lines = [
        "#!/bin/sh",
        "# Starts one rank: WORLD REDIRECTED DECIDED PROGRAM [ARGS]…",
        'export SHANTY_WORLD="$1"',
        f'[ -n "${{SHANTY_PASS-}}" ] || [ "$2" = {NOTHING} ] || export SHANTY_PASS="$2"',
        'decided=",$3,"',
        "shift 3",
        f"unset {' '.join(missing)}" if missing else ":",
        *(words for name, words in exports.items() if name not in ours),
        # The launcher's own options win over our settings.
        *(f'case "$decided" in *,{name},*) ;; *) {exports[name]} ;; esac' for name in sorted(ours)),
        # The launcher passes on what its own host has.
        *(
            f'case "$decided" in *,{name},*) ;; *) unset {name} ;; esac'
            for name in sorted(overruled)
        ),
        # A launcher that does not find its own folder here starts us in the home. Others leave
        # $PWD at a name that is removed with the run.
        "here=$(pwd -P)",
        f'case "$here" in {home}|/) here={work} ;; esac',
        'cd "$here" || exit 69',
        f'exec {shlex.join([*setting, *rank_prefix(node.boot)])} "$@"',
    ]
    return "\n".join(lines) + "\n"
