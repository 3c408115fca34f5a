"""LibSVM text over ranks: every row once and in order, whole qid groups, errors at their lines."""

import gzip
import os
import pickle
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runs import examples
from shanty.xgboost.text.digits import Digits
from shanty.xgboost.text.files import measure
from shanty.xgboost.text.libsvm import _rows_at_once, read_libsvm
from shanty.xgboost.text.line_by_line import rows_by_line
from shanty.xgboost.text.rows import ENTRY, FormatError
from shanty.xgboost.text.short_numbers import Short

# ------------------------------------------------------------------ what text means, said simply


def expected(texts: list[bytes]) -> list[tuple]:
    """(label, weight, qid, [(index, value), …]) of every row of some files."""
    rows = []
    for text in texts:
        for line in re.split(rb"\r\n|\n|\r", text.removeprefix(b"\xef\xbb\xbf")):
            words = line.split(b"#")[0].split()
            if words:
                label, _, weight = words.pop(0).partition(b":")
                qid = int(words.pop(0)[4:]) if words and words[0].startswith(b"qid:") else None
                pairs = [word.partition(b":") for word in words]
                entries = [(int(i), np.float32(float(v) if c else 1)) for i, c, v in pairs]
                w = np.float32(float(weight)) if weight else None
                rows.append((np.float32(float(label)), w, qid, entries))
    return rows


def flat(parts) -> list[tuple]:
    """The same of what a reader gave; looks at every shape and type on the way."""
    rows = []
    for part in parts:
        assert part.size == len(part.labels) == len(part.indptr) - 1 > 0
        assert part.indptr[0] == 0 and part.indptr[-1] == len(part.data)
        kinds = [part.data.dtype, part.indptr.dtype, part.labels.dtype]
        assert kinds == [ENTRY, np.int64, np.float32]
        for at in range(part.size):
            entries = part.data[part.indptr[at] : part.indptr[at + 1]]
            pairs = list(zip(entries["index"].tolist(), entries["value"], strict=True))
            weight = None if part.weights is None else part.weights[at]
            qid = None if part.qids is None else int(part.qids[at])
            rows.append((part.labels[at], weight, qid, pairs))
    return rows


def same(got: list[tuple], wanted: list[tuple]) -> None:
    """Equal; a float32 may be off by one in its last place."""
    assert len(got) == len(wanted)
    for (label, weight, qid, entries), (label_, weight_, qid_, entries_) in zip(
        got, wanted, strict=True
    ):
        assert qid == qid_ and (weight is None) == (weight_ is None)
        assert [index for index, _ in entries] == [index for index, _ in entries_]
        numbers = np.array([label, weight or 0, *(value for _, value in entries)], np.float32)
        numbers_ = np.array([label_, weight_ or 0, *(value for _, value in entries_)], np.float32)
        assert np.array_equal(np.isnan(numbers), np.isnan(numbers_))
        np.testing.assert_array_max_ulp(np.nan_to_num(numbers), np.nan_to_num(numbers_), 1)


def files_of(folder: Path, texts: list[bytes], packed: bool = False) -> list[Path]:
    paths = []
    for place, text in enumerate(texts):
        paths.append(folder / f"{place}.libsvm{'.gz' if packed else ''}")
        paths[-1].write_bytes(gzip.compress(text, 1) if packed else text)
    return paths


def all_ranks(paths: list[Path], ranks: int, **how) -> list[list[tuple]]:
    return [flat(read_libsvm(paths, rank, ranks, **how)) for rank in range(ranks)]


# ------------------------------------------------------------------------------ any such text

