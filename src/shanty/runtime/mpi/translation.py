"""Translates what is alike in Open MPI's and in Hydra's dialect."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import (
    Callable,
    ClassVar,
    Dict,
    Generic,
    List,
    Mapping,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)  # fmt: skip

from shanty.runtime.errors import TranslationError
from shanty.runtime.mpi.flavour import Flavour
from shanty.runtime.mpi.hostfiles import FOREIGN_HOSTFILES, Named, dialects_in, hosts_in
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.mpi.options import OPTIONS
from shanty.runtime.mpi.parameters import AS_OPTIONS, TRUE
from shanty.runtime.mpi.parser import CommandLine, Context, Given
from shanty.runtime.mpi.placement import Placement

Words = List[str]
_PROGRAM = re.compile(r"^(.*/)?python[^/]*$|^(sh|bash|env)$")
AnyFlavour = TypeVar("AnyFlavour", bound=Flavour)


@dataclass(frozen=True)
class Translation:
    """A user's launcher line in the dialect of the MPI in use.

    `argv` follows the launcher's path. `environment` has to be set for the launcher, over
    whatever is set already. `notes` has one sentence for each thing that was mapped, dropped
    or reinterpreted. `files` are (path, text) pairs that have to be written before the start.
    """

    argv: Tuple[str, ...]
    environment: Mapping[str, str]
    notes: Tuple[str, ...]
    files: Tuple[Tuple[str, str], ...]


@dataclass
class Translator(Generic[AnyFlavour]):
    """Translates one line; subclasses know the two dialects.

    An option whose rule is "@CODE" is handled by the method `_do_CODE`, which gets the option,
    the rest of the rule and the placement, and returns the words to write.
    """

    dashes: ClassVar[str] = "--"
    one_tag: ClassVar[bool] = False

    flavour: AnyFlavour
    layout: Layout
    prefix: Tuple[str, ...]
    given: Mapping[str, str]
    read: Callable[[str], Optional[str]]
    converted: str
    environment: Dict[str, str] = field(default_factory=dict)
    notes: List[str] = field(default_factory=list)
    files: Dict[str, str] = field(default_factory=dict)
    single: bool = True
    everywhere: Words = field(default_factory=list)
    once: Dict[str, str] = field(default_factory=dict)
    kinds: Dict[str, Words] = field(default_factory=dict)

    def translation(self, line: CommandLine) -> Translation:
        """Returns the line in this dialect; TranslationError where it cannot be said."""
        self.single = len(line.contexts) == 1
        places = [Placement() for _ in line.contexts]
        written = [self._options(*each) for each in zip(line.contexts, places)]
        programs = []
        for _, program in line.contexts:
            there = program[: len(self.prefix)] == self.prefix
            programs.append([*(() if there else self.prefix), *program])
        argv = tuple(self._assembled(places, written, programs))
        notes = tuple(dict.fromkeys(self.notes))
        return Translation(argv, self.environment, notes, tuple(self.files.items()))

    def _assembled(
        self, places: List[Placement], written: List[Words], programs: List[Words]
    ) -> Words:
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
        raise TranslationError(f"{words} cannot be said to {self.flavour.title}", why=why, fix=fix)

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

    def _do_output(self, option: Given, known: str, place: Placement) -> Words:
        """Takes Open MPI 5's `--output` apart into options that older ones have as well.

        Where it is known it stays, unless the prefix makes the tags.
        """
        if known and not self.prefix:
            return self._kept(option, "")
        kinds = option.value.split(":")[0]
        if not kinds:  # only how it is passed on, as in ":raw"
            return self._dropped(option, "output is passed on as it comes")
        words: Words = []
        for part in kinds.split(","):
            key, _, value = part.partition("=")
            name = _OUTPUTS.get(key.lower())
            if name is None:
                self._refuse(option, f"{part!r} is no kind of output")
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
        if path == own:
            return own
        text = self.read(path)
        if text is None and path in FOREIGN_HOSTFILES:
            self._note(f"{path} does not exist here: the run's own host file is used")
            return own
        if text is None:
            raise TranslationError(
                f"{option.said}: there is no such file",
                why="a variable before it may be empty" if _PROGRAM.match(path) else "",
                fix=f"leave {option.spelled} out, then the run's own host file is used",
            )
        if not self._needs_conversion(text):
            return path
        return self._written(self._slots_of(hosts_in(text)), f"the host file {path}")

    def _written(self, hosts: Sequence[HostSlots], what: str) -> str:
        """Returns the path of a host file in this dialect, to be written before the start."""
        text = self.flavour.hostfile(hosts)
        for path, other in self.files.items():
            if other == text:
                return path
        path = self.converted + (f".{len(self.files)}" if self.files else "")
        self.files[path] = text
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
_DISPLAYS = {
    "map": "display-map",
    "map-devel": "display-devel-map",
    **dict.fromkeys(("allocation", "alloc"), "display-allocation"),
    **dict.fromkeys(("bind", "bindings"), "report-bindings"),
    "topo": "display-topo",
}
