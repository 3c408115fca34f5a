"""Which ranks share a file that a script of rabit's years names."""

from __future__ import annotations

from pathlib import Path

import pytest

from shanty.compat.xgboost_rabit.whose import Claim, claim, parties

ALL = [0, 0, 0]
EACH = [0, 1, 2]


def test_one_name_is_one_file() -> None:
    assert parties([Claim("a", "1"), Claim("a", "1"), Claim("a", "1")]) == ALL


def test_one_name_is_one_file_even_where_it_cannot_be_read() -> None:
    assert parties([Claim("a", "1"), Claim("a", ""), Claim("a", "")]) == ALL


def test_other_names_and_contents_are_each_one_s_own() -> None:
    assert parties([Claim("a", "1"), Claim("b", "2"), Claim("c", "3")]) == EACH


def test_one_content_under_other_names_is_one_file() -> None:
    assert parties([Claim("a", "1"), Claim("b", "1"), Claim("c", "1")]) == ALL


def test_folders_and_patterns_go_by_their_names() -> None:
    assert parties([Claim("a", ""), Claim("b", ""), Claim("c", "")]) == EACH


def test_some_may_share() -> None:
    found = parties([Claim("a", "1"), Claim("b", "2"), Claim("a", "1")])
    assert found == [0, 1, 0]


@pytest.mark.parametrize("size", [0, 10, 65536, 70000, 200_000])
def test_what_a_file_holds_is_looked_at(tmp_path: Path, size: int) -> None:
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    one.write_bytes(b"1" * size)
    same.write_bytes(b"1" * size)
    other.write_bytes(b"1" * size + b"2")
    claims = [claim("x", str(path)) for path in (one, same, other)]
    assert claims[0] == claims[1]
    assert claims[0] != claims[2]


def test_a_file_that_is_not_there() -> None:
    assert claim("x", "/nowhere/at/all") == Claim("x", "")
