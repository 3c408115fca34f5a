"""Reads a `dmlc-submit` line as DMLC's tracker reads it, and writes it as one for mpirun.

What mpirun makes of it is up to the translation, as with any line of the user's.
"""

from __future__ import annotations

import difflib
import os
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from shanty.runtime.errors import UsageError
from shanty.runtime.localhost import all_here
from shanty.runtime.mpi.hostfiles import FOREIGN_HOSTFILES, Read, hosts_in, read_file
from shanty.runtime.mpi.layout import Layout
from shanty.runtime.rank import redirect
from shanty.runtime.rank.option_table import SWITCH, TEXT, WHOLE, Given, Line, Option, table

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

_SERVER = "-there is no parameter server, the ranks talk to each other"
_YARN = "-it is for --cluster yarn"
_KUBERNETES = "-it is for --cluster kubernetes"

# The names are those of dmlc-core's tracker (tracker/dmlc_tracker/opts.py) and the short ones of
# its forerunners (dmlc_mpi.py, mxnet's launch.py).
OPTIONS = table(
    # How many and where
    ("--cluster", TEXT, "@set cluster", "mpi, local or ssh [$DMLC_SUBMIT_CLUSTER, else mpi]."),
    ("--num-workers -n --nworker", WHOLE, "@count ranks", "Ranks in all."),
    ("--host-file -H --hostfile", TEXT, "@set hostfile",
     "The hosts: mpirun's file; HOST[:PORT] (ssh)."),
    ("--worker-cores", WHOLE, "@count cores", "Cores of each rank."),
    ("--worker-memory", TEXT, "@memory", "What each rank must find: 4g, 500m."),
    ("--worker-memory-mb", WHOLE, "@memory-mb", "The same in MiB."),
    # What ranks find
    ("--env", TEXT, "@env =", "Variables: KEY=VALUE or KEY, several with commas."),
    ("--env-worker", TEXT, "@env :", "Variables: KEY:VALUE, several with commas."),
    ("--files", TEXT, "@files", "A file that must be there (repeatable)."),
    # The job
    ("--jobname", TEXT, "@set name", "The name of the run."),
    ("--log-file", TEXT, "@set log_file", "All output goes there, too."),
    ("--log-level", TEXT, "@log-level", "DEBUG shows the command [INFO]."),
    ("--help -h", SWITCH, "@switch help", "Show this."),
    ("--queue", TEXT, "-a run starts at once and waits in no queue"),
    ("--local-num-attempt", WHOLE, "-a run ends with the first rank that fails; `shanty rerun`"),
    # Without meaning
    ("--num-servers -s --server-nodes / --slurm-server-nodes", WHOLE, _SERVER),
    ("--server-cores / --server-memory-mb", WHOLE, _SERVER),
    ("--server-memory / --env-server", TEXT, _SERVER),
    ("--kube-server-image / --kube-server-template", TEXT, _SERVER),
    ("--host-ip", TEXT, "-the run finds the address itself, there is no tracker to reach"),
    ("--sync-dst-dir", TEXT, "-the workspace is brought to all hosts, to a folder of its own"),
    ("--auto-file-cache", TEXT, "-files keep their names: ranks run in the workspace"),
    ("--archives", TEXT, "-nothing is unpacked: put into the workspace what is in them"),
    ("--ship-libcxx", TEXT, "-programs find their libraries as they do without it"),
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
"""What `shanty dmlc-submit` takes beside them."""

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
        "shanty starts no pods yet",
        "use --cluster local in one pod, or --cluster ssh --host-file FILE where sshd runs in them",
    ),
}

# ------------------------------------------------------------------------- reading a line


