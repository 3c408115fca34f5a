"""Categories of tables: compared, joined, and a table coded by their union."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty import _categories
from shanty._categories import Categories, Column, categories, columns, different, recoded, union

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
VALUES = st.one_of(
    *(
        st.lists(st.lists(kind, unique=True, max_size=6), min_size=1, max_size=4)
        for kind in (WORDS, st.integers(-99, 99), st.dates().map(pd.Timestamp), st.booleans())
    )
)


def of_pandas(values: Sequence[Any], order: Sequence[Any], ordered: bool = False) -> Any:
    kind = pd.CategoricalDtype(list(order), ordered=ordered)
    return pd.DataFrame({"n": range(len(values)), "kind": pd.Series(list(values), dtype=kind)})


def of_arrow(values: Sequence[Any], order: Sequence[Any]) -> Any:
    """Of two chunks, each with a dictionary of its own; the second one's order is the reverse."""
    half = len(values) // 2
    chunks = []
    for part, known in ((values[:half], list(order)), (values[half:], list(order)[::-1])):
        codes = pa.array([None if each is None else known.index(each) for each in part], pa.int8())
        chunks.append(pa.DictionaryArray.from_arrays(codes, pa.array(known, pa.string())))
    return pa.table({"n": range(len(values)), "kind": pa.chunked_array(chunks)})


@given(VALUES, st.randoms())
def test_a_table_keeps_its_values_and_gets_the_codes_of_all(
    seen: list[list[Any]], chance: Any
) -> None:
    """Whatever categories the ranks have, in whatever order, a code means the same on all."""
    tables = []
    for each in seen:
        values = [*each, *each, None]
        chance.shuffle(values)
        tables.append(of_pandas(values, each))
    before = [table.copy() for table in tables]
    own = {rank: columns(table) for rank, table in enumerate(tables)}
    places = different(own, AssertionError)
    assert places in ([], [1])
    if not places:
        assert all(list(table.kind.cat.categories) == seen[0] for table in tables)
        return
    joined = union(
        "kind", {rank: categories(t, 1) for rank, t in enumerate(tables)}, AssertionError
    )
    assert sorted(joined) == joined and set(joined) == {value for each in seen for value in each}
    for table, old in zip(tables, before, strict=True):
        new = recoded(table, {1: joined})
        assert new.kind.cat.categories.tolist() == joined
        assert [None if pd.isna(each) else each for each in new.kind] == [
            None if pd.isna(each) else each for each in old.kind
        ]
        pd.testing.assert_frame_equal(table, old)  # the caller's is as it was
    coded = [columns(recoded(table, {1: joined})) for table in tables]
    assert different(dict(enumerate(coded)), AssertionError) == []


@given(st.lists(WORDS, unique=True, max_size=6), st.randoms())
def test_the_same_of_arrow(order: list[str], chance: Any) -> None:
    values = [*order, *order, None]
    chance.shuffle(values)
    table = of_arrow(values, order)
    own = categories(table, 1)
    assert set(own.values) == set(order)
    joined = union("kind", {0: own, 1: Categories("category", ("a", "zz"))}, AssertionError)
    new = recoded(table, {1: joined})
    assert new.column("kind").to_pylist() == values == table.column("kind").to_pylist()
    coded = new.column("kind").combine_chunks()
    assert coded.dictionary.to_pylist() == joined
    assert coded.type.value_type == pa.string()
    assert new.column("n").to_pylist() == list(range(len(values)))


def test_polars_is_read_as_arrow() -> None:
    pl = pytest.importorskip("polars")
    table = pl.DataFrame({"kind": pl.Series(["b", None, "a"], dtype=pl.Enum(["b", "a"]))})
    for each in (table, table.lazy()):
        found = _categories.table(each)
        assert categories(found, 0).values == ("b", "a")
        new = recoded(found, {0: ["a", "b", "c"]})
        assert new.column(0).to_pylist() == ["b", None, "a"]
    plain = pl.DataFrame({"n": [1]})
    assert _categories.table(plain) is plain
    assert columns(plain) == [Column("n")]


