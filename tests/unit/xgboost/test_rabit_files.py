"""Which ranks share a file that a script of rabit's years names."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

pytest.importorskip("xgboost")

from shanty.compat.xgboost_rabit.files import Claim, claim, parties
from shanty.xgboost.errors import DataError

# Of each rank: the name, the content (none where it cannot be read), the last names of the files.
PARTIES = {
    "one name": ("a1 a1 a1", [0, 0, 0]),
    "one name that some cannot read": ("a1 a a", [0, 0, 0]),
    "other names and contents": ("a1 b2 c3", [0, 1, 2]),
    "one content under other names": ("a1 b1 c1", [0, 0, 0]),
    "folders and patterns": ("a b c", [0, 1, 2]),
    "one content in files of other names": ("a1x b1y c1z", [0, 1, 2]),
    "some share": ("a1 b2 a1", [0, 1, 0]),
}


@pytest.mark.parametrize("case", PARTIES)
def test_who_shares_a_file(case: str) -> None:
    claims, found = PARTIES[case]
    assert parties([Claim(each[:1], each[1:2], each[2:]) for each in claims.split()]) == found


@pytest.mark.parametrize("ranks", [["a1", "a2"], ["b1", "a1", "a2"], ["a", "a1", "b1", "a2"]])
def test_one_name_of_other_contents(ranks: list[str]) -> None:
    with pytest.raises(DataError, match=r"different files under one name, a: rank \d of 7 bytes"):
        parties([Claim(word[0], f"7 bytes {word[1:]}" * (word != "a"), "x") for word in ranks])


@pytest.mark.parametrize("size", [0, 10, 65536, 70000, 131072, 200_000])
def test_what_a_file_holds_is_looked_at(tmp_path: Path, size: int) -> None:
    files = {"one": b"", "same": b"", "longer": b"2", "other": b"3"}
    for folder, end in files.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x").write_bytes(b"1" * size + end)
    one, same, longer, other = (claim("x", [str(tmp_path / name / "x")]) for name in files)
    assert one == same
    assert len({one.content, longer.content, other.content}) == 3


@pytest.mark.parametrize("count", [2, 100])
def test_many_files(tmp_path: Path, count: int) -> None:
    """In folders of different names; the last of their files may be another."""
    claims = []
    for name in ("one", "same", "moved", "other"):
        folder = tmp_path / name
        folder.mkdir()
        files = [folder / f"{number}{'x' * (name == 'moved')}" for number in range(count)]
        for file in files:
            file.write_bytes(file.name.encode()[:2] * 20_000)
        if name == "other":
            files[-1].write_bytes(b"!".rjust(files[-1].stat().st_size))
        claims.append(claim(str(folder), [str(file) for file in files]))
    assert parties(claims) == [0, 0, 2, 3]


def test_when_and_where_it_was_packed_does_not_matter(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        packed = gzip.compress(b"0 0:1\n", mtime=number)
        (tmp_path / str(number) / "x.gz").write_bytes(packed)
    claims = [claim("x.gz", [str(tmp_path / str(number) / "x.gz")]) for number in range(2)]
    assert parties(claims) == [0, 0]


def test_a_file_that_is_not_there() -> None:
    assert claim("x", ["/nowhere/at/all"]) == claim("x", []) == Claim("x", "")
