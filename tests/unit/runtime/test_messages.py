"""The messages between the agents, as lines."""

from __future__ import annotations

import json
from typing import Any, Union, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shanty.runtime import messages
from shanty.runtime.messages import KINDS, NotAMessageError, Report, decode, encode
from shanty.runtime.rank import reports
from shanty.runtime.record_reader import MisfitError

TEXT = st.text(max_size=8)
WHOLE = st.integers(-(2**63), 2**63)
NUMBER = st.one_of(st.floats(allow_nan=False), st.integers(-9, 9))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), WHOLE, st.floats(allow_nan=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
VALUES = st.dictionaries(TEXT, st.one_of(st.none(), st.booleans(), WHOLE, NUMBER, TEXT), max_size=3)


PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    bool: st.booleans(),
    int: WHOLE,
    float: NUMBER,
    bytes: st.binary(max_size=8),
    "JsonObject": st.dictionaries(TEXT, JSON, max_size=3),
    Report: st.builds(
        lambda more, event, rank: Report({**more, "event": event, "rank": rank}),
        VALUES, TEXT, WHOLE,
    ),
}  # fmt: skip
# Names that the module has for a type checker only.
NAMES = {**vars(messages), "JsonObject": "JsonObject", "Frame": tuple[str, int, str]}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """The values of a field of that type."""
    if kind in PLAIN:
        return PLAIN[kind]
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Union:
        return st.none() | values(parts[0])
    if origin is dict:
        return st.dictionaries(TEXT, values(parts[1]), max_size=3)
    if origin is tuple and parts[-1] is ...:
        return st.lists(values(parts[0]), max_size=3).map(tuple)
    return st.tuples(*map(values, parts)) if origin is tuple else record(kind)


def record(kind: type[Any]) -> st.SearchStrategy[Any]:
    fields = (eval(text, NAMES) for text in kind.__annotations__.values())
    return st.tuples(*map(values, fields)).map(lambda found: kind(*found))


@given(st.text(max_size=40))
def test_a_text_that_a_rank_reports_arrives_letter_by_letter(text: str) -> None:
    assert json.loads(reports.encode({"why": text})) == {"why": text}


def test_every_message_has_a_kind() -> None:
    assert set(KINDS.values()) == {*get_args(messages.Order), *get_args(messages.Told)}
    assert len(KINDS) == 40


WRONG: dict[str, tuple[object, ...]] = {
    "str": (None, 1, True, ["a"], {}),
    "bool": (None, 1, "true"),
    "int": (None, 1.5, True, "1"),
    "float": (None, True, "1.5"),
    "bytes": (None, 1, "abcde"),
    "JsonObject": (None, [], "{}"),
    "Report": (None, [], {}, [{}], [{"event": "started"}], [{"event": 1, "rank": 0}],
               [{"event": "started", "rank": "0"}], [{"event": "a", "rank": 0, "x": []}]),
    "HostLoad": (None, [], {}, [0.0, 1, 1, 1, [["eth0", 1, True, 0, 0]], [0, 0], 1.0]),
}  # fmt: skip


def wrong(text: str) -> tuple[object, ...]:
    """Values that do not fit a field of this annotation."""
    if text in WRONG:
        return WRONG[text]
    if text.startswith("Optional["):
        inner = text[len("Optional[") : -1]
        return tuple(each for each in wrong(inner) if each is not None)
    if text.startswith("Dict["):
        return None, [], {"a": None}, {"a": []}
    return None, {}, "ab", [None], [{}]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@settings(max_examples=20)
@given(data=st.data())
def test_a_message_comes_as_it_was_sent(kind: type[Any], data: st.DataObject) -> None:
    """And what is cut, has another number of fields or a field of another type is not a message."""
    message = data.draw(record(kind))
    line = encode(message)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    found = decode(line)
    assert type(found) is kind
    assert found == message
    with pytest.raises(NotAMessageError):
        decode(line.rstrip()[: data.draw(st.integers(0, len(line) - 2))])
    name, *fields = json.loads(line)
    changed = [[*fields, None], *([fields[:-1]] if fields else [])]
    for place, text in enumerate(kind.__annotations__.values()):
        changed += [[*fields[:place], value, *fields[place + 1 :]] for value in wrong(text)]
    for each in changed:
        with pytest.raises(MisfitError):
            decode(json.dumps([name, *each]).encode())


@given(JSON)
def test_any_other_json_is_no_message(value: object) -> None:
    with pytest.raises(MisfitError):
        decode(json.dumps(value).encode())


@given(st.binary(max_size=20))
def test_any_other_line_is_no_message(line: bytes) -> None:
    with pytest.raises(MisfitError):
        decode(line)


def test_numbers_that_json_does_not_know_pass() -> None:
    """Python's JSON has them; a rank reports a loss as it is."""
    line = encode(messages.Beat(float("inf")))
    assert decode(line) == messages.Beat(float("inf"))
    (found,) = decode(encode(messages.Beat(float("nan"))))
    assert found != found


def test_the_values_of_a_report() -> None:
    report = Report({"event": "exited", "rank": 3, "code": -9, "at": 1.5, "oom": True, "why": None})
    assert (report.event, report.rank, report.world) == ("exited", 3, "0")
    assert (report.whole("code"), report.whole("at"), report.whole("size")) == (-9, None, None)
    assert (report.number("at", 2.0), report.number("since", 2.0)) == (1.5, 2.0)
    assert (report.text("why", "?"), report.text("code"), report.text("fix")) == ("?", "-9", "")
    assert report.flag("oom") and not report.flag("why")
    assert list(report.extended(host="a", rank=4).values.items())[1:] == [
        ("rank", 4), ("code", -9), ("at", 1.5), ("oom", True), ("why", None), ("host", "a"),
    ]  # fmt: skip
