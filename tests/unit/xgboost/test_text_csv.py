"""CSV text over ranks: every row once and in order, empty fields missing, errors at their lines."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shanty.xgboost.text.csv import read_csv
from shanty.xgboost.text.rows import FormatError


def table(parts) -> np.ndarray:
    """Label, weight and fields of all rows."""
    rows = [np.empty((0, 0), np.float32)]
    for part in parts:
        assert part.indptr is part.qids is None and part.data.dtype == np.float32
        columns = [each for each in (part.labels, part.weights) if each is not None]
        assert part.size == len(part.data) > 0
        rows.append(np.column_stack([*columns, part.data]))
    return np.concatenate(rows[1:] or rows)


def file_of(folder: Path, text: bytes) -> Path:
    path = folder / "data.csv"
    path.write_bytes(text)
    return path


fields = st.one_of(
    st.integers(-5, 300).map(str),
    st.floats(-1e6, 1e6).map(lambda x: f"{x:.4f}"),
    st.floats(-(2.0**90), 2.0**90, width=32).map(repr),
    st.sampled_from(["", "", " 7", "2\t", " ", "nan", "1e-5", "-inf", ".5"]),
)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5).flatmap(
        lambda width: st.lists(
            st.lists(fields, min_size=width + 2, max_size=width + 2), min_size=0, max_size=12
        )
    ),
    ends=st.lists(st.sampled_from(["\n", "\r\n", "\r", "\n\n"]), min_size=12, max_size=12),
    cut=st.booleans(),
    delimiter=st.sampled_from([",", ";", "|"]),
    ranks=st.integers(1, 7),
    chunk=st.sampled_from([1, 20, 4096]),
)
def test_every_row_is_read_once(folder, rows, ends, cut, delimiter, ranks, chunk):
    rows = [[f"{place}", "0.5", *row[2:]] for place, row in enumerate(rows)]
    text = "".join(delimiter.join(row) + end for row, end in zip(rows, ends, strict=False))
    path = file_of(folder, (text.rstrip("\r\n") if cut else text).encode())
    how = {"label_column": 0, "weight_column": 1, "delimiter": delimiter, "chunk": chunk}
    parts = [part for rank in range(ranks) for part in read_csv([path], rank, ranks, **how)]
    wanted = [[float(f) if f.strip() else np.nan for f in row] for row in rows]
    got = table(parts)
    assert len(got) == len(wanted)
    if wanted:
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(np.isnan(got), np.isnan(np.array(wanted)))
            np.testing.assert_array_max_ulp(
                np.nan_to_num(got), np.nan_to_num(np.array(wanted, np.float32)), 1
            )


def test_the_plain_case(tmp_path):
    path = file_of(tmp_path, b"5,1,0.5\n6,,2\n")
    (rows,) = read_csv([path], 0, 1, label_column=0)
    np.testing.assert_array_equal(rows.data, np.array([[1, 0.5], [np.nan, 2]], np.float32))
    assert rows.labels.tolist() == [5, 6] and rows.weights is None
    (rows,) = read_csv([path], 0, 1)
    assert rows.labels is None and rows.data.shape == (2, 3)


def test_a_delimiter_may_be_a_blank(tmp_path):
    path = file_of(tmp_path, b"1\t\t3\n4\t5\t6\n")
    (rows,) = read_csv([path], 0, 1, delimiter="\t", label_column=2)
    np.testing.assert_array_equal(rows.data, np.array([[1, np.nan], [4, 5]], np.float32))
    assert rows.labels.tolist() == [3, 6]


WRONG = {
    "word": (b"1,2,x", "field 2 (from 0) is 'x', which is not a number"),
    "header": (b"a,b,c", "remove a line of names"),
    "quotes": (b'1,"2",3', "is not a number"),
    "too few": (b"1,2", "it has 2 fields, and rows before it have 3"),
    "too many": (b"1,2,3,4", "it has 4 fields, and rows before it have 3"),
    "no label": (b",2,3", "its label (field 0 from 0) is empty or nan"),
    "nan weight": (b"1,nan,3", "its weight (field 1 from 0) is empty or nan"),
    "two numbers": (b"1,2 3,3", "'2 3', which is not a number"),
    "other delimiter": (b"1;2;3", "'1;2;3', which is not a number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_malformed_line_is_named_whoever_reads_it(tmp_path, case):
    bad, message = WRONG[case]
    good = b"1,1,0.25\r\n"
    path = file_of(tmp_path, good * 30 + bad + b"\r\n" + good * 20)
    for ranks in (1, 4):
        caught = []
        for rank in range(ranks):
            try:
                list(read_csv([path], rank, ranks, label_column=0, weight_column=1, chunk=100))
            except FormatError as error:
                caught.append(error)
        (error,) = caught
        assert error.line == 31 and message in str(error)
        assert re.search(r"data\.csv, line 31: ", str(error))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"label_column": 3}, "label_column=3, and it has 3 fields"),
        ({"label_column": 0, "delimiter": ";"}, "is not a number"),
    ],
    ids=["column", "delimiter"],
)
def test_a_wrong_column_or_delimiter_is_an_error_of_the_first_line(tmp_path, how, message):
    path = file_of(tmp_path, b"1,2,3\n4,5,6\n")
    with pytest.raises(FormatError, match=re.escape(message)) as caught:
        list(read_csv([path], 0, 1, **how))
    assert caught.value.line == 1


@pytest.mark.parametrize(
    "how",
    [{"delimiter": ""}, {"delimiter": ",,"}, {"delimiter": "."}, {"weight_column": 1}],
    ids=str,
)
def test_wrong_arguments_are_refused_at_once(tmp_path, how):
    with pytest.raises(ValueError, match=r"delimiter=|label_column and weight_column"):
        read_csv([tmp_path / "none"], 0, 1, label_column=1, **how)


@settings(max_examples=15, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3), st.floats(-1e3, 1e3), st.none() | st.integers(0, 99)),
        min_size=1,
        max_size=8,
    ),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_xgboost_reads_the_same(folder, rows, end):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    lines = [f"{y},{'' if b is None else b},{a:.3f}{end}" for y, a, b in rows]
    path = file_of(folder, "".join(lines).encode())
    with xgboost.config_context(verbosity=0):
        theirs = xgboost.DMatrix(f"{path}?format=csv&label_column=0")
    (ours,) = read_csv([path], 0, 1, label_column=0)
    assert np.array_equal(theirs.get_label(), ours.labels)
    matrix = theirs.get_data()
    dense = np.full(ours.data.shape, np.nan, np.float32)
    dense[np.repeat(np.arange(len(rows)), np.diff(matrix.indptr)), matrix.indices] = matrix.data
    np.testing.assert_array_equal(np.isnan(dense), np.isnan(ours.data))
    np.testing.assert_array_max_ulp(np.nan_to_num(dense), np.nan_to_num(ours.data), 1)