ends = st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"\n \t\n", b"\r\n# c 1:2\r\n"])
blanks = st.sampled_from([b" ", b" ", b" ", b"\t", b"  "])
plain = st.one_of(
    st.integers(0, 300).map(lambda n: b"%d" % n),
    st.floats(0, 1e6).map(lambda x: b"%.5f" % x),
    st.floats(-1, 1).map(lambda x: b"%.16g" % x),
    st.tuples(st.integers(0, 10**25), st.integers(0, 10**22)).map(lambda p: b"%d.%d" % p),
)
odd = st.one_of(
    st.floats(-(2.0**100), 2.0**100, width=32).map(lambda x: b"%e" % x),
    st.sampled_from([b"nan", b"-inf", b"+1", b"-.5", b"3.", b"1e5", b"2.5E-07", b"0", b"1e-300"]),
    st.sampled_from([b"0" * 40 + b"7", b"0." + b"3" * 60, b"-0.0", b"1.5e+007"]),
)
values = st.one_of(plain, plain, plain, odd)
indices = st.one_of(st.integers(0, 30), st.integers(0, 2**31 - 1)).map(lambda n: b"%d" % n)
entries = st.one_of(
    st.tuples(indices, values).map(b":".join), st.tuples(indices, values).map(b":".join), indices
)


@st.composite
def libsvm(draw, kinds=((False, False), (True, False), (False, True), (True, True))) -> list[bytes]:
    """Texts of one to three files, of one kind."""
    weights, qids = draw(st.sampled_from(kinds))
    qid = 0
    texts = []
    for _ in range(draw(st.integers(1, 3))):
        text = b"\xef\xbb\xbf" if draw(st.integers(0, 5)) == 5 else b""
        for _ in range(draw(st.integers(0, 12))):
            qid += draw(st.sampled_from([0, 0, 1, 10**9])) if qids else 0
            words = [draw(values) + (b":" + draw(values) if weights else b"")]
            words += [b"qid:%d" % qid] if qids else []
            words += draw(st.lists(entries, max_size=6))
            text += draw(st.sampled_from([b"", b"", b"", b" "])) + draw(blanks).join(words)
            text += draw(st.sampled_from([b"", b"", b" ", b"# c 5:6 \xe9"]))
            text += draw(ends)
        if draw(st.booleans()):
            text = text.rstrip(b"\r\n")
        texts.append(text)
    return texts


@settings(max_examples=100, deadline=None)
@given(
    texts=libsvm(),
    ranks=st.integers(1, 9),
    chunk=st.sampled_from([1, 3, 16, 50, 4096]),
    packed=st.integers(0, 9).map(lambda n: n == 0),
)
def test_every_row_is_read_once_and_in_order(folder, texts, ranks, chunk, packed):
    paths = files_of(folder, texts, packed)
    parts = all_ranks(paths, ranks, chunk=chunk)
    same([row for part in parts for row in part], expected(texts))
    # A group is one rank's, wherever the cuts are.
    owners = {}
    for rank, part in enumerate(parts):
        for row in part:
            assert row[2] is None or owners.setdefault(row[2], rank) == rank


@settings(max_examples=100, deadline=None)
@given(
    text=libsvm().map(b"\n".join),
    changes=st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from([bytes([c]) for c in b" :.-+e0#\t\nq9,\0\xff"])),
        max_size=4,
    ),
    indexing_mode=st.integers(0, 1),
)
def test_what_is_read_at_once_is_what_the_lines_say(text, changes, indexing_mode):
    """Whatever is broken in it: no line is taken for a row that is none."""
    for where, character in changes:
        place = int(where * len(text))
        text = text[:place] + character + text[place + 1 :]
    at_once = _rows_at_once(Digits(), np.frombuffer(text, np.uint8), indexing_mode)
    if at_once is not None:
        with np.errstate(over="ignore"):
            by_line = rows_by_line(text, indexing_mode, None)  # raises if a line is no row
        same(flat([at_once]), flat([by_line]))


digits = st.text("0123456789", min_size=1, max_size=4).map(str.encode)
short_entry = st.tuples(digits, digits).map(b":".join)
short_row = st.tuples(digits, st.lists(short_entry, max_size=5)).map(
    lambda row: b" ".join([row[0], *row[1]])
)