@given(st.lists(st.integers(), unique=True, min_size=2, max_size=7), st.data())
def test_ordered_categories_keep_their_order(order: list[int], data: Any) -> None:
    """Parts that share their neighbours have one order; others have none that is known."""
    cuts = sorted(data.draw(st.sets(st.integers(1, len(order) - 1), max_size=2)))
    begins, ends = [0, *cuts], [*(cut + 1 for cut in cuts), len(order)]
    parts = [order[begin:end] for begin, end in zip(begins, ends, strict=True)]
    data.draw(st.randoms()).shuffle(parts)
    seen = {rank: Categories("ordered category", tuple(each)) for rank, each in enumerate(parts)}
    assert union("size", seen, ValueError) == order


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        (["low", "high"], ["high", "low"], "contradict"),
        (["low", "high"], ["low", "mid"], "the order of 'high' and 'mid' is open"),
    ],
)
def test_orders_that_are_not_one(here: list[str], there: list[str], words: str) -> None:
    seen = {rank: Categories("ordered category", tuple(o)) for rank, o in ((0, here), (3, there))}
    with pytest.raises(KeyError) as raised:
        union("size", seen, KeyError)
    text = str(raised.value)
    assert words in text and "column 'size'" in text and "rank 0" in text and "rank 3" in text


def test_numbers_are_one_type_and_texts_another() -> None:
    some = {0: Categories("category", (2, 1)), 1: Categories("category", (1.0, 2.5))}
    joined = union("kind", some, ValueError)
    assert joined == [1.0, 2.0, 2.5] and all(isinstance(each, float) for each in joined)
    table = recoded(of_pandas([2, 1, None], [2, 1]), {1: joined})
    assert table.kind.cat.codes.tolist() == [1, 0, -1]
    with pytest.raises(ValueError, match=r"'kind': .* number on rank 0 and of type str on rank 1"):
        union("kind", {0: some[0], 1: Categories("category", ("1",))}, ValueError)
    empty = Categories("category", ())  # of a rank where all values are missing
    assert union("kind", {0: empty, 1: some[0]}, ValueError) == [1, 2]


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        (["a", "b"], ["b", "a"], "in another order: column 0 is 'a' on rank 0 and 'b' on rank 1"),
        (["a", "b"], ["a", "c"], "column 1 is 'b' on rank 0 and 'c' on rank 1"),
        (["a", "b"], ["a"], "2 on rank 0 and 1 on rank 1"),
    ],
)
def test_other_columns(here: list[str], there: list[str], words: str) -> None:
    seen = {0: [Column(name) for name in here], 1: [Column(name) for name in there]}
    with pytest.raises(ValueError, match="the ranks have") as raised:
        different(seen, ValueError)
    assert words in str(raised.value)


def test_a_column_that_is_a_category_on_some_ranks_only() -> None:
    table = of_pandas(["a"], ["a"])
    plain = columns(table.assign(kind=1.0))
    with pytest.raises(ValueError, match="'kind' is a category on rank 0 and not a category on"):
        different({0: columns(table), 2: plain}, ValueError)
    with pytest.raises(ValueError, match="an ordered category on rank 1"):
        different({0: columns(table), 1: columns(of_pandas(["a"], ["a"], True))}, ValueError)
    with pytest.raises(ValueError, match="rank 1 has an array without names"):
        different({0: columns(table), 1: None}, ValueError)
    assert different({0: plain, 1: None}, ValueError) == []


def test_columns_of_one_name() -> None:
    table = pd.concat([of_pandas(["b"], ["b"]), of_pandas(["b"], ["b"])], axis=1)
    new = recoded(table, {1: ["a", "b"], 3: ["b", "c"]})
    assert [new.iloc[:, at].cat.categories.tolist() for at in (1, 3)] == [["a", "b"], ["b", "c"]]
