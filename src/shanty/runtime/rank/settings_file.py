"""Reads a configuration file of `horovodrun`: the little of YAML that such a file is made of.

    params:                  # a section
        cycle_time_ms: 3.5   # a key in it
    controller: mpi

Values are texts (quoted or plain), whole numbers, numbers, true, false, null.
"""

from __future__ import annotations

import re
from typing import Dict, Optional, Union

from shanty.runtime.errors import UsageError

Value = Union[str, int, float, bool, None]

_ENTRY = re.compile(r"""^(\s*)(?:(["'])(.+?)\2|([A-Za-z_][\w.-]*))\s*:(?:\s+(.*))?$""")
_WORDS: Dict[str, Value] = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    **dict.fromkeys(("null", "~", ""), None),
}


def read_settings(text: str, name: str) -> Dict[str, Value]:
    """The values of a file by "section.key", or by "key" where one stands in no section.

    UsageError with the line of the file `name` for what is more of YAML than that.
    """
    found: Dict[str, Value] = {}
    section, inner = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.split("#")[0].strip() or line.rstrip() in ("---", "..."):
            continue
        entry = _ENTRY.match(line.rstrip())
        if entry is None or "\t" in entry[1]:
            raise _unreadable(name, number, line)
        depth, key, rest = len(entry[1]), entry[3] or entry[4], entry[5] or ""
        if depth == 0:
            section, inner = "", 0
        elif not section or depth != (inner or depth):
            raise _unreadable(name, number, line)
        else:
            inner = depth
        value = _value(rest)
        if isinstance(value, str) and value[:1] in tuple("[{&*!|>%@`"):
            raise _unreadable(name, number, line)
        if depth == 0 and value is None:
            section = key
        else:
            found[f"{section}.{key}" if section else key] = value
    return found


def _unreadable(name: str, number: int, line: str) -> UsageError:
    return UsageError(
        f"{name}, line {number}: cannot be read: {line.strip()}",
        "a configuration file has sections, and in each of them lines of `key: value`",
        "write it so, or give its options on the command line",
    )


def _value(text: str) -> Value:
    text = text.strip()
    if text[:1] in ("'", '"'):
        end = text.find(text[0], 1)
        if end > 0 and not text[end + 1 :].split("#")[0].strip():
            return text[1:end]
    text = re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    number: Optional[Value] = None
    for kind in (int, float):
        try:
            number = kind(text)
            break
        except ValueError:
            continue
    return text if number is None else number