@settings(max_examples=examples(200), deadline=None)
@given(
    rows=st.lists(short_row, min_size=1, max_size=8),
    end=st.sampled_from([b"\n", b"\r"]),
    change=st.none()
    | st.tuples(st.floats(0, 1), st.sampled_from([bytes([c]) for c in b" :.-0#\t\n\rq,\0/\xff"])),
    indexing_mode=st.integers(0, 1),
)
def test_short_numbers_are_what_the_lines_say(rows, end, change, indexing_mode):
    """Read twice by one reader: the second time its arrays have something in them."""
    text = b"".join(row + end for row in rows)
    if change is not None:
        at = int(change[0] * len(text))
        text = text[:at] + change[1] + text[at + 1 :]
    reader = Short()
    reader.rows(np.frombuffer(b"1234 99:5678\n" * 40, np.uint8), 0)
    found = reader.rows(np.frombuffer(text, np.uint8), indexing_mode)
    if change is None and indexing_mode == 0:
        assert found is not None
    if found is not None:
        expected = rows_by_line(text, indexing_mode, None)
        assert expected is not None
        assert flat([found]) == flat([expected])
        assert np.array_equal(found.data, expected.data)


@pytest.mark.parametrize("odd", [b"12345", b"1.5", b"-1", b"1e3", b"0:1:2", b""])
def test_numbers_of_another_form_are_not_short(odd):
    text = b"1 0:1 3:2\n0 1:1 2:%s\n1 0:1\n"
    assert Short().rows(np.frombuffer(text % b"5", np.uint8), 0) is not None
    assert Short().rows(np.frombuffer(text % odd, np.uint8), 0) is None


