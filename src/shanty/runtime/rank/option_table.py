"""Reads the lines of other tools by a table of their options, as argparse would.

What becomes of each option is said by its rule, in the module of the tool:

    =NAME        the value is put into that variable
    =NAME VALUE  that variable gets this value
    -REASON      nothing, and the reason is given
    !REASON|FIX  it is refused
    @CODE WORD   what `Line` or its subclass does for the code, with that word
    (nothing)    it says what is so in any case
"""

from __future__ import annotations

import difflib
import re
from collections import deque
from dataclasses import dataclass
from typing import Deque, Dict, List, Mapping, Optional, Sequence, Tuple

from shanty.runtime.errors import UsageError

TEXT, WHOLE, NUMBER, SWITCH, PAIR = "a text", "a whole number", "a number", "", "two whole numbers"
_DIGITS = 18  # of a number, at most: more is a slip, and Python refuses thousands
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


Given = Tuple[str, Option, str]  # as it was written, what it is, its value or ""


def table(*rows: Tuple[str, ...]) -> Dict[str, Option]:
    """Returns each option by each of its names, with their dashes.

    A row has the names of an option, with " / " between options for which all is the same, what
    it takes, its rule, and its help where the rule does not say it.
    """
    found: Dict[str, Option] = {}
    for alike, takes, rule, *said in rows:
        text = said[0] if said else f"Left out: {rule[1:] or 'it is so in any case'}."
        for names in alike.split(" / "):
            option = Option(tuple(names.split()), takes, rule, text)
            found.update(dict.fromkeys(option.names, option))
    return found


class Line:
    """A line of `program`, and what it says.

    A subclass has a method for each code of the rules. It gets the option as it was written, its
    value, and the rest of the rule.
    """

    shown_by = "shanty"
    program: str
    options: Mapping[str, Option]
    variables: Dict[str, str]

    def split(self, words: Sequence[str]) -> Tuple[List[Given], List[str]]:
        """Returns the options before the command, and the command.

        UsageError names an option that there is none of, that lacks its value or has a wrong one.
        """
        given: List[Given] = []
        rest = deque(words)
        while rest and rest[0].startswith("-") and rest[0] != "-":
            word = rest.popleft()
            if word == "--":
                break
            given.append(self.valued(*self._option(word), rest))
        return given, list(rest)

    def valued(self, spelled: str, option: Option, value: Optional[str], rest: Deque[str]) -> Given:
        """Takes what is the option's own from the `rest` of the words.

        `value` is what stands in the same word, None where nothing does.
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
        """Returns how the option is written, which it is, and its value in the same word."""
        options = self.options
        name, equals, value = word.partition("=")
        if name in options:
            return name, options[name], value if equals else None
        if name.startswith("--"):  # as argparse has it, the beginning of a name will do
            found = {options[each].names[0] for each in options if each.startswith(name)}
            if len(found) == 1:
                whole = found.pop()
                return whole, options[whole], value if equals else None
            if found:
                either = " or ".join(sorted(found))
                raise UsageError(f"{name} of {self.program} may mean {either}")
        elif word[:2] in options and options[word[:2]].takes != SWITCH:
            return word[:2], options[word[:2]], word[2:]
        near = difflib.get_close_matches(name.lower(), options, 1)
        near = near or difflib.get_close_matches(name.lower().replace("_", "-"), options, 1)
        fix = f"did you mean {near[0]}?" if near else f"see `{self.shown_by} {self.program} --help`"
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
        """Takes down that an option has no meaning here; its rule says why."""
        raise NotImplementedError

    def _set(self, _: str, value: str, field: str) -> None:
        setattr(self, field, value)

    def _switch(self, _: str, __: str, field: str) -> None:
        setattr(self, field, True)

    def _count(self, spelled: str, value: str, field: str) -> None:
        if int(value) < 1:
            raise UsageError(f"{spelled} must be at least 1, not {value}")
        setattr(self, field, int(value))
