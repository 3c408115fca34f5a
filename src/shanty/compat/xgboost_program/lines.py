"""Reads XGBoost's configuration files: a line is `name = value`, a comment, or empty.

    # a comment
    eta = 1.0                          # and another one
    data = "agaricus.txt?format=libsvm"
    'eval[my test]' = 'my test.txt'

A name or a value with a space, a quote of the other kind or a `#` in it stands in quotes. Beyond
what XGBoost's reader takes, `=` may stand in any value, and a lone `\\r` ends a line as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_ENDS = re.compile(r"\r\n|\r|\n")
_NAME = re.compile(r"""(?:(["'])((?:(?!\1)[^=])+)\1|([^#"'=\s]+))\s*=\s*""")
_VALUE = re.compile(r"""(?:(["'])((?:(?!\1).)+)\1|([^#"'\s]+))\s*(?:#.*)?""")


class ConfigurationError(ValueError):
    """A line or a setting that makes no sense; says where it stands."""


class Setting(NamedTuple):
    """One name and its value, as texts; `where` is "FILE:LINE" or "the command line"."""

    name: str
    value: str
    where: str

    def wrong(self, what: str) -> ConfigurationError:
        """The error that this setting is, `what` says why."""
        return ConfigurationError(f"{self.where}: {self.name} = {self.value}: {what}")


def read(path: str) -> list[Setting]:
    """The settings of a file, in their order; ConfigurationError says what is wrong with it."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is no text: byte {error.start} is no UTF-8") from error
    return parse(text, path)


def parse(text: str, source: str) -> list[Setting]:
    """The settings in a text; `source` is its name in errors."""
    found = []
    for number, line in enumerate(_ENDS.split(text), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        where = f"{source}:{number}"
        name = _NAME.match(line)
        if name is None:
            raise ConfigurationError(f"{where}: {line!r} is no `name = value`")
        value = _VALUE.fullmatch(line, name.end())
        if value is None:
            raise ConfigurationError(
                f"{where}: {line!r} has no value, or one that has to stand in quotes"
            )
        found.append(Setting(name[2] or name[3], value[2] or value[3], where))
    return found


def from_words(words: Sequence[str]) -> list[Setting]:
    """The settings of words as `max_depth=4`, each in one word."""
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals or not value:
            raise ConfigurationError(
                f"the command line: {word!r} is no name=value (in one word, without spaces)"
            )
        found.append(Setting(name, value, "the command line"))
    return found
