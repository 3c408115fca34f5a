"""Typed values come back from JSON as they were."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from shanty.launch.plain_json import decode, encode


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    number: int
    words: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Outer:
    path: Path
    colour: Colour
    one: Inner
    pairs: Mapping[tuple[str, str], Inner] = field(default_factory=dict)
    many: tuple[Inner, ...] = ()
    maybe: float | None = None


VALUE = Outer(
    Path("/a b"), Colour.RED, Inner(1, frozenset("yx")), {("a", "b"): Inner(2)}, (Inner(3),)
)


def test_what_is_encoded_comes_back() -> None:
    value = decode(Outer, json.loads(json.dumps(encode(VALUE))))
    assert value == VALUE
    assert (type(value.path), type(value.colour)) == (type(VALUE.path), Colour)


def test_what_is_not_written_has_its_default() -> None:
    value = {"path": "/x", "colour": "red", "one": {"number": 1}}
    assert decode(Outer, value) == Outer(Path("/x"), Colour.RED, Inner(1))


@pytest.mark.parametrize("junk", [{}, {"path": "/x"}, {"unknown": 1}, None, []])
def test_what_is_no_such_value(junk: Any) -> None:
    with pytest.raises((AttributeError, KeyError, TypeError)):
        decode(Outer, junk)
