"""Named tuples whose classes are made quickly: as `typing.NamedTuple`, wherever that is used."""

from __future__ import annotations

import copy
import pickle
from typing import NamedTuple

import pytest

from shanty.runtime.record import Record


class Fast(Record):
    number: int
    name: str = "a"
    more: int | None = None

    @property
    def double(self) -> int:
        return 2 * self.number


class Slow(NamedTuple):
    number: int
    name: str = "a"
    more: int | None = None


class Empty(Record):
    """It has no fields."""


def test_a_record_is_a_named_tuple() -> None:
    fast, slow = Fast(3, more=4), Slow(3, more=4)
    assert fast == slow == (3, "a", 4)
    assert repr(fast) == repr(slow).replace("Slow", "Fast")
    assert fast._asdict() == slow._asdict()
    assert fast._fields == slow._fields
    changed = fast._replace(name="b")
    assert (type(changed), changed.name, changed.double) == (Fast, "b", 6)
    assert Fast(number=3, name="b", more=4) == changed
    assert Empty() == ()


def test_a_record_can_be_copied() -> None:
    fast = Fast(3)
    for other in (copy.copy(fast), copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert (type(other), other) == (Fast, fast)


@pytest.mark.parametrize(
    ("values", "named"),
    [((), {}), ((1, "a", 2, 3), {}), ((1,), {"number": 1}), ((1,), {"other": 1})],
)
def test_wrong_fields_are_an_error(values: tuple[int, ...], named: dict[str, int]) -> None:
    with pytest.raises(TypeError):
        Fast(*values, **named)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Slow(*values, **named)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Fast(3)._replace(other=1)  # type: ignore[call-arg]


def test_fields_cannot_be_set() -> None:
    with pytest.raises(AttributeError):
        Fast(3).number = 4  # type: ignore[misc]
