"""Reads a `dmlc-submit` line as DMLC's tracker reads it, and writes it as a line for mpirun."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from shanty.runtime.errors import UsageError
from shanty.runtime.lines.option_table import (
    SWITCH,
    TEXT,
    WHOLE,
    Given,
    Line,
    Option,
    one_of,
    table,
)
from shanty.runtime.localhost import all_here
from shanty.runtime.mpi.hostfiles import FOREIGN_HOSTFILES, Read, hosts_in, read_file
from shanty.runtime.mpi.layout import Layout
from shanty.runtime.mpi.processes import OUTPUT_LINES

NAME = "dmlc-submit"
CLUSTER = "DMLC_SUBMIT_CLUSTER"  # the variable with the cluster, where the line names none
_SIZE = re.compile(r"(\d{1,12}(?:\.\d+)?)\s*([gm])b?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_]\w*")
_SSH_HOST = re.compile(r"((?:[^\s@:]+@)?(?:\[[0-9A-Fa-f:.]+\]|[^\s@:\[\]]+))(?::(\d{1,5}))?")
_SSH_PORT = 22
_SCALE = {"g": 1 << 30, "m": 1 << 20}
_BEGINNING = re.compile(r"\s*(?:\S+\s+\S|[A-Za-z_]\w*=)")  # several words, or a variable
_FOR_A_SHELL = re.compile(r"[$|&;<>*`'\"\\\n]")


CLUSTERS = ("mpi", "local", "ssh", "slurm", "sge", "yarn", "mesos", "kubernetes")
LOG_LEVELS = ("INFO", "DEBUG")

# ---------------------------------------------------------------------------- the options

_SERVER = "-the ranks talk to each other, without a parameter server"
_YARN = "-it is for --cluster yarn"
_KUBERNETES = "-it is for --cluster kubernetes"

# The names are those of dmlc-core's tracker (tracker/dmlc_tracker/opts.py) and the short names of
# its predecessors (dmlc_mpi.py, mxnet's launch.py).
OPTIONS: Mapping[str, Option] = table(
    # How many and where
    ("--cluster", TEXT, "@set cluster", "mpi, local or ssh [$DMLC_SUBMIT_CLUSTER, else mpi]."),
    ("--num-workers -n --nworker", WHOLE, "@count ranks", "Ranks in all."),
    ("--host-file -H --hostfile", TEXT, "@set hostfile",
     "The hosts: mpirun's file; HOST[:PORT] (ssh)."),
    ("--worker-cores", WHOLE, "@count cores", "Cores of each rank."),
    ("--worker-memory", TEXT, "@memory", "Memory that each rank needs: 4g, 500m."),
    ("--worker-memory-mb", WHOLE, "@memory-mb", "The same in MiB."),
    # What ranks get
    ("--env", TEXT, "@env =", "Variables: KEY=VALUE or KEY, several with commas."),
    ("--env-worker", TEXT, "@env :", "Variables: KEY:VALUE, several with commas."),
    ("--files", TEXT, "@files", "A file that must be there (repeatable)."),
    # The job
    ("--jobname", TEXT, "@set name", "The name of the run."),
    ("--log-file", TEXT, "@set log_file", "All output goes there, too."),
    ("--log-level", TEXT, "@log-level", "DEBUG shows the command [INFO]."),
    ("--help -h", SWITCH, "@ask help", "Show this."),
    ("--queue", TEXT, "-a run starts at once and waits in no queue"),
    ("--local-num-attempt", WHOLE, "-a run ends with the first rank that fails; `shanty rerun`"),
    # Without meaning
    ("--num-servers -s --server-nodes / --slurm-server-nodes", WHOLE, _SERVER),
    ("--server-cores / --server-memory-mb", WHOLE, _SERVER),
    ("--server-memory / --env-server", TEXT, _SERVER),
    ("--kube-server-image / --kube-server-template", TEXT, _SERVER),
    ("--host-ip", TEXT, "-the run finds the address itself, and has no tracker"),
    ("--sync-dst-dir", TEXT, "-the workspace is brought to all hosts, to a folder of its own"),
    ("--auto-file-cache", TEXT, "-files keep their names: ranks run in the workspace"),
    ("--archives", TEXT, "-nothing is unpacked: put their content into the workspace"),
    ("--ship-libcxx", TEXT, "-programs find their libraries without it"),
    ("--slurm-worker-nodes", WHOLE, "-it is for --cluster slurm"),
    ("--sge-log-dir", TEXT, "-it is for --cluster sge"),
    ("--mesos-master", TEXT, "-it is for --cluster mesos"),
    ("--hdfs-tempdir / --yarn-app-classpath / --yarn-app-dir", TEXT, _YARN),
    ("--kube-namespace / --kube-worker-image / --kube-worker-template", TEXT, _KUBERNETES),
)  # fmt: skip
VERB = table(
    ("--on", TEXT, "@verb on", "Where, as for `shanty run`: a,b:4 or a group."),
    ("--mpi", TEXT, "@verb mpi", "openmpi (default), openmpi4, mpich, intel, or a prefix."),
    ("--oversubscribe", SWITCH, "@verb oversubscribe", "Allow more ranks than cores."),
    ("--dry-run", SWITCH, "@verb dry-run", "Print what would be run, and run nothing."),
    ("--detach -d", SWITCH, "@verb detach", "Start it and come back at once."),
    ("--quiet -q", SWITCH, "@verb quiet", "Only the ranks' own output."),
    ("--json", SWITCH, "@verb json", "One JSON object a line on stdout."),
)
"""The options of `shanty dmlc-submit` itself."""

_BY_SSH = "name the hosts: --cluster ssh --host-file FILE"
# Why a cluster is refused, and what to do instead.
REFUSED: Dict[str, Tuple[str, str]] = {
    "slurm": (
        "a job goes to Slurm by --on",
        "shanty dmlc-submit --cluster mpi --on slurm …; within an allocation without --on",
    ),
    "sge": (
        "shanty hands no jobs to Grid Engine",
        "within a job name its hosts: shanty dmlc-submit --cluster mpi "
        '--on "$(awk \'{print $1":"$2}\' $PE_HOSTFILE | paste -sd,)" …',
    ),
    "yarn": ("a run goes to hosts by ssh, not to Hadoop's scheduler", _BY_SSH),
    "mesos": ("a run goes to hosts by ssh, not to Mesos", _BY_SSH),
    "kubernetes": (
        "a job goes to Kubernetes by `shanty run`",
        "shanty run --on k8s -n N …; within a pod: --cluster local",
    ),
}

# ------------------------------------------------------------------------- reading a line


@dataclass
class Wanted(Line):
    """A line of dmlc-submit, and what it asks for."""

    program = NAME
    options = OPTIONS

    cluster: str = ""
    ranks: int = 0
    cores: Optional[int] = None  # of each rank
    memory: Optional[int] = None  # bytes of each rank
    hosts: List[str] = field(default_factory=list)  # of a file for ssh, as --on takes them
    each: Optional[int] = None  # ranks on each of them at most; None where their slots decide
    files: List[str] = field(default_factory=list)
    name: str = ""
    log_file: str = ""
    verb: Dict[str, str] = field(default_factory=dict)  # of VERB, without dashes

    def completed(self, given: List[Given]) -> List[Given]:
        """Returns the options with those that DMLC's tracker also finds in the command.

        They are taken only where the line would be incomplete: else they are the command's own.
        """
        if any(option.names[0] == "--num-workers" for _, option, _ in given):
            return given
        long = {name: option for name, option in OPTIONS.items() if name.startswith("--")}
        return [*given, *self.split_command(long)]

    def _verb(self, _: str, value: str, name: str) -> None:
        self.verb[name] = value or "yes"

    def checked(self) -> None:
        """Works out what the options mean together; UsageError where that makes no sense."""
        given = self.cluster or self.environ.get(CLUSTER, "")
        where = "--cluster" if self.cluster else f"${CLUSTER}"
        if given in REFUSED:
            raise UsageError(f"{where} {given} is not supported", *REFUSED[given])
        self.cluster = one_of(where, given or "mpi", CLUSTERS)
        if not self.ranks:
            raise UsageError("--num-workers is missing", fix="say how many: --num-workers 3")
        if self.hostfile and self.verb.get("on"):
            raise UsageError("--host-file and --on both name hosts", fix="leave one out")
        file, self.hostfile = self.hostfile, ""
        if file and self.cluster == "local":
            self.leave_out(f"--host-file {file}", "--cluster local is this machine")
        elif file:
            self._read_hosts(file)
        self.variables = {
            "DMLC_ROLE": "worker",
            "DMLC_NUM_WORKER": str(self.ranks),
            "DMLC_NUM_SERVER": "0",
            "DMLC_JOB_CLUSTER": self.cluster,
            "DMLC_NUM_ATTEMPT": "0",
            **self.variables,
        }
        if self.cores is not None:
            self.variables.setdefault("DMLC_WORKER_CORES", str(self.cores))
        if self.memory is not None:
            self.variables.setdefault("DMLC_WORKER_MEMORY_MB", str(self.memory >> 20))

    def _read_hosts(self, file: str) -> None:
        text = self.read(file)
        if text is None and file in FOREIGN_HOSTFILES:
            return  # the platform's, which means the run's own
        if text is None:
            raise UsageError(f"--host-file {file}: file not found")
        if not any(line.split("#")[0].strip() for line in text.splitlines()):
            raise UsageError(f"--host-file {file} names no host")
        lines = _ssh_lines(text, file) if self.cluster == "ssh" else None
        if lines is None:
            self.hostfile = file
            return
        self.hosts = lines
        if len(set(lines)) == len(lines):  # else a host has as many slots as it has lines
            self.each = -(-self.ranks // len(lines))

    def _memory(self, spelled: str, value: str, _: str) -> None:
        size = _SIZE.fullmatch(value.strip())
        self.memory = int(float(size[1]) * _SCALE[size[2].lower()]) if size else 0
        if not self.memory:
            raise UsageError(f"{spelled} takes a size, not {value!r}", fix="write 4g or 500m")

    def _memory_mb(self, spelled: str, value: str, _: str) -> None:
        self._count(spelled, value, "memory")
        self.memory = int(value) << 20

    def _env(self, spelled: str, value: str, sign: str) -> None:
        for part in _parts(value) if sign == "=" else filter(None, value.split(",")):
            name, found, text = part.partition(sign)
            if not _NAME.fullmatch(name) or (sign == ":" and not found):
                raise UsageError(f"{spelled} {value}: {part!r} is not KEY{sign}VALUE")
            if not found and name not in self.environ:
                raise UsageError(
                    f"{spelled} {name}: variable not set", fix=f"set it, or write {name}=VALUE"
                )
            self.variables[name] = text if found else self.environ[name]

    def _files(self, spelled: str, value: str, _: str) -> None:
        if not os.path.exists(value):
            raise UsageError(f"{spelled} {value}: file not found", fix="put it into the workspace")
        self.files.append(value)

    def _log_level(self, spelled: str, value: str, _: str) -> None:
        self.verbose = one_of(spelled, value, LOG_LEVELS) == "DEBUG"

    def mpirun_line(self, layout: Layout, environ: Mapping[str, str], python: str) -> List[str]:
        """Returns the whole line for mpirun; see `Line`."""
        several = len(layout.hosts) > 1
        words = self._placement(layout)
        if self.name:
            self.leave_out(f"--jobname {self.name}", "the run has its name, `shanty run --name`")
        if self.memory is not None:
            self.leave_out("--worker-memory", "the run is on, `shanty run --memory-per-rank`")
        if self.cores is not None and "OMP_NUM_THREADS" not in environ:
            self.variables.setdefault("OMP_NUM_THREADS", str(self.cores))
        if self.log_file and several:
            self.leave_out(f"--log-file {self.log_file}", "`shanty logs` has what all hosts write")
        elif self.log_file:
            self.variables[OUTPUT_LINES] = os.path.abspath(self.log_file)
        words += self.exported(layout)
        return [*words, "-np", str(self.ranks), *program(self.command)]

    def _placement(self, layout: Layout) -> List[str]:
        """Returns the words that say where the ranks go."""
        first, several = layout.hosts[0].name, len(layout.hosts) > 1
        named = self.hosts or (hosts_of(self.hostfile) if self.hostfile else [])
        if self.cluster == "ssh" and several and named:
            self.leave_out("--host-file", "the run has its hosts")
            return []
        if self.cluster == "ssh" and not all_here(named):
            raise UsageError(
                f"this run is on {first} only, and --host-file names {', '.join(named)}",
                "within a run ranks go to the hosts of the run",
                "use `shanty dmlc-submit --cluster ssh …`, or `shanty run --hostfile FILE …`",
            )
        if self.hostfile:
            return ["--hostfile", self.hostfile]
        # dmlc-submit takes any number on one machine.
        here = self.cluster == "local" if several else self.ranks > layout.slots
        return ["-H", f"{first}:{self.ranks}"] if here else []


def parse(
    words: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    options: Mapping[str, Option] = OPTIONS,
    read: Read = read_file,
) -> Wanted:
    """Returns what the line `words` (without `dmlc-submit` itself) asks for; see `Line.parsed`.

    `environ` has the values of variables that --env names, and the cluster where the line names
    none. UsageError also for a cluster that runs do not go to.
    """
    wanted = Wanted(environ, read)
    wanted.options = options
    return wanted.parsed(words)


def _parts(value: str) -> List[str]:
    """Splits the variables of --env, by commas where all parts are of the same kind."""
    parts = [part for part in value.split(",") if part]
    plain = [part for part in parts if "=" not in part]
    named = all(_NAME.fullmatch(part.partition("=")[0]) for part in parts)
    return parts if named and len(plain) in (0, len(parts)) else [value]


def _ssh_lines(text: str, file: str) -> Optional[List[str]]:
    """Returns the hosts of a file for ssh, HOST[:PORT] each; None for a file for mpirun."""
    words = [line.split("#")[0].strip() for line in text.splitlines()]
    mlx = text.lstrip()[:1] in ("{", "[") and '"' in text
    if mlx or any("=" in word for word in words):
        return None
    hosts: List[str] = []
    for number, word in enumerate(words, 1):
        if not word:
            continue
        found = _SSH_HOST.fullmatch(word)
        port = int(found[2] or _SSH_PORT) if found else 0
        if not found or not 0 < port < 1 << 16:
            raise UsageError(
                f"--host-file {file}, line {number}: {word!r} is not a host",
                fix="a line for --cluster ssh is HOST or HOST:PORT, with the port of its sshd",
            )
        hosts.append(found[1] if port == _SSH_PORT else f"ssh://{found[1]}:{port}")
    return hosts


def hosts_of(file: str) -> List[str]:
    """Returns the names of the hosts in a host file for mpirun."""
    return [named.name for named in hosts_in(read_file(file) or "")]


def program(command: List[str]) -> List[str]:
    """Returns the command of a line as an argv.

    DMLC's tracker joins its words and gives them to a shell in the working folder: so `sh` runs
    what only a shell understands, and the name of a file is that file. In addition `python` runs a
    Python script, and words that a shell would not change keep their spaces.
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
