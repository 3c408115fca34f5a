"""Works out what a user's line asks for, and translates what is alike in both dialects."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import ClassVar, Dict, List, Mapping, NoReturn, Optional, Sequence, Set, Tuple, Union

from shanty.runtime.errors import TranslationError, UsageError
from shanty.runtime.mpi.flavour import Flavour
from shanty.runtime.mpi.hostfiles import (
    FOREIGN_HOSTFILES,
    OWN,
    Named,
    Read,
    dialects_in,
    hosts_in,
    hosts_listed,
    merged,
)
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.mpi.options import OPTIONS
from shanty.runtime.mpi.parameters import AS_OPTIONS, TRUE
from shanty.runtime.mpi.parser import CommandLine, Context, Given
from shanty.runtime.mpi.processes import OUTPUT_FILES
from shanty.runtime.suggestions import nearest

Words = List[str]
_PROGRAM = re.compile(r"^(.*/)?python[^/]*$|^(sh|bash|env)$")

# What Open MPI 4, Open MPI 5 and Hydra call the same part of a machine.
_PARTS = {"package": "socket", "numanode": "numa", "machine": "board", "unit": "hwthread"}
MACHINE_PARTS = frozenset((
    "hwthread", "core", "l1cache", "l2cache", "l3cache", "l4cache", "l5cache", "socket", "numa",
    "board",
))  # fmt: skip
# What ranks are mapped by; "" leaves that open, and Hydra has "rr" and others of its own.
_MAPPINGS = MACHINE_PARTS | {
    "", "slot", "node", "seq", "ppr", "dist", "mindist", "rankfile", "pe-list", "user", "rr",
}  # fmt: skip
_MODIFIERS = frozenset((
    "span", "nolocal", "hwtcpus", "corecpus", "display", "displayalloc", "displaydevel",
    "donotlaunch", "inherit", "noinherit", "ordered", "noresolve",
))  # fmt: skip
_VALUED = re.compile(r"^(file|qfile|pe-list|device)=.+$", re.IGNORECASE)
# The subject of a code in the table of options, where it differs from the code.
_ABOUT = {**dict.fromkeys(("per", "fill-host", "rankfile", "cores"), "map-by"), "hosts": "host"}
_QUALIFIERS = frozenset(("overload-allowed", "no-overload", "if-supported", "ordered", "report"))


@dataclass
class Placement:
    """What one program of a line asks for; a field that it leaves open is None or empty."""

    ranks: Optional[int] = None
    by: str = ""  # the part of the machines over which ranks are dealt out: "slot", "node", "core"
    per_part: Optional[int] = None  # how many each part gets: "ppr:2:node" is 2 and "node"
    fills: bool = False  # a number of Hydra's, which goes round the hosts; Open MPI's is a limit
    modifiers: List[str] = field(default_factory=list)
    cores: Optional[int] = None  # to bind a rank to
    oversubscribe: Optional[bool] = None
    rank_by: str = ""
    bind: str = ""  # the part to bind to, "none", or "user:LIST"
    qualifiers: List[str] = field(default_factory=list)
    hosts: Tuple[Named, ...] = ()
    hosts_fill: bool = False  # a list of Hydra's: a host without a number takes all that come
    hostfile: str = ""
    said: Dict[str, str] = field(default_factory=dict)  # the user's words for "map-by", "host", …

    def take(self, code: str, option: Given) -> bool:
        """Takes an option of that code into account; False when it is not about placement."""
        code, _, argument = code.partition(" ")
        method = getattr(self, "_" + code.replace("-", "_"), None)
        if method is None:
            return False
        self.said[_ABOUT.get(code, code)] = option.said
        method(option, argument)
        return True

    def lacking(self, code: str) -> bool:
        """Returns True while no option has said what an option of that code would say."""
        mapped = self.by or self.per_part or self.cores
        return not {"map-by": mapped, "bind-to": self.bind, "rank-by": self.rank_by}[code]

    # One method a code; the table of options says which codes there are. It gets the option and
    # the rest of the rule, which for some has "{}" for the option's value.

    def _count(self, option: Given, _: str) -> None:
        self.ranks = option.number

    def _per(self, option: Given, part: str) -> None:
        number = option.number if option.values else 1
        self.by, self.per_part, self.fills = part, number, False

    def _fill_host(self, option: Given, _: str) -> None:
        self._per(option, "node")
        self.fills = True

    def _map_by(self, option: Given, template: str) -> None:
        """Takes Open MPI's PART[:MODIFIER…] or ppr:N:PART[:MODIFIER…]."""
        parts = (template or "{}").replace("{}", option.value).split(":")
        if parts[0].lower() == "ppr":
            if len(parts) < 3 or not parts[1].isdigit() or int(parts[1]) < 1:
                _no_sense(option, "ranks per part are written ppr:N:PART", "as ppr:2:node")
            if _part(parts[2]) not in _MAPPINGS:
                why = f"ranks cannot be mapped by {parts[2]}"
                _no_sense(option, why, nearest(parts[2], _MAPPINGS))
            self.by, self.per_part, self.fills = _part(parts[2]), int(parts[1]), False
            del parts[:3]
        else:
            part = _part(parts.pop(0))
            if part not in _MAPPINGS:
                _no_sense(option, f"ranks cannot be mapped by {part}", nearest(part, _MAPPINGS))
            # `-N 2 --map-by slot` asks for two ranks a host all the same.
            if part and not (self.per_part is not None and part in ("slot", "node")):
                self.by, self.per_part = part, None
        for modifier in parts:
            lower = modifier.lower()
            if re.match(r"^pe=[1-9][0-9]*$", lower):
                self.cores = int(lower[3:])
            elif lower in ("oversubscribe", "nooversubscribe"):
                self.oversubscribe = lower == "oversubscribe"
            elif lower in _MODIFIERS or _VALUED.match(modifier):
                self.modifiers.append(modifier.upper() if lower in _MODIFIERS else modifier)
            else:
                known = (*_MODIFIERS, "oversubscribe", "nooversubscribe", "pe=N")
                _no_sense(option, f"{modifier!r} does not modify a mapping", nearest(lower, known))

    def _rank_by(self, option: Given, _: str) -> None:
        self.rank_by = _part(option.value.split(":")[0])
        known = MACHINE_PARTS | {"slot", "node", "fill", "span"}
        if self.rank_by not in known:
            why = f"ranks cannot be ordered by {self.rank_by}"
            _no_sense(option, why, nearest(self.rank_by, known))

    def _bind_to(self, option: Given, template: str) -> None:
        part, *rest = (template or option.value).split(":")
        part = _part(part)
        if part == "user" and rest:
            self.bind = "user:" + rest[0]
            return
        if part == "rr":  # Hydra's round-robin goes over hardware threads
            part = "hwthread"
        if part not in MACHINE_PARTS | {"", "none", "cpu-list", "default"}:
            why = "what to bind to is none, hwthread, core, socket, numa or a cache"
            _no_sense(option, why, nearest(part, (*MACHINE_PARTS, "none")))
        if rest and rest[0].isdigit():
            number = int(rest.pop(0))
            if part == "core" and number > 0:
                self.cores = number
            elif number != 1:
                _no_sense(option, "only cores can be bound to in numbers", "write core:N")
        for qualifier in rest:
            if qualifier.lower() not in _QUALIFIERS:
                _no_sense(option, f"{qualifier!r} is not a qualifier of a binding")
            self.qualifiers.append(qualifier.lower())
        self.bind = "" if part == "default" else part

    def _cores(self, option: Given, _: str) -> None:
        self.cores = option.number

    def _oversubscribe(self, option: Given, answer: str) -> None:
        self.oversubscribe = answer == "yes"

    def _hosts(self, option: Given, _: str) -> None:
        self._host(option, _)
        self.hosts_fill = True

    def _host(self, option: Given, _: str) -> None:
        try:
            hosts = hosts_listed(option.value)
        except UsageError as error:
            _no_sense(option, error.what, "write a list of hosts, as a,b or a:2,b:2")
        if not hosts or any(host.slots == 0 for host in hosts):
            _no_sense(option, "it has to be a list of hosts, as a,b or a:2,b:2")
        self.hosts, self.hosts_fill = hosts, False

    def _rankfile(self, option: Given, _: str) -> None:
        self.by, self.per_part = "rankfile", None
        self.modifiers.append(f"file={option.value}")


