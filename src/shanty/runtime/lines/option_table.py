"""Reads the lines of other tools by a table of their options, as argparse would.

Each option has a rule, in the module of the tool:

    =NAME        the variable gets the value of the option
    =NAME VALUE  the variable gets this value
    -REASON      it is left out, and the reason is given
    !REASON|FIX  it is refused
    @CODE WORD   `Line` or its subclass has a method for the code, which gets the word
    (nothing)    it asks for what is so in any case
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar, Deque, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar

from shanty.runtime.errors import UsageError
from shanty.runtime.mpi.hostfiles import Read
from shanty.runtime.mpi.layout import Layout
from shanty.runtime.suggestions import nearest

TEXT, WHOLE, NUMBER, SWITCH, PAIR = "a text", "a whole number", "a number", "", "two whole numbers"
_DIGITS = 18  # of a number, at most: more is a mistake, and Python refuses thousands
_WHOLE = re.compile(rf"\+?[0-9]{{1,{_DIGITS}}}")
_NUMBER = re.compile(r"\+?([0-9]{1,18}(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,2})?", re.IGNORECASE)


@dataclass(frozen=True)
class Option:
    """One option: its names, the first one for messages, what it takes, its rule, its help."""

    names: Tuple[str, ...]
    takes: str
    rule: str
    help: str

    def check(self, spelled: str, values: Sequence[str]) -> None:
        """Raises UsageError for values that are not what the option takes."""
        shape = _NUMBER if self.takes == NUMBER else _WHOLE
        for value in values if self.takes != TEXT else ():
            if not shape.fullmatch(value):
                short = value if len(value) <= _DIGITS else value[:_DIGITS] + "…"
                raise UsageError(f"{spelled} takes {self.takes} from 0 on, not {short!r}")


Given = Tuple[str, Option, str]  # the option as it was written, itself, its value or ""


def table(*rows: Tuple[str, ...]) -> Dict[str, Option]:
    """Returns each option by each of its names, with their dashes.

    A row has the names of an option, with " / " between options of the same kind, what it takes,
    its rule, and its help if the rule is not the help.
    """
    found: Dict[str, Option] = {}
    for alike, takes, rule, *said in rows:
        text = said[0] if said else f"Left out: {rule[1:] or 'it is so in any case'}."
        for names in alike.split(" / "):
            option = Option(tuple(names.split()), takes, rule, text)
            found.update(dict.fromkeys(option.names, option))
    return found


L = TypeVar("L", bound="Line")


@dataclass
class Line:
    """A line of `program`, and what it asks for; fields that it leaves open are None or empty.

    `environ` is the environment of the line, and `read` returns the text of a file or None. A
    subclass has a method for each code of the rules. It gets the option as it was written, its
    value, and the rest of the rule.
    """

    program: ClassVar[str]
    operand: ClassVar[str] = "command"
    example: ClassVar[str] = ""
    shown_by = "shanty"

    environ: Mapping[str, str]
    read: Read
    options: Mapping[str, Option] = field(init=False)
    hostfile: str = ""
    launcher: List[str] = field(default_factory=list)  # words for mpirun
    variables: Dict[str, str] = field(default_factory=dict)  # for the ranks
    left_out: Dict[str, List[str]] = field(default_factory=dict)  # options by the reason
    remarks: List[str] = field(default_factory=list)
    verbose: bool = False  # the line for mpirun is shown
    asks: str = ""  # "help" or the like where the line starts nothing
    command: List[str] = field(default_factory=list)
    ended: bool = False  # the options, by "--"

    def parsed(self: L, words: Sequence[str]) -> L:
        """Returns this line after reading its `words`, without the program itself.

        UsageError names an option that is unknown, lacks its value, has a wrong one or is refused;
        NotFoundError names a configuration file that does not exist.
        """
        given, self.command = self.split(words)
        for each in self.completed(given):
            self.take(*each)
        if self.asks:
            return self
        if not self.command:
            raise UsageError(
                f"this {self.program} line has no {self.operand}", fix="give it what to run"
            )
        self.checked()
        return self

    def completed(self, given: List[Given]) -> List[Given]:
        """Returns the options of the line with those that come from files and variables."""
        return given

    def checked(self) -> None:
        """Works out what the options mean together; UsageError where that makes no sense."""

    def answer(self, python: str) -> str:
        """Returns what a line that starts nothing prints, else ""; `python` is the ranks'."""
        if not self.asks:
            return ""
        import textwrap

        named = "; ".join(", ".join(each.names) for each in dict.fromkeys(self.options.values()))
        lines = textwrap.wrap(named, 78, break_long_words=False, break_on_hyphens=False)
        usage = f"usage: {self.program} [OPTION]… {self.operand.upper()} [ARGS]…\n"
        example = f"\nExample:\n    {self.example}\n" if self.example else ""
        return f"{usage}{example}\nOptions:\n  " + "\n  ".join(lines)

    def mpirun_line(self, layout: Layout, environ: Mapping[str, str], python: str) -> List[str]:
        """Returns the whole line for mpirun, without mpirun itself, within a run of that layout.

        `environ` is the launcher's environment, `python` the interpreter of the ranks. Relative
        paths are those of this process. Options without a meaning within a run are noted.
        """
        raise NotImplementedError

    @property
    def notes(self) -> List[str]:
        """The remarks, and a sentence that lists all options that are left out."""
        parts = [f"{', '.join(said)} ({reason})" for reason, said in self.left_out.items()]
        left = [f"left out of this {self.program} line: " + "; ".join(parts)] if parts else []
        return [*self.remarks, *left]

    def exported(self, layout: Layout, inherited: Mapping[str, str] = {}) -> List[str]:
        """Returns the words for mpirun by which all hosts get the variables.

        `inherited` are those of the line's own environment. On a single host ranks inherit all.
        """
        given = {**inherited, **self.variables} if len(layout.hosts) > 1 else {}
        return [word for name, value in given.items() for word in ("-x", f"{name}={value}")]

    def leave_out(self, said: str, reason: str) -> None:
        """Notes that the option `said` has no meaning here."""
        self.left_out.setdefault(reason, []).append(said)

    def split(self, words: Sequence[str]) -> Tuple[List[Given], List[str]]:
        """Returns the options before the command, and the command.

        UsageError names an option that is unknown, lacks its value or has a wrong one.
        """
        given: List[Given] = []
        rest = deque(words)
        while rest and rest[0].startswith("-") and rest[0] != "-":
            word = rest.popleft()
            if word == "--":
                self.ended = True
                break
            given.append(self.valued(*self._option(word), rest))
        return given, list(rest)

    def split_command(self, options: Mapping[str, Option]) -> List[Given]:
        """Takes these options out of the command, and returns them.

        argparse finds them there, too, where a parser leaves the words that it does not know.
        """
        given: List[Given] = []
        rest, self.command = deque(self.command), []
        while rest:
            word = rest.popleft()
            name, equals, value = word.partition("=")
            option = options.get(name) if self.command else None
            if option is not None:
                given.append(self.valued(name, option, value if equals else None, rest))
            else:
                self.command.append(word)
        return given

    def valued(self, spelled: str, option: Option, value: Optional[str], rest: Deque[str]) -> Given:
        """Takes the values of the option from the `rest` of the words.

        `value` is the value in the same word, or None.
        """
        if option.takes == SWITCH:
            if value is not None:
                raise UsageError(f"{spelled} of {self.program} takes no value")
            return spelled, option, ""
        values = [] if value is None else [value]
        missing = (2 if option.takes == PAIR else 1) - len(values)
        if missing > len(rest):
            raise UsageError(f"{spelled} needs a value", fix=f"it is {option.takes}")
        values += [rest.popleft() for _ in range(missing)]
        option.check(spelled, values)
        return spelled, option, " ".join(values)

    def _option(self, word: str) -> Tuple[str, Option, Optional[str]]:
        """Returns the option as it is written, itself, and its value in the same word."""
        options = self.options
        name, equals, value = word.partition("=")
        if name in options:
            return name, options[name], value if equals else None
        if name.startswith("--"):  # argparse accepts the beginning of a name
            found = {options[each].names[0] for each in options if each.startswith(name)}
            if len(found) == 1:
                whole = found.pop()
                return whole, options[whole], value if equals else None
            if found:
                either = " or ".join(sorted(found))
                raise UsageError(f"{name} of {self.program} may mean {either}")
        elif word[:2] in options and options[word[:2]].takes != SWITCH:
            return word[:2], options[word[:2]], word[2:]
        listed = f"see `{self.shown_by} {self.program} --help`"
        fix = nearest(name, options) or nearest(name.replace("_", "-"), options, listed)
        raise UsageError(f"{self.program} has no option {name}", fix=fix)

    def take(self, spelled: str, option: Option, value: str) -> None:
        """Takes one option into account."""
        kind, (code, _, word) = option.rule[:1], option.rule[1:].partition(" ")
        if kind == "=":
            self.variables[code] = word or value
        elif kind == "-":
            self._leave_out(spelled, option, value)
        elif kind == "!":
            why, _, fix = option.rule[1:].partition("|")
            raise UsageError(f"{spelled} of {self.program} has no counterpart here", why, fix)
        elif kind == "@":
            getattr(self, "_" + code.replace("-", "_"))(spelled, value, word)

    def _leave_out(self, spelled: str, option: Option, value: str) -> None:
        """Notes that an option has no meaning here, for the reason in its rule; 0 has one."""
        if value not in ("0", "0.0"):
            self.leave_out(f"{spelled} {value}".rstrip(), option.rule[1:])

    def _set(self, _: str, value: str, field: str) -> None:
        setattr(self, field, value)

    def _whole(self, _: str, value: str, field: str) -> None:
        setattr(self, field, int(value))

    def _switch(self, _: str, __: str, field: str) -> None:
        setattr(self, field, True)

    def _ask(self, _: str, __: str, what: str) -> None:
        self.asks = self.asks or what

    def _config(self, *_: str) -> None:
        """The settings of its file have been taken before."""

    def _count(self, spelled: str, value: str, field: str) -> None:
        if int(value) < 1:
            raise UsageError(f"{spelled} must be at least 1, not {value}")
        setattr(self, field, int(value))

    def _words(self, _: str, value: str, option: str) -> None:
        """Takes an option of mpirun's with this value."""
        self.launcher += [option, value]

    def _mpi_args(self, spelled: str, value: str, words: str) -> None:
        """Takes words for mpirun: those of the rule, or those that the value is made of."""
        try:
            self.launcher += shlex.split(value or words)
        except ValueError as error:
            raise UsageError(f"{spelled} {value}: {error}") from None


def one_of(spelled: str, value: str, known: Sequence[str]) -> str:
    """Returns the value of an option; UsageError for an unknown value."""
    if value not in known:
        raise UsageError(
            f"{spelled} takes one of {', '.join(known)}, not {value!r}", fix=nearest(value, known)
        )
    return value
