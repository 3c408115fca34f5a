"""Where the options of a command line end, and which values they have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.runtime.lines.leading_options import split


def takes_value(name: str) -> bool:
    return name in ("-n", "--name")


@pytest.mark.parametrize(
    ("line", "options", "rest"),
    [
        ("", [], []),
        ("a -n", [], ["a", "-n"]),
        ("-n 1 --name=2 --name 3 a", [("-n", "1"), ("--name", "2"), ("--name", "3")], ["a"]),
        ("-vn1 -n=2 -vk3 -k a", [("-v", None), ("-n", "1"), ("-n", "2"), ("-v", None),
                                 ("-k", "3"), ("-k", None)], ["a"]),
        ("--quiet --name= -- -n", [("--quiet", None), ("--name", "")], ["-n"]),
        ("-v - -n", [("-v", None)], ["-", "-n"]),
        ("-n", [("-n", None)], []),
        ("--name", [("--name", None)], []),
    ],
)  # fmt: skip
def test_where_the_options_end(
    line: str, options: list[tuple[str, str | None]], rest: list[str]
) -> None:
    words = line.split()
    found, at = split(words, takes_value, glued="k")
    assert (found, words[at:]) == (options, rest)


@given(st.lists(st.text(max_size=9), max_size=8))
def test_any_words(words: list[str]) -> None:
    found, at = split(words, takes_value)
    assert 0 <= at <= len(words)
    assert all(name.startswith("-") for name, _ in found)
