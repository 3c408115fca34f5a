"""Turns typed values into plain JSON and back, by the annotations of their dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

_hints = cache(get_type_hints)


def encode(value: Any) -> Any:
    """Returns a value as plain JSON; mappings become lists of keys and values."""
    if is_dataclass(value):
        return {each.name: encode(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return [[encode(key), encode(each)] for key, each in value.items()]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [encode(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def decode(kind: Any, value: Any) -> Any:
    """Returns the value of the type `kind` that `encode` was given."""
    origin, args = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        make: Any = kind
        hints = _hints(make)
        return make(**{name: decode(hints[name], each) for name, each in value.items()})
    if origin is Mapping:
        return {decode(args[0], key): decode(args[1], each) for key, each in value}
    if origin is tuple:
        kinds = [args[0]] * len(value) if args[-1] is ... else args
        return tuple(decode(one, each) for one, each in zip(kinds, value, strict=True))
    if origin is frozenset or (isinstance(kind, type) and issubclass(kind, (Enum, Path))):
        return kind(value)
    return value
