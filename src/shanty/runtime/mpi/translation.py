"""Translates what is alike in Open MPI's and in Hydra's dialect."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import (
    Callable,
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
from shanty.runtime.mpi.hostfiles import (
    FOREIGN_HOSTFILES,
    Named,
    dialect_of,
    hosts_in,
    mixes_dialects,
)
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.mpi.mca import AS_OPTIONS, OVERSUBSCRIBE, TRUE
from shanty.runtime.mpi.options import OPTIONS
from shanty.runtime.mpi.parser import CommandLine, Context, Given, said
from shanty.runtime.mpi.placement import Placement

Words = List[str]
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


class Translator(Generic[AnyFlavour]):
    """Translates one line; subclasses know the two dialects.

    An option whose rule is "@CODE" is handled by the method `do_CODE`, which gets the option,
    the rest of the rule and the placement, and returns the words to write.
    """

    dashes = "--"
    one_tag = False

    def __init__(
        self,
        flavour: AnyFlavour,
        layout: Layout,
        prefix: Sequence[str],
        given: Mapping[str, str],
        read: Callable[[str], Optional[str]],
        converted: str,
    ) -> None:
        self.flavour = flavour
        self.layout = layout
        self.prefix = tuple(prefix)
        self.given = given
        self.read = read
        self.converted = converted
        self.environment: Dict[str, str] = {}
        self.notes: List[str] = []
        self.files: Dict[str, str] = {}
        self.single = True
        self.everywhere: Words = []
        self.once: Dict[str, str] = {}
        self.kinds: Dict[str, Words] = {}

    def translation(self, line: CommandLine) -> Translation:
        """Returns the line in this dialect; TranslationError where it cannot be said."""
        self.single = len(line.contexts) == 1
        places = [Placement() for _ in line.contexts]
        written = [self.options(*each) for each in zip(line.contexts, places)]
        programs = [self.started(context.program) for context in line.contexts]
        argv = self.assembled(places, written, programs)
        return Translation(
            tuple(argv),
            self.environment,
            tuple(dict.fromkeys(self.notes)),
            tuple(self.files.items()),
        )

    def assembled(
        self, places: List[Placement], written: List[Words], programs: List[Words]
    ) -> Words:
        """Returns the words of all programs in order, with ":" between them."""
        raise NotImplementedError

    def started(self, program: Tuple[str, ...]) -> Words:
        """Returns the program with the prefix in front, unless it is there already."""
        there = program[: len(self.prefix)] == self.prefix
        return [*(() if there else self.prefix), *program]

    # ------------------------------------------------------------------ of one option

    def options(self, context: Context, place: Placement) -> Words:
        """Returns the words for a program's own options; those about placement go into `place`."""
        own: Words = []
        for option in context.options:
            target = own if self.is_local(option) else self.everywhere
            target += self.option(option, place)
        for option in context.options:  # flags beat parameters, as with Open MPI itself
            if option.name.endswith("mca"):
                self.parameter_as_option(option, place)
        return own

    def is_local(self, option: Given) -> bool:
        """Returns True where an option's words are its program's alone, else `everywhere`."""
        raise NotImplementedError

    def option(self, option: Given, place: Placement) -> Words:
        """Returns the words for one option, by its entry in the table."""
        rule = OPTIONS[option.name].rules[self.flavour.name]
        kind, rest = rule[0], rule[1:]
        if kind == "=":
            return self.kept(option, rest)
        if kind == "-":
            self.dropped(option, rest)
            return []
        if kind == "!":
            self.refuse(option, *rest.split("|"))
        if place.take(rest, option):
            return []
        code, _, argument = rest.partition(" ")
        words: Words = getattr(self, "do_" + code.replace("-", "_"))(option, argument, place)
        return words

    def kept(self, option: Given, words: str) -> Words:
        """Returns the same option, or what the table has instead of it."""
        if not words:
            return [self.dashes + option.name, *option.values]
        now = [word.replace("{}", option.value) for word in words.split()]
        if now[0].lstrip("-") != option.spelled.lstrip("-"):
            self.note(f"{said(option)} is {' '.join(now)} in {self.flavour.title}")
        return now

    def note(self, text: str) -> None:
        """Adds a sentence to the notes."""
        self.notes.append(text)

    def dropped(self, option: Given, why: str) -> None:
        """Notes that an option is left out."""
        self.note(f"{said(option)} is left out: {why}")

    def refuse(self, given: Union[Given, str], why: str, fix: str = "") -> NoReturn:
        """Raises the TranslationError that quotes the option, or other words of the user's."""
        words = given if isinstance(given, str) else said(given)
        raise TranslationError(f"{words} cannot be said to {self.flavour.title}", why=why, fix=fix)

    # ------------------------------------------------------------- the same in both dialects

    def parameter_as_option(self, option: Given, place: Placement) -> None:
        """Takes an MCA parameter into account that says what an option says as well."""
        name, value = option.values
        same = AS_OPTIONS.get(name)
        if name == OVERSUBSCRIBE and place.oversubscribe is None and value.lower() in TRUE:
            place.oversubscribe = True
        elif same == "hostfile":
            if not place.hostfile and not place.hosts:
                place.hostfile = self.hostfile(Given(same, f"{option.spelled} {name}", (value,)))
        elif same is not None and place.lacking(same):
            place.take(same, Given(same, f"{option.spelled} {name}", (value,)))

    def do_hostfile(self, option: Given, _: str, place: Placement) -> Words:
        """Finds out which file is meant and converts it where that is needed."""
        if place.hostfile:
            self.refuse(option, "the line names a host file twice", "leave one of them out")
        place.hostfile = self.hostfile(option)
        return []

    def do_tags(self, option: Given, words: str, _: Placement) -> Words:
        """Tags every line of output, unless the prefix does."""
        if self.prefix:
            self.dropped(option, "a run tags every line of its ranks' output itself")
            return []
        if self.one_tag and self.once.setdefault("tag", words) != words:
            self.dropped(option, "Hydra puts one tag before a line, and there is one already")
            return []
        return self.kept(option, words)

    def do_own_output(self, option: Given, _: str, place: Placement) -> Words:
        """Keeps Open MPI 5's `--output`, but without tags where the prefix makes them."""
        return self.do_output(option, _, place) if self.prefix else self.kept(option, "")

    def do_output(self, option: Given, _: str, place: Placement) -> Words:
        """Takes Open MPI 5's `--output` apart into options that older ones have as well."""
        words: Words = []
        kinds = option.value.split(":")[0]
        if not kinds:  # only how it is passed on, as in ":raw"
            self.dropped(option, "output is passed on as it comes")
            return []
        for part in kinds.split(","):
            key, _, value = part.partition("=")
            names = _OUTPUTS.get(key.lower())
            if names is None:
                self.refuse(option, f"{part!r} is no kind of output")
            words += self.option(Given(names, option.spelled, (value,) if value else ()), place)
        return words

    def do_display(self, option: Given, _: str, place: Placement) -> Words:
        """Takes Open MPI 5's `--display` apart into options that older ones have as well."""
        words: Words = []
        for part in option.value.split(":")[0].split(","):
            name = _DISPLAYS.get(part.lower())
            if name is None:
                self.dropped(option, f"{self.flavour.title} cannot show it")
            else:
                words += self.option(Given(name, f"{option.spelled} {part}", ()), place)
        return words

    def do_stdin_or_preload(self, option: Given, _: str, place: Placement) -> Words:
        """Tells Intel MPI's `-s RANKS` from Open MPI's `-s`, which copies the program."""
        name = "stdin" if option.values else "preload-binary"
        return self.option(Given(name, option.spelled, option.values), place)

    def do_ft(self, option: Given, _: str, place: Placement) -> Words:
        """Keeps a `--with-ft`, but not one that asks for nothing, which Open MPI 5 rejects."""
        asks = not _asks_nothing(option)
        return self.kept(option, "") if asks else self.do_no_ft(option, _, place)

    def do_no_ft(self, option: Given, _: str, place: Placement) -> Words:
        """Drops a `--with-ft none` and refuses any other."""
        if not _asks_nothing(option):
            self.refuse(option, "only Open MPI 5 has it", "run with `--mpi openmpi5`")
        self.dropped(option, "it asks for nothing")
        return []

    # ------------------------------------------------------------------------ host files

    def hostfile(self, option: Given) -> str:
        """Returns the path of the host file that an option means, in this dialect; "" for none."""
        path, own = option.value, self.layout.hostfile
        if not path:
            self.note(f"{option.spelled} names no file: the run's own host file is used")
            return own
        if path == own:
            return own
        text = self.read(path)
        if text is None and path in FOREIGN_HOSTFILES:
            self.note(f"{path} does not exist here: the run's own host file is used")
            return own
        if text is None:
            raise TranslationError(
                f"{said(option)}: there is no such file",
                why="a variable before it may be empty" if _like_a_program(path) else "",
                fix=f"leave {option.spelled} out, then the run's own host file is used",
            )
        if not self.needs_conversion(text):
            return path
        return self.written(self.slots_of(hosts_in(text)), f"the host file {path}")

    def written(self, hosts: Sequence[HostSlots], what: str) -> str:
        """Returns the path of a host file in this dialect, to be written before the start."""
        text = self.flavour.hostfile(hosts)
        same = [path for path, other in self.files.items() if other == text]
        if same:
            return same[0]
        path = self.converted + (f".{len(self.files)}" if self.files else "")
        self.files[path] = text
        self.note(f"{what} is written for {self.flavour.title} as {path}")
        return path

    def needs_conversion(self, text: str) -> bool:
        """Returns True when a host file is not in this dialect."""
        foreign = dialect_of(text) not in (self.flavour.family, "plain")
        return foreign or mixes_dialects(text)

    def slots_of(self, hosts: Sequence[Named]) -> List[HostSlots]:
        """Returns the hosts with a number of slots each: their own, else the run's, else one."""
        known = {host.name: host.slots for host in self.layout.hosts}
        return [
            HostSlots(h.name, known.get(h.name, 1) if h.slots is None else h.slots) for h in hosts
        ]

    def own_hosts(self, place: Placement) -> List[HostSlots]:
        """Returns the hosts on which a program's ranks may run, those with slots only."""
        hosts: Sequence[HostSlots] = self.layout.hosts
        if place.hosts and place.hosts_fill:
            hosts = self.slots_of(place.hosts)
        elif place.hosts:  # in Open MPI's list, a host without a number has one slot
            hosts = [HostSlots(h.name, h.count) for h in place.hosts]
        elif place.hostfile and place.hostfile != self.layout.hostfile:
            text = self.files.get(place.hostfile) or self.read(place.hostfile) or ""
            hosts = self.slots_of(hosts_in(text))
        return [host for host in hosts if host.slots > 0]

    def decided_ranks(self, place: Placement) -> None:
        """Sets the number of ranks that a run has decided, where the line says none."""
        says_otherwise = place.per_part is not None and not place.fills
        if not self.single or place.ranks is not None or says_otherwise:
            return
        if self.layout.ranks is not None:
            place.ranks = self.layout.ranks
            self.note(f"the line names no number of ranks: the run's {place.ranks} are used")


def _asks_nothing(option: Given) -> bool:
    return option.value.lower() in ("none", "no", "false", "0")


def _like_a_program(path: str) -> bool:
    return os.path.basename(path).startswith("python") or path in ("sh", "bash", "env")


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