def _part(word: str) -> str:
    word = word.strip().lower()
    return _PARTS.get(word, word)


def _no_sense(option: Given, why: str, fix: str = "") -> NoReturn:
    raise TranslationError(f"{option.said} is not valid", why=why, fix=fix)


@dataclass(frozen=True)
class Translation:
    """A user's launcher line in the dialect of the MPI in use."""

    argv: Tuple[str, ...]  # what follows the launcher's path
    environment: Mapping[str, str]  # for the launcher, over whatever is set already
    notes: Tuple[str, ...]  # a sentence for each thing that was mapped, dropped or reinterpreted
    files: Tuple[Tuple[str, str], ...]  # paths and texts, to be written before the start
    reads_input: bool = True  # rank 0 gets the launcher's standard input


@dataclass
class Translator:
    """Translates one line; subclasses know the two dialects.

    An option whose rule is "@CODE" is handled by the method `_do_CODE`, which gets the option,
    the rest of the rule and the placement, and returns the words to write.
    """

    dashes: ClassVar[str] = "--"
    one_tag: ClassVar[bool] = False

    flavour: Flavour
    layout: Layout
    prefix: Tuple[str, ...]
    given: Mapping[str, str]
    read: Read
    converted: str
    known: Optional[Mapping[str, Set[str]]] = None
    environment: Dict[str, str] = field(default_factory=dict)
    notes: List[str] = field(default_factory=list)
    files: Dict[str, str] = field(default_factory=dict)
    single: bool = True
    reads_input: bool = True
    everywhere: Words = field(default_factory=list)
    once: Dict[str, str] = field(default_factory=dict)
    kinds: Dict[str, Words] = field(default_factory=dict)

    def translation(self, line: CommandLine) -> Translation:
        """Returns the line in this dialect; TranslationError where it cannot be translated."""
        self.single = len(line.contexts) == 1
        places = [Placement() for _ in line.contexts]
        written = [self._options(*each) for each in zip(line.contexts, places)]
        programs = []
        for _, program in line.contexts:
            there = program[: len(self.prefix)] == self.prefix
            programs.append([*(() if there else self.prefix), *program])
        argv = tuple(self._assembled(places, written, programs))
        notes = tuple(dict.fromkeys(self.notes))
        files = tuple(self.files.items())
        return Translation(argv, self.environment, notes, files, self.reads_input)

    def _assembled(self, places: List[Placement], own: List[Words], programs: List[Words]) -> Words:
        raise NotImplementedError

    # ------------------------------------------------------------------ of one option

    def _options(self, context: Context, place: Placement) -> Words:
        """Returns the words for a program's own options; those about placement go into `place`."""
        own: Words = []
        for option in context.options:
            target = own if self._is_local(option) else self.everywhere
            target += self._option(option, place)
        for option in context.options:  # flags beat parameters, as with Open MPI itself
            if option.name.endswith("mca"):
                self._parameter_as_option(option, place)
        return own

    def _is_local(self, option: Given) -> bool:
        """Returns True where an option's words are its program's alone, else `everywhere`."""
        raise NotImplementedError

    def _option(self, option: Given, place: Placement) -> Words:
        rule = OPTIONS[option.name].rules[self.flavour.name]
        kind, rest = rule[0], rule[1:]
        if kind == "=":
            return self._kept(option, rest)
        if kind == "-":
            return self._dropped(option, rest)
        if kind == "!":
            self._refuse(option, *rest.split("|"))
        if place.take(rest, option):
            if rest in ("host", "hosts"):
                place.hosts = self._of_the_run(place.hosts, option.said)
            return []
        code, _, argument = rest.partition(" ")
        words: Words = getattr(self, "_do_" + code.replace("-", "_"))(option, argument, place)
        return words

    def _kept(self, option: Given, words: str) -> Words:
        if not words:
            return [self.dashes + option.name, *option.values]
        now = [word.replace("{}", "=".join(option.values)) for word in words.split()]
        if now[0].lstrip("-") != option.spelled.lstrip("-"):
            self._note(f"{option.said} is {' '.join(now)} in {self.flavour.title}")
        return now

    def _note(self, text: str) -> None:
        self.notes.append(text)

    def _dropped(self, option: Given, why: str) -> Words:
        self._note(f"{option.said} is left out: {why}")
        return []

    def _refuse(self, given: Union[Given, str], why: str, fix: str = "") -> NoReturn:
        words = given if isinstance(given, str) else given.said
        what = f"{words} cannot be translated for {self.flavour.title}"
        raise TranslationError(what, why=why, fix=fix)

    # ------------------------------------------------------------- the same in both dialects

    def _parameter_as_option(self, option: Given, place: Placement) -> None:
        """Takes an MCA parameter into account that says what an option says as well."""
        name, value = option.values
        as_option = Given(AS_OPTIONS.get(name, ""), f"{option.spelled} {name}", (value,))
        if as_option.name == "oversubscribe":
            if place.oversubscribe is None and value.lower() in TRUE:
                place.oversubscribe = True
        elif as_option.name == "hostfile":
            if not place.hostfile and not place.hosts:
                place.hostfile = self._hostfile(as_option)
        elif as_option.name and place.lacking(as_option.name):
            place.take(as_option.name, as_option)

    def _do_hostfile(self, option: Given, _: str, place: Placement) -> Words:
        if place.hostfile:
            self._refuse(option, "the line names a host file twice", "leave one of them out")
        place.hostfile = self._hostfile(option)
        return []

    def _do_tags(self, option: Given, words: str, _: Placement) -> Words:
        """Tags every line of output, unless the prefix does."""
        if self.prefix:
            return self._dropped(option, "a run tags every line of its ranks' output itself")
        if self.one_tag and self.once.setdefault("tag", words) != words:
            return self._dropped(
                option, "Hydra puts one tag before a line, and there is one already"
            )
        return self._kept(option, words)

    def _do_output_files(self, option: Given, _: str, __: Placement) -> Words:
        """Has each rank write FOLDER/1/rank.K/stdout, as Open MPI lays them out."""
        folder, _, modifier = option.value.partition(":")
        if not folder:
            self._refuse(option, "it names no folder")
        if modifier:
            self._note(f"{option.said}: {modifier} is left out, a run shows the output as well")
        if self.known is None:  # else each host has its own workspace
            folder = os.path.abspath(folder)
        return self._variable(OUTPUT_FILES, f"{folder}/1")

    def _variable(self, name: str, value: str) -> Words:
        """Returns the words that set a variable for the ranks."""
        raise NotImplementedError

    def _do_output(self, option: Given, known: str, place: Placement) -> Words:
        """Takes Open MPI 5's `--output` apart into options that older ones have as well.

        Where it is known it stays, unless the prefix makes the tags.
        """
        if known and not self.prefix and not set(re.split("[=:,]", option.value)) & _OF_RUNS:
            return self._kept(option, "")
        kinds = option.value.split(":")[0]
        if not kinds:  # only how it is passed on, as in ":raw"
            return self._dropped(option, "output is passed on as it comes")
        words: Words = []
        for part in kinds.split(","):
            key, _, value = part.partition("=")
            name = _OUTPUTS.get(key.lower())
            if name is None:
                self._refuse(option, f"{part!r} is not a kind of output")
            words += self._option(Given(name, option.spelled, (value,) if value else ()), place)
        return words

    def _do_display(self, option: Given, _: str, place: Placement) -> Words:
        """Takes Open MPI 5's `--display` apart into options that older ones have as well."""
        words: Words = []
        for part in option.value.split(":")[0].split(","):
            name = _DISPLAYS.get(part.lower())
            if name is None:
                self._dropped(option, f"{self.flavour.title} cannot show it")
            else:
                words += self._option(Given(name, f"{option.spelled} {part}", ()), place)
        return words

    def _path(self, option: Given) -> str:
        self._note(f"{option.said} is put before PATH")
        return ":".join(filter(None, (option.value, self.given.get("PATH", ""))))

    def _do_stdin_or_preload(self, option: Given, _: str, place: Placement) -> Words:
        """Tells Intel MPI's `-s RANKS` from Open MPI's `-s`, which copies the program."""
        name = "stdin" if option.values else "preload-binary"
        return self._option(Given(name, option.spelled, option.values), place)

    def _do_stdin(self, option: Given, _: str, __: Placement) -> Words:
        """Checks that rank 0 is to get the input: a run passes it there, past the launcher."""
        if option.value == "none":
            self.reads_input = False
        elif option.value != "0":
            self._refuse(
                option,
                "only rank 0 of a run gets the standard input",
                "read it on rank 0 and broadcast it, or read a file",
            )
        return []

    def _do_envlist(self, option: Given, _: str, __: Placement) -> Words:
        """Hands variables on by name; a run does not withhold the others, which Hydra would."""
        self._note(f"{option.said}: the rest of the environment is passed on as well")
        names = dict.fromkeys(name for name in option.value.split(",") if name)
        return [word for name in names for word in self._exported(option, name)]

    def _do_export(self, option: Given, _: str, __: Placement) -> Words:
        """Takes Open MPI's -x NAME, -x NAME=VALUE and -x 'PREFIX*'."""
        return self._exported(option, option.value)

    def _exported(self, option: Given, text: str) -> Words:
        """Returns the words that hand on a variable, or set one where `text` has a value."""
        raise NotImplementedError

    def _is_set(self, option: Given, name: str) -> bool:
        """Returns True where the launcher has the variable `name`; else ranks get none."""
        found = (
            any(each.startswith(name[:-1]) for each in self.given)
            if name[-1:] == "*"
            else (name in self.given)
        )
        if not found:
            self._note(f"{option.said}: {name} is not set here, so ranks do not get it from here")
        return found

    def _do_ft(self, option: Given, known: str, _: Placement) -> Words:
        """Keeps a `--with-ft` where it is known, unless it asks for nothing; 5 rejects that."""
        if option.value.lower() in ("none", "no", "false", "0"):
            return self._dropped(option, "it asks for nothing")
        if not known:
            self._refuse(option, "only Open MPI 5 has it", "run with `--mpi openmpi5`")
        return self._kept(option, "")

    # ------------------------------------------------------------------------ host files

    def _hostfile(self, option: Given) -> str:
        """Returns the path of the host file that an option means, in this dialect; "" for none."""
        path, own = option.value, self.layout.hostfile
        if not path:
            self._note(f"{option.spelled} names no file: the run's own host file is used")
            return own
        if path in (own, *OWN):
            return own
        text = self.read(path)
        if text is None and path in FOREIGN_HOSTFILES:
            self._note(f"{path} does not exist here: the run's own host file is used")
            return own
        if text is None:
            raise TranslationError(
                f"{option.said}: file not found",
                why="a variable before it may be empty" if _PROGRAM.match(path) else "",
                fix=f"leave {option.spelled} out, then the run's own host file is used",
            )
        try:
            hosts = hosts_in(text, path)
        except UsageError as error:
            raise TranslationError(error.what, error.why, error.fix) from None
        if not hosts:
            raise TranslationError(f"{option.said}: the file does not name any host")
        ours = self._of_the_run(hosts, path)
        if self._needs_conversion(text):
            return self._written(self._slots_of(ours), f"the host file {path}")
        return path if ours == hosts else self._written(self._slots_of(ours), "")

    def _of_the_run(self, hosts: Tuple[Named, ...], where: str) -> Tuple[Named, ...]:
        """Returns the hosts by the addresses that the run has for them, each once.

        A launcher could take two names for one host, or one host for two.
        """
        if self.known is None:
            return hosts
        return merged(Named(self._address(host.name, where), host.slots) for host in hosts)

    def _address(self, name: str, where: str) -> str:
        assert self.known is not None
        plain = name.rpartition("@")[2].lower().rstrip(".")
        if plain in ("localhost", "127.0.0.1", "::1"):
            return self.layout.hosts[0].name
        found = self.known.get(plain) or {
            address
            for known, addresses in self.known.items()
            if known.partition(".")[0] == plain and not plain.isdigit()
            for address in addresses
        }
        if len(found) == 1:
            return next(iter(found))
        named = ", ".join(host.name for host in self.layout.hosts)
        if found:
            raise TranslationError(
                f"{where}: {name} may be any of {', '.join(sorted(found))}",
                "several hosts of the run have that name",
                "write the address",
            )
        raise TranslationError(
            f"{where}: {name} is not a host of the run",
            f"the hosts of the run are {named}",
            nearest(plain, self.known, "name it in --on or --hostfile of `shanty run`, too"),
        )

    def _written(self, hosts: Sequence[HostSlots], what: str) -> str:
        """Returns the path of a host file in this dialect, to be written before the start."""
        text = self.flavour.hostfile(hosts)
        for path, other in self.files.items():
            if other == text:
                return path
        path = self.converted + (f".{len(self.files)}" if self.files else "")
        self.files[path] = text
        if what:
            self._note(f"{what} is written for {self.flavour.title} as {path}")
        return path

    def _needs_conversion(self, text: str) -> bool:
        return not dialects_in(text) <= {self.flavour.family, "plain"}

    def _slots_of(self, hosts: Sequence[Named]) -> List[HostSlots]:
        """Returns the hosts with a number of slots each: their own, else the run's, else one."""
        known = {host.name: host.slots for host in self.layout.hosts}
        return [
            HostSlots(h.name, known.get(h.name, 1) if h.slots is None else h.slots) for h in hosts
        ]

    def _own_hosts(self, place: Placement) -> List[HostSlots]:
        """Returns the hosts on which a program's ranks may run, those with slots only."""
        hosts: Sequence[HostSlots] = self.layout.hosts
        if place.hosts and place.hosts_fill:
            hosts = self._slots_of(place.hosts)
        elif place.hosts:  # in Open MPI's list, a host without a number has one slot
            hosts = [HostSlots(h.name, h.count) for h in place.hosts]
        elif place.hostfile and place.hostfile != self.layout.hostfile:
            text = self.files.get(place.hostfile) or self.read(place.hostfile) or ""
            hosts = self._slots_of(hosts_in(text))
        return [host for host in hosts if host.slots > 0]

    def _decided_ranks(self, place: Placement) -> None:
        """Sets the number of ranks that a run has decided, where the line says none."""
        says_otherwise = place.per_part is not None and not place.fills
        if not self.single or place.ranks is not None or says_otherwise:
            return
        if self.layout.ranks is not None:
            place.ranks = self.layout.ranks
            self._note(f"the line names no number of ranks: the run's {place.ranks} are used")


_OUTPUTS = {
    **dict.fromkeys(("tag", "tag-detailed", "tag-fullname", "rank"), "tag-output"),
    "timestamp": "timestamp-output",
    "xml": "xml",
    **dict.fromkeys(("merge", "merge-stderr-to-stdout"), "merge-stderr-to-stdout"),
    **dict.fromkeys(("dir", "directory"), "output-directory"),
    **dict.fromkeys(("file", "filename"), "output-filename"),
}
_OF_RUNS = frozenset(
    ("xml", "merge", "merge-stderr-to-stdout", "dir", "directory", "file", "filename")
)
_DISPLAYS = {
    "map": "display-map",
    "map-devel": "display-devel-map",
    **dict.fromkeys(("allocation", "alloc"), "display-allocation"),
    **dict.fromkeys(("bind", "bindings"), "report-bindings"),
    "topo": "display-topo",
}
