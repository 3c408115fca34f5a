"""Files beside the data: weights and margins by row number, whole groups by their sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shanty.xgboost.text.csv import read_csv
from shanty.xgboost.text.libsvm import read_libsvm
from shanty.xgboost.text.rows import FormatError
from shanty.xgboost.text.side_files import count_rows, groups_of_share, numbers


def test_numbers_of_some_rows(tmp_path):
    path = tmp_path / "a.weight"
    path.write_bytes(b"0.5\r\n\r\n1\r\n 2e0 \r\n3\r\n4")
    assert numbers(path, 0, 5, 5).tolist() == [0.5, 1, 2, 3, 4]
    assert numbers(path, 1, 3, 5).tolist() == [1, 2, 3]
    assert numbers(path, 4, 1, 5).tolist() == [4] and numbers(path, 5, 0, 5).tolist() == []
    assert numbers(path, 3, 2, 5).dtype == np.float32


def test_numbers_of_rows_far_into_a_file(tmp_path):
    path = tmp_path / "a.weight"
    path.write_text("".join(f"{n}\n" for n in range(200_000)))
    assert numbers(path, 150_000, 2, 200_000).tolist() == [150_000, 150_001]
    assert numbers(path, 199_999, 1, 200_000).tolist() == [199_999]


def test_several_numbers_a_row(tmp_path):
    path = tmp_path / "a.base_margin"
    path.write_bytes(b"1 2\n3 4\n5\t6\n")
    assert numbers(path, 1, 2, 3).tolist() == [[3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (b"1\n\nx\n2\n", 3, "'x' is not a number"),
        (b"1\n2 3\n4\n", 2, "it holds 2 numbers, the line before 1"),
        (b"1\n2", 2, "rows 0 to 2 need one number each, and 1 are missing"),
        (b"", 1, "3 are missing"),
        (b"1\n2\n3\n\n4\n5\n", 5, "3 lines are needed, and this is one more"),
    ],
    ids=["word", "width", "short", "empty", "long"],
)
def test_wrong_numbers(tmp_path, text, line, message):
    path = tmp_path / "a.weight"
    path.write_bytes(text)
    with pytest.raises(FormatError, match=message) as caught:
        numbers(path, 0, 3, 3)
    assert caught.value.line == line


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(
        st.sampled_from(["1 1:2", "0", "# c", "", " ", " # 1:2", "0 # c", "1:2 5:1"]), max_size=20
    ),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    ranks=st.integers(1, 6),
)
def test_counted_are_the_rows_that_begin_in_a_share(folder, lines, end, ranks):
    path = folder / "x"
    path.write_bytes(end.join(lines).encode())
    plain = path.with_name("y")
    plain.write_bytes(end.join(line for line in lines if ":2 5" not in line).encode())
    rows = [sum(part.size for part in read_libsvm([plain], r, ranks)) for r in range(ranks)]
    assert [count_rows([plain], rank, ranks) for rank in range(ranks)] == rows
    assert sum(count_rows([path], rank, ranks) for rank in range(ranks)) == sum(
        bool(line.split("#")[0].strip()) for line in lines
    )


def test_counted_rows_of_csv_have_no_comments(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"\r\n1,2\r\n,\r\n\r\n# ,1")
    assert count_rows([path], 0, 1, comment=None) == 3


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    ranks=st.integers(1, 6),
    table=st.booleans(),
)
def test_groups_by_number_stay_whole(folder, sizes, ranks, table):
    data, groups = folder / "x", folder / "x.group"
    data.write_text("".join(f"{n}{',' if table else ' 1:'}{n}\n" for n in range(sum(sizes))))
    groups.write_text("".join(f"{size}\n" for size in sizes))
    counts = [count_rows([data], rank, ranks) for rank in range(ranks)]
    starts = np.cumsum([0, *counts])[:-1]
    rows, found = [], []
    for rank in range(ranks):
        mine = groups_of_share(groups, int(starts[rank]), counts[rank], sum(counts))
        more = {"skip": mine.skip, "extra": mine.extra}
        if table:
            parts = list(read_csv([data], rank, ranks, label_column=0, **more))
        else:
            parts = list(read_libsvm([data], rank, ranks, **more))
        labels = [label for part in parts for label in part.labels.tolist()]
        assert len(labels) == mine.group_sizes.sum() == counts[rank] - mine.skip + mine.extra
        rows += labels
        found += mine.group_sizes.tolist()
    assert rows == list(range(sum(sizes)))
    assert found == (sizes if sum(sizes) else [])


def test_groups_that_do_not_fit(tmp_path):
    path = tmp_path / "x.group"
    path.write_bytes(b"3\n4\n")
    with pytest.raises(FormatError, match=r"line 2: .* 7 rows in all, and the data has 8 or more"):
        groups_of_share(path, 5, 3, 8)
    path.write_bytes(b"3\n-4\n")
    with pytest.raises(FormatError, match=r"line 2: it is not the size of a group"):
        groups_of_share(path, 0, 7, 7)
    path.write_bytes(b"3\n4\n\n0\n1\n")
    with pytest.raises(FormatError, match=r"line 5: .* have 8 rows, and the data has 7"):
        groups_of_share(path, 5, 2, 7)
    path.write_bytes(b"3\n5\n")
    with pytest.raises(FormatError, match=r"line 2: .* have 8 rows, and the data has 7"):
        groups_of_share(path, 0, 4, 7)
    data = tmp_path / "x"
    data.write_bytes(b"1 1:1\n" * 7)
    with pytest.raises(ValueError, match="the last group has 2 more rows"):
        list(read_libsvm([data], 0, 1, extra=2))


def test_it_can_be_called_off(tmp_path):
    """Whoever reads asks between two pieces whether to go on."""
    data, side = tmp_path / "x", tmp_path / "x.group"
    data.write_bytes(b"1 1:1\n" * 3)
    side.write_bytes(b"1\n" * 3)

    def off():
        raise InterruptedError

    for work in (
        lambda: count_rows([data], 0, 1, between=off),
        lambda: numbers(side, 0, 3, 3, off),
        lambda: groups_of_share(side, 0, 3, 3, off),
    ):
        with pytest.raises(InterruptedError):
            work()
