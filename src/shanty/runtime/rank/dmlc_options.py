"""Lists the options of `dmlc-submit`, and what becomes of each in a run.

The names are those of dmlc-core's tracker (tracker/dmlc_tracker/opts.py) and the short ones of
its forerunners (dmlc_mpi.py, mxnet's launch.py). `option_table` explains the rules.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Tuple

from shanty.runtime.rank.option_table import SWITCH, TEXT, WHOLE, Option

CLUSTERS = ("mpi", "local", "ssh", "slurm", "sge", "yarn", "mesos", "kubernetes")
LOG_LEVELS = ("INFO", "DEBUG")


_ALL: List[Option] = []


def _row(names: str, takes: str, rule: str, text: str = "") -> None:
    """Add an option; `text` is its help, where its rule gives no reason."""
    said = text or (f"Left out: {rule[1:]}." if rule else "Left out: it is so in any case.")
    _ALL.append(Option(tuple(names.split()), takes, rule, said))


_SERVER = "-there is no parameter server, the ranks talk to each other"
_YARN = "-it is for --cluster yarn"
_KUBERNETES = "-it is for --cluster kubernetes"

# How many and where
_row("--cluster", TEXT, "@set cluster", "mpi, local or ssh [$DMLC_SUBMIT_CLUSTER, else mpi].")
_row("--num-workers -n --nworker", WHOLE, "@count ranks", "Ranks in all.")
_row(
    "--host-file -H --hostfile",
    TEXT,
    "@set hostfile",
    "The hosts: mpirun's file; HOST[:PORT] (ssh).",
)
_row("--worker-cores", WHOLE, "@count cores", "Cores of each rank.")
_row("--worker-memory", TEXT, "@memory", "What each rank must find: 4g, 500m.")
_row("--worker-memory-mb", WHOLE, "@memory-mb", "The same in MiB.")

# What ranks find
_row("--env", TEXT, "@env", "Variables: KEY=VALUE or KEY, several with commas.")
_row("--env-worker", TEXT, "@env-worker", "Variables: KEY:VALUE, several with commas.")
_row("--files", TEXT, "@files", "A file that must be there (repeatable).")

# The job
_row("--jobname", TEXT, "@set name", "The name of the run.")
_row("--log-file", TEXT, "@set log_file", "All output goes there, too.")
_row("--log-level", TEXT, "@log-level", "DEBUG shows the command [INFO].")
_row("--help -h", SWITCH, "@switch help", "Show this.")
_row("--queue", TEXT, "-a run starts at once and waits in no queue")
_row("--local-num-attempt", WHOLE, "-a run ends with the first rank that fails; `shanty rerun`")

# Without meaning
_row("--num-servers -s --server-nodes", WHOLE, _SERVER)
_row("--server-cores", WHOLE, _SERVER)
_row("--server-memory", TEXT, _SERVER)
_row("--server-memory-mb", WHOLE, _SERVER)
_row("--env-server", TEXT, _SERVER)
_row("--slurm-server-nodes", WHOLE, _SERVER)
_row("--kube-server-image", TEXT, _SERVER)
_row("--kube-server-template", TEXT, _SERVER)
_row("--host-ip", TEXT, "-the run finds the address itself, there is no tracker to reach")
_row("--sync-dst-dir", TEXT, "-the workspace is brought to all hosts, to a folder of its own")
_row("--auto-file-cache", TEXT, "-files keep their names: ranks run in the workspace")
_row("--archives", TEXT, "-nothing is unpacked: put into the workspace what is in them")
_row("--ship-libcxx", TEXT, "-programs find their libraries as they do without it")
_row("--slurm-worker-nodes", WHOLE, "-it is for --cluster slurm")
_row("--sge-log-dir", TEXT, "-it is for --cluster sge")
_row("--mesos-master", TEXT, "-it is for --cluster mesos")
_row("--hdfs-tempdir", TEXT, _YARN)
_row("--yarn-app-classpath", TEXT, _YARN)
_row("--yarn-app-dir", TEXT, _YARN)
_row("--kube-namespace", TEXT, _KUBERNETES)
_row("--kube-worker-image", TEXT, _KUBERNETES)
_row("--kube-worker-template", TEXT, _KUBERNETES)

OPTIONS: Mapping[str, Option] = {name: option for option in _ALL for name in option.names}
"""Each option by each of its names, with their dashes."""

_VERB: List[Option] = [
    Option(("--on",), TEXT, "@verb on", "Where, as for `shanty run`: a,b:4 or a group."),
    Option(
        ("--mpi",), TEXT, "@verb mpi", "openmpi (default), openmpi4, mpich, intel, or a prefix."
    ),
    Option(("--oversubscribe",), SWITCH, "@verb oversubscribe", "Allow more ranks than cores."),
    Option(("--dry-run",), SWITCH, "@verb dry-run", "Print what would be run, and run nothing."),
    Option(("--detach", "-d"), SWITCH, "@verb detach", "Start it and come back at once."),
    Option(("--quiet", "-q"), SWITCH, "@verb quiet", "Only the ranks' own output."),
    Option(("--json",), SWITCH, "@verb json", "One JSON object a line on stdout."),
]
VERB: Mapping[str, Option] = {name: option for option in _VERB for name in option.names}
"""What `shanty dmlc-submit` takes beside them."""

# Why a cluster is refused, and what to do instead.
REFUSED: Dict[str, Tuple[str, str]] = {
    "slurm": (
        "shanty hands no jobs to Slurm yet",
        "within an allocation name its hosts: shanty dmlc-submit --cluster mpi "
        '--on "$(scontrol show hostnames | paste -sd,)" …',
    ),
    "sge": (
        "shanty hands no jobs to Grid Engine",
        "within a job name its hosts: shanty dmlc-submit --cluster mpi "
        '--on "$(awk \'{print $1":"$2}\' $PE_HOSTFILE | paste -sd,)" …',
    ),
    "yarn": (
        "a run goes to hosts by ssh, not to Hadoop's scheduler",
        "name the hosts: --cluster ssh --host-file FILE",
    ),
    "mesos": (
        "a run goes to hosts by ssh, not to Mesos",
        "name the hosts: --cluster ssh --host-file FILE",
    ),
    "kubernetes": (
        "shanty starts no pods yet",
        "use --cluster local in one pod, or --cluster ssh --host-file FILE where sshd runs in them",
    ),
}
