"""Reads a `horovodrun` line as Horovod 0.28 reads it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Callable, Dict, List, NoReturn, Optional, Sequence, Set

from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.mpi.hostfiles import read_file
from shanty.runtime.rank import horovodrun_options as known
from shanty.runtime.rank.horovodrun_options import IN_FILE, OPTIONS
from shanty.runtime.rank.option_table import Given, Line, Option, check
from shanty.runtime.rank.settings_file import read_settings

_HOSTS = re.compile(r"^[\w.-]+(:[0-9]+)?(,[\w.-]+(:[0-9]+)?)*$")
_DISCOVERY = 60  # seconds that a script has for naming the hosts

Run = Callable[[str], str]


@dataclass
class Wanted:
    """What a line asks for.

    `variables` are for the ranks; `launcher` are words for mpirun; `ssh` are options of ssh(1).
    `ranks` None, `hosts` and `hostfile` "": the line leaves it open. `asks` is "version",
    "build" or "help" where the line starts nothing. `notes` has a sentence for each option that
    is left out. `start_timeout` is in seconds.
    """

    ranks: Optional[int] = None
    hosts: str = ""
    hostfile: str = ""
    variables: Dict[str, str] = field(default_factory=dict)
    launcher: List[str] = field(default_factory=list)
    ssh: List[str] = field(default_factory=list)
    interfaces: List[str] = field(default_factory=list)
    output: str = ""
    verbose: bool = False
    start_timeout: Optional[int] = None
    asks: str = ""
    notes: List[str] = field(default_factory=list)
    command: List[str] = field(default_factory=list)


def parse(
    words: Sequence[str],
    read: Callable[[str], Optional[str]] = read_file,
    run: Optional[Run] = None,
) -> Wanted:
    """What the line `words` (without `horovodrun` itself) asks for.

    `read` gives the text of a file or None, `run` the output of the script that names the hosts.
    UsageError names an option that there is none of, that lacks its value, or that is refused.
    """
    given, command = Line("horovodrun", OPTIONS).split(words)
    wanted = Wanted(command=command)
    maker = _Maker(wanted)
    decided = _decided(given)
    files = [value for _, option, value in given if option.rule == "@config"]
    for each in [one for file in files for one in _from_file(file, read)]:
        if not decided.intersection(each[1].names):
            maker.take(*each)
    for each in given:
        maker.take(*each)
    maker.finish(run or _output_of)
    return wanted


def _decided(given: Sequence[Given]) -> Set[str]:
    """The names of the options on the line and of their opposites: they win over a file."""
    names = {name for _, option, _ in given for name in option.names}
    for sides in IN_FILE.values():
        if names.intersection(sides):
            names.update(sides)
    return names


def _from_file(path: str, read: Callable[[str], Optional[str]]) -> List[Given]:
    """The options that a configuration file stands for."""
    text = read(path)
    if text is None:
        raise NotFoundError(f"--config-file {path}: there is no such file")
    found: List[Given] = []
    for key, value in read_settings(text, path).items():
        where = f"{key} in {path}"
        if key == "controller" and str(value).lower() in ("mpi", "gloo"):
            found.append((where, OPTIONS[f"--{str(value).lower()}"], ""))
            continue
        sides = IN_FILE.get(key)
        if sides is None:
            raise UsageError(
                f"{where}: horovodrun has no such setting",
                fix="the settings are " + ", ".join(["controller", *IN_FILE]),
            )
        if value is None:
            continue
        option = OPTIONS[sides[0]]
        if len(sides) == 2:
            found.append((where, OPTIONS[sides[0 if value else 1]], ""))
        else:
            check(where, option, [str(value)])
            found.append((where, option, str(value)))
    return found


class _Maker:
    """Puts what the options say into a `Wanted`; a method for each code of the table."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.script = ""
        self.slots = 0
        self.placed = ""  # the option that said which hosts

    def take(self, spelled: str, option: Option, value: str) -> None:
        """Take one option into account."""
        kind, rest = option.rule[:1], option.rule[1:]
        if kind == "=":
            name, _, fixed = rest.partition(" ")
            scaled = str(int(value) * option.scale) if option.scale != 1 else value
            self.wanted.variables[name] = fixed or scaled
        elif kind == "-":
            said = f"{spelled} {value}".rstrip()
            self.wanted.notes.append(f"{said} of horovodrun is left out: {rest}")
        elif kind == "!":
            why, _, fix = rest.partition("|")
            raise UsageError(f"{spelled} of horovodrun has no counterpart here", why, fix)
        elif kind == "@":
            code, _, argument = rest.partition(" ")
            getattr(self, "_" + code.replace("-", "_"))(spelled, value, argument)

    def finish(self, run: Run) -> None:
        """What the options mean together."""
        wanted = self.wanted
        if self.script:
            wanted.hosts = _named(self.script, run(self.script), self.slots)
        elif self.slots:
            wanted.notes.append("--slots-per-host is left out: hosts have the slots that they name")
        if "HOROVOD_TIMELINE" not in wanted.variables:
            wanted.variables.pop("HOROVOD_TIMELINE_MARK_CYCLES", None)
        if not wanted.asks and not wanted.command:
            raise UsageError("this horovodrun line has no command", fix="give it what to run")

    def _count(self, spelled: str, value: str, _: str) -> None:
        if int(value) < 1:
            raise UsageError(f"{spelled} must be at least 1, not {value}")
        self.wanted.ranks = int(value)

    def _on(self, spelled: str) -> None:
        if self.placed:
            raise UsageError(f"{self.placed} and {spelled} both name hosts", fix="leave one out")
        self.placed = spelled

    def _hosts(self, spelled: str, value: str, _: str) -> None:
        self._on(spelled)
        if not _HOSTS.match(value):
            raise UsageError(
                f"{spelled} {value} is no list of hosts", fix="write it as worker-0:2,worker-1:2"
            )
        self.wanted.hosts = value

    def _hostfile(self, spelled: str, value: str, _: str) -> None:
        self._on(spelled)
        self.wanted.hostfile = value

    def _discover(self, spelled: str, value: str, _: str) -> None:
        self._on(spelled)
        self.script = value
        self.wanted.notes.append(f"{spelled} {value} is asked once, at the start: {_fixed()}")

    def _slots(self, _: str, value: str, __: str) -> None:
        self.slots = int(value)

    def _interfaces(self, _: str, value: str, __: str) -> None:
        self.wanted.interfaces += [name for name in value.split(",") if name]
        self.wanted.variables["NCCL_SOCKET_IFNAME"] = ",".join(self.wanted.interfaces)

    def _ssh(self, _: str, value: str, letter: str) -> None:
        self.wanted.ssh += [letter, value]

    def _ask(self, _: str, __: str, what: str) -> None:
        self.wanted.asks = self.wanted.asks or what

    def _start_timeout(self, _: str, value: str, __: str) -> None:
        self.wanted.start_timeout = int(value)

    def _verbose(self, *_: str) -> None:
        self.wanted.verbose = True

    def _output(self, _: str, value: str, __: str) -> None:
        self.wanted.output = value

    def _config(self, *_: str) -> None:
        """Its settings have been taken before."""

    def _words(self, _: str, __: str, words: str) -> None:
        self.wanted.launcher += words.split()

    def _mpi_args(self, spelled: str, value: str, _: str) -> None:
        try:
            self.wanted.launcher += shlex.split(value)
        except ValueError as error:
            raise UsageError(f"{spelled} {value}: {error}") from None

    def _log_level(self, spelled: str, value: str, _: str) -> None:
        if value not in known.LOG_LEVELS:
            raise UsageError(f"{spelled} takes one of {', '.join(known.LOG_LEVELS)}, not {value!r}")
        self.wanted.variables["HOROVOD_LOG_LEVEL"] = value

    def _tcp(self, *_: str) -> None:
        self.wanted.variables["NCCL_IB_DISABLE"] = "1"
        self.wanted.launcher += ["-mca", "pml", "ob1", "-mca", "btl", "self,sm,tcp"]


def _fixed() -> str:
    return OPTIONS["--min-np"].rule[1:]


def _named(script: str, output: str, slots: int) -> str:
    """The hosts that a script has printed, one a line, as HOST or HOST:SLOTS."""
    hosts: List[str] = []
    for line in dict.fromkeys(output.split()):
        hosts.append(line if ":" in line or not slots else f"{line}:{slots}")
    text = ",".join(hosts)
    if not _HOSTS.match(text):
        raise UsageError(f"{script} named no hosts: {output.strip()[:200]!r}")
    return text


def _output_of(script: str) -> str:
    """What the script that names the hosts prints; UsageError where it fails."""
    import subprocess  # most lines need none

    try:
        done = subprocess.run(
            shlex.split(script),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_DISCOVERY,
            check=False,
        )
    except subprocess.TimeoutExpired:
        _failed(script, f"it has named no hosts within {_DISCOVERY} s")
    except (OSError, ValueError) as error:
        _failed(script, str(error))
    if done.returncode:
        _failed(script, f"it ended with {done.returncode}")
    return done.stdout.decode(errors="replace")


def _failed(script: str, why: str) -> NoReturn:
    raise UsageError(f"--host-discovery-script {script} failed", why)
