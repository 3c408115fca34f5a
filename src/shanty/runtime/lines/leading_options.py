"""Splits a command line into its leading options and the words after them, as getopt_long does."""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence, Tuple

Options = List[Tuple[str, Optional[str]]]
_VALUED_SSH = frozenset("BbcDEeFIiJLlmOoPpQRSWw")


def ssh_takes_value(name: str) -> bool:
    """Returns True where that option of ssh(1) has a value."""
    return name[1] in _VALUED_SSH


def split(
    words: Sequence[str], takes_value: Callable[[str], bool], glued: str = ""
) -> Tuple[Options, int]:
    """Returns the options at the start of `words`, and the index of the first word after them.

    `takes_value` decides whether an option, "--name" or "-x", has a value: the rest of its word
    (--name=VALUE, -xVALUE) or else the next word. The letters in `glued` have a value only in
    their own word. Each option comes with its value; None where it has none, or where the line
    ends before it.
    """
    found: Options = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        at += 1
        if word == "--":
            break
        value: Optional[str] = None
        if word.startswith("--"):
            name, equals, text = word.partition("=")
            value = text if equals else None
        else:
            name, text = word[:2], word[2:]
            while text and not takes_value(name) and name[1] not in glued:  # as in -ln4
                found.append((name, None))
                name, text = f"-{text[0]}", text[1:]
            value = text[text.startswith("=") :] or None
        if value is None and takes_value(name) and at < len(words):
            value = words[at]
            at += 1
        found.append((name, value))
    return found, at
