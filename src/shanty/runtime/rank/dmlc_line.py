"""Reads a `dmlc-submit` line as DMLC's tracker reads it."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from shanty.runtime.errors import UsageError
from shanty.runtime.mpi.hostfiles import hosts_in
from shanty.runtime.mpi.hostfiles import read_file
from shanty.runtime.mpi.hostfiles import FOREIGN_HOSTFILES
from shanty.runtime.rank import dmlc_options as known
from shanty.runtime.rank.dmlc_options import OPTIONS
from shanty.runtime.rank.option_table import WHOLE, Given, Line, Option

CLUSTER = "DMLC_SUBMIT_CLUSTER"  # the variable with the cluster, where the line names none
_SIZE = re.compile(r"(\d{1,12}(?:\.\d+)?)\s*([gm])b?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_]\w*")
_SSH_HOST = re.compile(r"((?:[^\s@:]+@)?(?:\[[0-9A-Fa-f:.]+\]|[^\s@:\[\]]+))(?::(\d{1,5}))?")
_SSH_PORT = 22
_SCALE = {"g": 1 << 30, "m": 1 << 20}

Read = Callable[[str], Optional[str]]


@dataclass
class Wanted:
    """What a line asks for.

    `cores` and `memory` (bytes) are for each rank, None where the line leaves them open.
    `hostfile` is a file for mpirun, "" where the line names none or names the run's own;
    `hosts` are those of a file for ssh, as `shanty run --on` takes them, with `each` ranks on
    each host at most, None where their slots decide. `variables` are for the ranks. `verb` has
    what `shanty dmlc-submit` takes beside, without dashes. `left_out` are the options without
    meaning, by reason.
    """

    cluster: str = "mpi"
    ranks: int = 0
    cores: Optional[int] = None
    memory: Optional[int] = None
    hostfile: str = ""
    hosts: List[str] = field(default_factory=list)
    each: Optional[int] = None
    variables: Dict[str, str] = field(default_factory=dict)
    files: List[str] = field(default_factory=list)
    name: str = ""
    log_file: str = ""
    verbose: bool = False
    help: bool = False
    verb: Dict[str, str] = field(default_factory=dict)
    left_out: Dict[str, List[str]] = field(default_factory=dict)
    command: List[str] = field(default_factory=list)

    def leave_out(self, said: str, reason: str) -> None:
        """Take down that the option `said` has no meaning here."""
        self.left_out.setdefault(reason, []).append(said)

    @property
    def note(self) -> str:
        """One sentence about all that is left out; "" where nothing is."""
        if not self.left_out:
            return ""
        parts = [f"{', '.join(said)} ({reason})" for reason, said in self.left_out.items()]
        return "left out of this dmlc-submit line: " + "; ".join(parts)


def parse(
    words: Sequence[str],
    environ: Mapping[str, str],
    options: Mapping[str, Option] = OPTIONS,
    read: Read = read_file,
) -> Wanted:
    """What the line `words` (without `dmlc-submit` itself) asks for.

    `environ` has the values of variables that --env names and the cluster where the line names
    none; `read` gives the text of a file or None. UsageError names an option that there is none
    of, that lacks its value or has a wrong one, a file that is not there and a cluster that runs
    do not go to.
    """
    line = Line("dmlc-submit", options)
    given, command = line.split(words)
    if not any(option.names[0] == "--num-workers" for _, option, _ in given):
        later, command = _from_command(command, line)
        given += later
    wanted = Wanted(command=command)
    maker = _Maker(wanted, environ, read)
    for each in given:
        maker.take(*each)
    if not wanted.help:
        maker.finish()
    return wanted


def _from_command(words: Sequence[str], line: Line) -> Tuple[List[Given], List[str]]:
    """The options that stand after the command, where DMLC's tracker takes them as well.

    Asked only for a line that would be incomplete without: else they are the command's own.
    """
    given: List[Given] = []
    rest: List[str] = []
    index = 0
    while index < len(words):
        name, equals, value = words[index].partition("=")
        if index and name.startswith("--") and name in OPTIONS:
            after = words[index + 1 :]
            used, one = line.valued(name, OPTIONS[name], value if equals else None, after)
            given.append(one)
            index += used
        else:
            rest.append(words[index])
        index += 1
    return given, rest


class _Maker:
    """Puts what the options say into a `Wanted`; a method for each code of the table."""

    def __init__(self, wanted: Wanted, environ: Mapping[str, str], read: Read) -> None:
        self.wanted = wanted
        self.environ = environ
        self.read = read
        self.cluster = ""
        self.hostfile = ""

    def take(self, spelled: str, option: Option, value: str) -> None:
        """Take one option into account."""
        kind, rest = option.rule[:1], option.rule[1:]
        if rest == "verb":
            self.wanted.verb[option.names[0].lstrip("-")] = value or "yes"
        elif kind == "-" and not (option.takes == WHOLE and int(value) == 0):
            self.wanted.leave_out(f"{spelled} {value}", rest)
        elif kind == "@":
            getattr(self, "_" + rest.replace("-", "_"))(spelled, value)

    def finish(self) -> None:
        """What the options mean together."""
        wanted = self.wanted
        given = self.cluster or self.environ.get(CLUSTER, "")
        wanted.cluster = _cluster(given, "--cluster" if self.cluster else f"${CLUSTER}")
        if not wanted.ranks:
            raise UsageError("--num-workers is missing", fix="say how many: --num-workers 3")
        if not wanted.command:
            raise UsageError("this dmlc-submit line has no command", fix="give it what to run")
        if self.hostfile and wanted.verb.get("on"):
            raise UsageError("--host-file and --on both name hosts", fix="leave one out")
        if self.hostfile and wanted.cluster == "local":
            wanted.leave_out(f"--host-file {self.hostfile}", "--cluster local is this machine")
        elif self.hostfile:
            self._read_hosts()
        wanted.variables = {
            "DMLC_ROLE": "worker",
            "DMLC_NUM_WORKER": str(wanted.ranks),
            "DMLC_NUM_SERVER": "0",
            "DMLC_JOB_CLUSTER": wanted.cluster,
            "DMLC_NUM_ATTEMPT": "0",
            **wanted.variables,
        }
        if wanted.cores is not None:
            wanted.variables.setdefault("DMLC_WORKER_CORES", str(wanted.cores))
        if wanted.memory is not None:
            wanted.variables.setdefault("DMLC_WORKER_MEMORY_MB", str(wanted.memory >> 20))

    def _read_hosts(self) -> None:
        wanted, text = self.wanted, self.read(self.hostfile)
        if text is None and self.hostfile in FOREIGN_HOSTFILES:
            return  # the platform's, which means the run's own
        if text is None:
            raise UsageError(f"--host-file {self.hostfile}: there is no such file")
        if not any(line.split("#")[0].strip() for line in text.splitlines()):
            raise UsageError(f"--host-file {self.hostfile} names no host")
        lines = _ssh_lines(text, self.hostfile) if wanted.cluster == "ssh" else None
        if lines is None:
            wanted.hostfile = self.hostfile
            return
        wanted.hosts = lines
        if len(set(lines)) == len(lines):  # else a host has as many slots as it has lines
            wanted.each = -(-wanted.ranks // len(lines))

    def _cluster(self, _: str, value: str) -> None:
        self.cluster = value

    def _count(self, spelled: str, value: str) -> None:
        self.wanted.ranks = _positive(spelled, value)

    def _cores(self, spelled: str, value: str) -> None:
        self.wanted.cores = _positive(spelled, value)

    def _memory(self, spelled: str, value: str) -> None:
        size = _SIZE.fullmatch(value.strip())
        number = int(float(size[1]) * _SCALE[size[2].lower()]) if size else 0
        if not number:
            raise UsageError(f"{spelled} takes a size, not {value!r}", fix="write 4g or 500m")
        self.wanted.memory = number

    def _memory_mb(self, spelled: str, value: str) -> None:
        self.wanted.memory = _positive(spelled, value) << 20

    def _hostfile(self, _: str, value: str) -> None:
        self.hostfile = value

    def _env(self, spelled: str, value: str) -> None:
        for part in _parts(value):
            name, equals, text = part.partition("=")
            if not _NAME.fullmatch(name):
                raise UsageError(f"{spelled} {value}: {part!r} is no KEY=VALUE")
            if not equals and name not in self.environ:
                raise UsageError(
                    f"{spelled} {name}: there is no such variable", fix=f"set it, or {name}=VALUE"
                )
            self.wanted.variables[name] = text if equals else self.environ[name]

    def _env_worker(self, spelled: str, value: str) -> None:
        for part in filter(None, value.split(",")):
            name, colon, text = part.partition(":")
            if not colon or not _NAME.fullmatch(name):
                raise UsageError(f"{spelled} {value}: {part!r} is no KEY:VALUE")
            self.wanted.variables[name] = text

    def _files(self, spelled: str, value: str) -> None:
        if not os.path.exists(value):
            raise UsageError(
                f"{spelled} {value}: there is no such file", fix="put it into the workspace"
            )
        self.wanted.files.append(value)

    def _name(self, _: str, value: str) -> None:
        self.wanted.name = value

    def _log_file(self, _: str, value: str) -> None:
        self.wanted.log_file = value

    def _log_level(self, spelled: str, value: str) -> None:
        if value not in known.LOG_LEVELS:
            raise UsageError(f"{spelled} takes {' or '.join(known.LOG_LEVELS)}, not {value!r}")
        self.wanted.verbose = value == "DEBUG"

    def _help(self, *_: str) -> None:
        self.wanted.help = True


def _cluster(given: str, where: str) -> str:
    """The cluster, mpi where none is given; UsageError for one that runs do not go to."""
    if given in known.REFUSED:
        why, fix = known.REFUSED[given]
        raise UsageError(f"{where} {given} is no place for a run", why, fix)
    if given and given not in known.CLUSTERS:
        near = difflib.get_close_matches(given.lower(), known.CLUSTERS, 1)
        fix = f"did you mean {near[0]}?" if near else ""
        raise UsageError(
            f"{where} takes one of {', '.join(known.CLUSTERS)}, not {given!r}", "", fix
        )
    return given or "mpi"


def _positive(spelled: str, value: str) -> int:
    if int(value) < 1:
        raise UsageError(f"{spelled} must be at least 1, not {value}")
    return int(value)


def _parts(value: str) -> List[str]:
    """The variables of --env: commas part them where each part is of one and the same kind."""
    parts = [part for part in value.split(",") if part]
    plain = [part for part in parts if "=" not in part]
    named = all(_NAME.fullmatch(part.partition("=")[0]) for part in parts)
    return parts if named and len(plain) in (0, len(parts)) else [value]


def _ssh_lines(text: str, file: str) -> Optional[List[str]]:
    """The hosts of a file for ssh, HOST[:PORT] each; None for a file of mpirun's."""
    if text.lstrip()[:1] in ("{", "[") and '"' in text:
        return None  # MLX's
    if any("=" in line.split("#")[0] for line in text.splitlines()):
        return None
    hosts: List[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        word = line.split("#")[0].strip()
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


def hosts_of(file: str, read: Read = read_file) -> List[str]:
    """The names of the hosts in a file of mpirun's."""
    return [named.name for named in hosts_in(read(file) or "")]
