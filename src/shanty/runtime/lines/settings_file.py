"""Reads configuration files of other launchers, which use a small part of YAML."""

from __future__ import annotations

import re
from typing import Dict, Union

from shanty.runtime.errors import UsageError

Value = Union[str, bool, None]

_ENTRY = re.compile(r"""^(\s*)(?:(["'])(.+?)\2|([A-Za-z_][\w.-]*))\s*:(?:\s+(.*))?$""")
_MORE = tuple("[{&*!|>%@`")  # the beginnings of values that are not read here
_EMPTY = ("[]", "{}")  # a list or a section with nothing in it
_WORDS: Dict[str, Value] = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    **dict.fromkeys(("null", "~", ""), None),
}


def read_settings(text: str, name: str) -> Dict[str, Value]:
    """Reads a configuration file in a small part of YAML:

        params:                  # a section
            cycle_time_ms: 3.5   # a key in it
        controller: mpi

    Values are texts (quoted or plain, numbers too), true, false, null. Returns them by
    "section.key", or by "key" outside of sections. UsageError with the line of the file `name` for
    any other YAML.
    """
    found: Dict[str, Value] = {}
    section, inner = "", 0
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        if not line.split("#")[0].strip() or line.rstrip() in ("---", "..."):
            continue
        entry = _ENTRY.match(line.rstrip())
        depth, value = (len(entry[1]), _value(entry[5] or "")) if entry else (0, None)
        inner = (inner or depth) if depth else 0
        if (
            entry is None
            or depth != inner
            or (depth and not section)
            or "\t" in entry[1]
            or (isinstance(value, str) and value.startswith(_MORE))
        ):
            raise UsageError(
                f"{name}, line {number}: cannot be read: {line.strip()}",
                "a configuration file has sections, and in each of them lines of `key: value`",
                "write it so, or give its options on the command line",
            )
        key = entry[3] or entry[4]
        if not depth:
            section = key if value is None else ""
        if depth or not section:
            found[f"{section}.{key}" if depth else key] = value
    return found


def _value(text: str) -> Value:
    text = text.strip()
    if text[:1] in ("'", '"'):
        end = text.find(text[0], 1)
        if end > 0 and not text[end + 1 :].split("#")[0].strip():
            return text[1:end]
    text = re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
    return None if text in _EMPTY else _WORDS.get(text.lower(), text)