@dataclass
class Wanted(Line):
    """A line, and what it asks for; what it leaves open is None or empty."""

    program = NAME
    options: Mapping[str, Option]
    environ: Mapping[str, str]
    read: Read
    cluster: str = ""
    ranks: int = 0
    cores: Optional[int] = None  # of each rank
    memory: Optional[int] = None  # bytes of each rank
    hostfile: str = ""  # a file for mpirun, but for the run's own
    hosts: List[str] = field(default_factory=list)  # of a file for ssh, as --on takes them
    each: Optional[int] = None  # ranks on each of them at most; None where their slots decide
    variables: Dict[str, str] = field(default_factory=dict)  # for the ranks
    files: List[str] = field(default_factory=list)
    name: str = ""
    log_file: str = ""
    verbose: bool = False
    help: bool = False
    verb: Dict[str, str] = field(default_factory=dict)  # of VERB, without dashes
    left_out: Dict[str, List[str]] = field(default_factory=dict)  # options by the reason
    command: List[str] = field(default_factory=list)

    def leave_out(self, said: str, reason: str) -> None:
        """Takes down that the option `said` has no meaning here."""
        self.left_out.setdefault(reason, []).append(said)

    @property
    def notes(self) -> List[str]:
        """One sentence with all that is left out; none where nothing is."""
        parts = [f"{', '.join(said)} ({reason})" for reason, said in self.left_out.items()]
        return ["left out of this dmlc-submit line: " + "; ".join(parts)] if parts else []

    def from_command(self) -> List[Given]:
        """Takes the options out of the command that DMLC's tracker finds there as well.

        Asked only for a line that would be incomplete without: else they are the command's own.
        """
        given: List[Given] = []
        rest, self.command = deque(self.command), []
        while rest:
            word = rest.popleft()
            name, equals, value = word.partition("=")
            if self.command and name.startswith("--") and name in OPTIONS:
                known = OPTIONS[name]
                given.append(self.valued(name, known, value if equals else None, rest))
            else:
                self.command.append(word)
        return given

    def _leave_out(self, spelled: str, option: Option, value: str) -> None:
        """Takes down that an option has no meaning here; "no servers" has."""
        if option.takes != WHOLE or int(value):
            self.leave_out(f"{spelled} {value}", option.rule[1:])

    def _verb(self, _: str, value: str, name: str) -> None:
        self.verb[name] = value or "yes"

    def finish(self) -> None:
        """Works out what the options mean together."""
        given = self.cluster or self.environ.get(CLUSTER, "")
        where = "--cluster" if self.cluster else f"${CLUSTER}"
        if given in REFUSED:
            raise UsageError(f"{where} {given} is no place for a run", *REFUSED[given])
        if given and given not in CLUSTERS:
            near = difflib.get_close_matches(given.lower(), CLUSTERS, 1)
            fix = f"did you mean {near[0]}?" if near else ""
            raise UsageError(f"{where} takes one of {', '.join(CLUSTERS)}, not {given!r}", "", fix)
        self.cluster = given or "mpi"
        if not self.ranks:
            raise UsageError("--num-workers is missing", fix="say how many: --num-workers 3")
        if not self.command:
            raise UsageError("this dmlc-submit line has no command", fix="give it what to run")
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
            raise UsageError(f"--host-file {file}: there is no such file")
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
                raise UsageError(f"{spelled} {value}: {part!r} is no KEY{sign}VALUE")
            if not found and name not in self.environ:
                raise UsageError(
                    f"{spelled} {name}: there is no such variable", fix=f"set it, or {name}=VALUE"
                )
            self.variables[name] = text if found else self.environ[name]

    def _files(self, spelled: str, value: str, _: str) -> None:
        if not os.path.exists(value):
            raise UsageError(
                f"{spelled} {value}: there is no such file", fix="put it into the workspace"
            )
        self.files.append(value)

    def _log_level(self, spelled: str, value: str, _: str) -> None:
        if value not in LOG_LEVELS:
            raise UsageError(f"{spelled} takes {' or '.join(LOG_LEVELS)}, not {value!r}")
        self.verbose = value == "DEBUG"


def parse(
    words: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    options: Mapping[str, Option] = OPTIONS,
    read: Read = read_file,
) -> Wanted:
    """Returns what the line `words` (without `dmlc-submit` itself) asks for.

    `environ` has the values of variables that --env names and the cluster where the line names
    none; `read` gives the text of a file or None. UsageError names an option that there is none
    of, that lacks its value or has a wrong one, a file that is not there and a cluster that runs
    do not go to.
    """
    wanted = Wanted(options, environ, read)
    given, wanted.command = wanted.split(words)
    if not any(option.names[0] == "--num-workers" for _, option, _ in given):
        given += wanted.from_command()
    for each in given:
        wanted.take(*each)
    if not wanted.help:
        wanted.finish()
    return wanted


def _parts(value: str) -> List[str]:
    """Splits the variables of --env, by commas where all parts are of the same kind."""
    parts = [part for part in value.split(",") if part]
    plain = [part for part in parts if "=" not in part]
    named = all(_NAME.fullmatch(part.partition("=")[0]) for part in parts)
    return parts if named and len(plain) in (0, len(parts)) else [value]


def _ssh_lines(text: str, file: str) -> Optional[List[str]]:
    """Returns the hosts of a file for ssh, HOST[:PORT] each; None for a file of mpirun's."""
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
                f"--host-file {file}, line {number}: {word!r} is no host",
                fix="a line for --cluster ssh is HOST or HOST:PORT, the port that sshd has there",
            )
        hosts.append(found[1] if port == _SSH_PORT else f"ssh://{found[1]}:{port}")
    return hosts


def hosts_of(file: str) -> List[str]:
    """Returns the names of the hosts in a file of mpirun's."""
    return [named.name for named in hosts_in(read_file(file) or "")]


def mpirun_line(wanted: Wanted, layout: Layout, environ: Mapping[str, str]) -> List[str]:
    """Returns the whole line for mpirun, without mpirun itself, amid a run with that layout.

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
        wanted.variables[redirect.LINES] = os.path.abspath(wanted.log_file)
    if several:  # on one host they are inherited
        for name, value in wanted.variables.items():
            words += ["-x", f"{name}={value}"]
    return [*words, "-np", str(wanted.ranks), *program(wanted.command)]


def _placement(wanted: Wanted, layout: Layout) -> List[str]:
    """Returns the words that say where the ranks go."""
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
    # dmlc-submit takes any number on one machine.
    here = wanted.cluster == "local" if several else wanted.ranks > layout.slots
    return ["-H", f"{first}:{wanted.ranks}"] if here else []


def program(command: List[str]) -> List[str]:
    """Returns the command of a line as an argv.

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


def answer(wanted: Wanted, _: str) -> str:
    """Returns what `dmlc-submit --help` prints within a run; "" for a line that starts ranks."""
    rows = [(", ".join(each.names), each.help) for each in dict.fromkeys(OPTIONS.values())]
    lines = [f"  {names}\n      {text}" for names, text in rows]
    text = f"usage: {NAME} [OPTION]… COMMAND [ARGS]…\n\nOptions:\n" + "\n".join(lines)
    return text if wanted.help else ""