@settings(max_examples=40, deadline=None)
@given(texts=libsvm(kinds=((False, False), (True, False))), ranks=st.integers(1, 20))
def test_a_row_is_the_ranks_in_whose_range_its_line_begins(folder, texts, ranks):
    paths = files_of(folder, texts)
    total, at, wanted = sum(map(len, texts)), 0, [0] * ranks
    cuts = [total * rank // ranks for rank in range(ranks + 1)]
    for text in texts:
        for line in re.findall(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z", text):
            if line.removeprefix(b"\xef\xbb\xbf").split(b"#")[0].strip():
                wanted[[a <= at < b for a, b in pairwise(cuts)].index(True)] += 1
            at += len(line)
    assert [len(part) for part in all_ranks(paths, ranks)] == wanted


# --------------------------------------------------------------------------------- some texts


def test_the_plain_case(tmp_path):
    (path,) = files_of(tmp_path, [b"1 0:0.5 3:2\n-1 1:1e-3\n+1\n"])
    (rows,) = read_libsvm([path], 0, 1)
    assert rows.labels.tolist() == [1, -1, 1] and rows.indptr.tolist() == [0, 2, 3, 3]
    assert rows.weights is None and rows.qids is None
    assert rows.data.tolist() == [(0, 0.5), (3, 2), (1, np.float32(1e-3))]


def test_indices_may_count_from_one(tmp_path):
    (path,) = files_of(tmp_path, [b"1 1:5 7:6\n"])
    (rows,) = read_libsvm([path], 0, 1, indexing_mode=1)
    assert rows.data["index"].tolist() == [0, 6]
    with pytest.raises(ValueError, match="indexing_mode=-1"):
        read_libsvm([path], 0, 1, indexing_mode=-1)


def test_a_group_longer_than_several_shares_is_the_first_ones(tmp_path):
    line = b"1 qid:7 1:0.25\n"
    texts = [b"0 qid:3 1:1\n" + line * 500, line * 800 + b"0 qid:9 2:1\n"]
    counts = [len(part) for part in all_ranks(files_of(tmp_path, texts), 9, chunk=200)]
    assert counts == [1301, 0, 0, 0, 0, 0, 0, 0, 1]


def test_the_row_before_is_found_behind_long_comments(tmp_path):
    texts = [b"1 qid:1 1:1\n" + (b"#" * 99 + b"\n") * 4000 + b"0 qid:1 1:1\n1 qid:2 1:1\n"]
    counts = [len(part) for part in all_ranks(files_of(tmp_path, texts), 2)]
    assert counts == [2, 1]


def test_more_ranks_than_bytes_and_nothing_at_all(tmp_path):
    paths = files_of(tmp_path, [b"", b"1", b""])
    assert [len(part) for part in all_ranks(paths, 5)] == [0, 0, 0, 0, 1]
    assert all_ranks(paths[:1], 3) == [[], [], []] == all_ranks([], 3)


@pytest.mark.parametrize("ranks", [1, 3, 9])
def test_a_packed_file_of_several_members(tmp_path, ranks):
    """As `cat a.gz b.gz` makes one; a line may go on in the next member."""
    lines = [b"1 0:%d\n0 3" % n + (b":2\r" if n % 2 else b":4\n") for n in range(50)]
    path = tmp_path / "members.libsvm.gz"
    path.write_bytes(
        b"".join(gzip.compress(b"".join(lines)[at : at + 37]) for at in range(0, 900, 37))
    )
    text = b"".join(lines)[:900]
    assert measure([path]) == [len(text)]
    parts = all_ranks([path], ranks, chunk=50, sizes=[len(text)])
    same([row for part in parts for row in part], expected([text]))


def test_measuring_a_packed_file_can_be_called_off(tmp_path, monkeypatch):
    monkeypatch.setattr("shanty.xgboost.text.files._PAUSE", 1000)
    (path,) = files_of(tmp_path, [b"1 1:1\n" * 500], packed=True)
    asked = []
    assert measure([path], lambda: asked.append(1)) == [3000]
    assert len(asked) == 3

    def off():
        raise InterruptedError

    with pytest.raises(InterruptedError):
        measure([path], off)


def test_a_rank_reads_its_own_bytes_only(tmp_path, monkeypatch):
    (path,) = files_of(tmp_path, [b"1 1:0.5 2:0.25 10:3\n" * 100_000])
    read = []
    real = os.preadv

    def counted(descriptor, buffers, place):
        got = real(descriptor, buffers, place)
        read.append((place, got))
        return got

    monkeypatch.setattr(os, "preadv", counted)
    rows = list(read_libsvm([path], 1, 4))
    share = path.stat().st_size // 4
    assert sum(part.size for part in rows) == 25_000
    assert sum(got for _, got in read) <= share + 8192
    assert min(at for at, _ in read) >= share - 1
    assert max(at + got for at, got in read) <= 2 * share + 8192


# ------------------------------------------------------------------------------------- faults

WRONG = {
    "word": (b"1 1:2 abc 3:4", "'abc' is not index:value"),
    "no value": (b"1 1: 3:4", "'1:' is not index:value"),
    "no index": (b"1 :5 2:1", "':5' is not index:value"),
    "no index at a word's end": (b"1 :5 2", "':5' is not index:value"),
    "only colons": (b"1 : :", "':' is not index:value"),
    "no label": (b":1 2:1", "':1', which is not a label"),
    "plus before an index": (b"1 +3:1", "'+3:1' is not index:value"),
    "fraction as index": (b"1 1.5:2", "'1.5:2' is not index:value"),
    "exponent as index": (b"1 1e3:2", "'1e3:2' is not index:value"),
    "qid alone": (b"qid:3 1:2", "'qid:3', which is not a label"),
    "two labels": (b"1 2:1 3 4:x", "'4:x' is not index:value"),
    "two colons": (b"1 1:2:3", "'1:2:3' is not index:value"),
    "two points": (b"1 1:2.3.4", "'1:2.3.4' is not index:value"),
    "no number": (b"1 1:2x", "'1:2x' is not index:value"),
    "underscore": (b"1 1:1_0", "'1:1_0' is not index:value"),
    "negative index": (b"1 -1:2", "'-1:2' is not index:value"),
    "point alone": (b"1 1:.", "'1:.' is not index:value"),
    "sign alone": (b"1 1:- 2:1", "'1:-' is not index:value"),
    "sign within": (b"1 1:2-3", "'1:2-3' is not index:value"),
    "exponent alone": (b"1 1:e5", "'1:e5' is not index:value"),
    "exponent empty": (b"1 1:2e", "'1:2e' is not index:value"),
    "comma": (b"1,2,3", "'1,2,3', which is not a label"),
    "large index": (b"1 2147483648:1", "has an index above 2147483647"),
    "larger index": (b"1 99999999999999999999:1", "has an index above 2147483647"),
    "label": (b"x 1:2", "'x', which is not a label"),
    "weight": (b"1: 1:2", "'1:', which is not a label"),
    "one weight": (b"1:2 1:2", "has a weight"),
    "one qid": (b"1 qid:3 1:2", "has a qid"),
    "late qid": (b"1 1:2 qid:3", "'qid:3' must follow the label"),
    "zero byte": (b"1 1:2\0 2:1", "is not index:value"),
    "form feed": (b"1 1:2\f2:1", "is not index:value"),
    "not ascii": (b"1 1:2\xc3\xa9", "is not index:value"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
def test_a_malformed_line_is_named_whoever_reads_it(tmp_path, case, end):
    bad, message = WRONG[case]
    good = b"1 1:0.5 2:3" + end
    first, second = files_of(
        tmp_path, [good * 10, good * 40 + b"# c" + end + end + bad + end + good * 20]
    )
    for ranks in (1, 3, 7):
        caught = []
        for rank in range(ranks):
            try:
                list(read_libsvm([first, second], rank, ranks, chunk=64))
            except FormatError as error:
                caught.append(error)
        (error,) = caught
        assert (error.path, error.line) == (str(second), 43)
        assert message in str(error) and f"{second}, line 43: " in str(error)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("bad", [b"1 1:2", b"1 qid: 1:2", b"1 qid:x 1:2", b"1 qid:-1 1:2"])
def test_a_row_without_its_qid(tmp_path, bad):
    (path,) = files_of(tmp_path, [b"1 qid:5 1:2\n" * 6 + bad + b"\n" + b"1 qid:6 1:2\n" * 3])
    with pytest.raises(FormatError, match=r"0\.libsvm, line 7: .*(no qid|not a query id)"):
        list(read_libsvm([path], 0, 1, chunk=30))


def test_a_long_line_is_shortened(tmp_path):
    (path,) = files_of(tmp_path, [b"1 " + b"x" * 10**6])
    with pytest.raises(FormatError) as caught:
        list(read_libsvm([path], 0, 1))
    assert len(str(caught.value)) < 600


def test_a_file_that_is_missing_broken_or_cut_is_an_oserror(tmp_path):
    (path,) = files_of(tmp_path, [b"1 1:1\n" * 5000], packed=True)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(OSError, match="incomplete or damaged"):
        measure([path])
    with pytest.raises(FileNotFoundError):
        read_libsvm([tmp_path / "none"], 0, 1)
    (plain,) = files_of(tmp_path, [b"1 1:1\n"])
    with pytest.raises(OSError, match="became shorter"):
        list(read_libsvm([plain], 0, 1, sizes=[100]))


# ------------------------------------------------------------------------------ against XGBoost


@settings(max_examples=20, deadline=None)
@example(rows=[(b"0", {0: b"2.715552230233e-290"})], end=b"\n", qids=False)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from([b"0", b"1", b"-1", b"+1", b"0.5"]),
            st.dictionaries(st.integers(0, 5000), plain, min_size=1, max_size=8),
        ),
        min_size=1,
        max_size=10,
    ),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    qids=st.booleans(),
)
def test_xgboost_reads_the_same(folder, rows, end, qids):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    lines = []
    for place, (label, pairs) in enumerate(rows):
        words = [label, *([b"qid:%d" % (place // 3)] if qids else [])]
        values = ((i, v[:15].rstrip(b"eE+-")) for i, v in sorted(pairs.items()))  # no cut exponent
        lines.append(b" ".join([*words, *(b"%d:%s" % each for each in values)]) + end)
    (path,) = files_of(folder, [b"".join(lines)])
    with xgboost.config_context(verbosity=0):
        theirs = xgboost.DMatrix(f"{path}?format=libsvm")
    (ours,) = read_libsvm([path], 0, 1)
    matrix = theirs.get_data()
    assert np.array_equal(matrix.indices, ours.data["index"])
    assert np.array_equal(matrix.indptr, ours.indptr)
    assert np.array_equal(theirs.get_label(), ours.labels)
    np.testing.assert_array_max_ulp(matrix.data, ours.data["value"].copy(), 1)
    if qids:
        changes = np.flatnonzero(np.diff(ours.qids)) + 1
        assert theirs.get_uint_info("group_ptr").tolist() == [0, *changes, len(rows)]
