"""Which files a name means, and rows of npz and Parquet: every one exactly once, groups whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("scipy")

from scipy.sparse import csr_matrix, random, save_npz

from runs import examples
from shanty.xgboost import groups
from shanty.xgboost.errors import DataError
from shanty.xgboost.groups import whole_groups
from shanty.xgboost.npz import Arrays
from shanty.xgboost.share import Share, Summary, agree
from shanty.xgboost.sources import is_source, parse, side_files
from shanty.xgboost.text.rows import Rows


def rows(labels: np.ndarray, qids: np.ndarray | None = None) -> Rows:
    values = labels[:, None].astype(np.float32)
    return Rows(values, None, labels.astype(np.float32), None, qids)


# ---- groups --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(1, 9), st.integers(1, 7))
def test_groups_stay_whole(sizes: list[int], ranks: int, piece: int) -> None:
    qids = np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)
    count = len(qids)

    def pieces(start: int) -> Iterator[Rows]:
        for first in range(start, count, piece):
            some = np.arange(first, min(first + piece, count))
            yield rows(some, qids[some])

    found = []
    for rank in range(ranks):
        start, stop = rank * count // ranks, (rank + 1) * count // ranks
        begun = start > 0
        parts = list(whole_groups(pieces(start - begun), stop - start, begun))
        own = np.concatenate([each.labels for each in parts]) if parts else np.empty(0)
        if len(own):
            first, last = int(own[0]), int(own[-1])
            assert first == 0 or qids[first - 1] != qids[first]
            assert last == count - 1 or qids[last + 1] != qids[last]
        found.append(own)
    assert np.concatenate(found).tolist() == list(range(count))


@pytest.mark.parametrize(
    ("qids", "sizes"),
    [
        ([], []),
        ([4], [1]),
        ([5, 5, 3, 7, 7, 7], [2, 1, 3]),
        ([1, 1, 1 + 2**32, 2**64 - 1, 2**64 - 1], [2, 1, 2]),
    ],
    ids=["none", "one", "falling", "large"],
)
def test_sizes_of_groups(qids: list[int], sizes: list[int]) -> None:
    found = np.array(qids, np.uint64)
    assert groups.sizes(found).tolist() == sizes
    assert np.repeat(groups.ids(found), sizes).tolist() == qids


def test_groups_that_come_back() -> None:
    groups.refuse_twice(np.array([5, 3, 2**64 - 1], np.uint64), "a.npz")
    with pytest.raises(DataError, match=r"a\.npz: qid 3 comes back"):
        groups.refuse_twice(np.array([3, 5, 3], np.uint64), "a.npz")
    assert not groups.overlap([(7, 9), None, (1, 6), (10, 10)])
    assert groups.overlap([(7, 9), None, (1, 7)])
    assert groups.overlap([(3, 4), (1, 9), (12, 13)])


# ---- npz and Parquet -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "compressed", "sparse", "parquet"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("ranking", [False, True], ids=["rows", "groups"])
def test_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, ranks: int, ranking: bool
) -> None:
    monkeypatch.setattr("shanty.xgboost.npz._PIECE", 64)  # several pieces
    monkeypatch.setattr("shanty.xgboost.parquet._BATCH", 4)
    counts = (23, 0, 8)
    matrix = random(sum(counts), 5, 0.6, "csr", dtype=np.float32, random_state=2)
    labels = np.arange(sum(counts), dtype=np.int64)
    qids = labels // 4
    files, first = [], 0
    for number, count in enumerate(counts):
        part = slice(first, first + count)
        first += count
        path = tmp_path / f"{number}.{'parquet' if kind == 'parquet' else 'npz'}"
        beside = {"y": labels[part], **({"qid": qids[part]} if ranking else {})}
        if kind == "sparse":
            some = matrix[part]
            arrays = {"data": some.data, "indices": some.indices, "indptr": some.indptr}
            np.savez(path, **arrays, shape=some.shape, format=b"csr", **beside)
        elif kind == "parquet":
            arrow = pytest.importorskip("pyarrow")
            parquet = pytest.importorskip("pyarrow.parquet")
            dense = matrix[part].toarray()
            columns = {f"f{index}": dense[:, index] for index in range(5)}
            parquet.write_table(arrow.table({**columns, **beside}), path, row_group_size=6)
        else:
            save = np.savez if kind == "dense" else np.savez_compressed
            save(path, X=matrix[part].toarray(), **beside)
        files.append(str(path))
    if kind == "parquet":
        from shanty.xgboost.parquet import Table

        names = {"label": "y", **({"qid": "qid"} if ranking else {})}
        table: Table | Arrays = Table(files, names)
    else:
        table = Arrays(files, {})
    seen, values = [], []
    for rank in range(ranks):
        share = Share()
        for piece in table.share(rank, ranks):
            share.add(piece)
        own = share.meta("label")
        seen.append(np.empty(0) if own is None else own)
        with share.matrix(5, kind != "sparse") as found:
            values.append(found.toarray() if kind == "sparse" else np.array(found))
            if kind == "sparse":  # XGBoost 3.2 reads the wrong elements where there are gaps
                assert found.data.flags.c_contiguous and found.indices.flags.c_contiguous
        share.close()
    assert np.concatenate(seen).tolist() == labels.tolist()
    assert np.array_equal(np.concatenate(values), matrix.toarray())
    if ranking:
        for own in seen:
            assert len(own) == 0 or own[0] % 4 == 0


def test_what_scipy_saves(tmp_path: Path) -> None:
    matrix = random(6, 3, 0.5, "csr", dtype=np.float32, random_state=3)
    matrix.resize(6, 7)
    for form in ("csr", "csc"):
        save_npz(tmp_path / f"{form}.npz", matrix.asformat(form))
    file = str(tmp_path / "csr.npz")
    table, share = Arrays([file], {}), Share()
    for piece in table.share(0, 1):
        share.add(piece)
    assert share.summary(table.columns).columns == 7  # the last four have no entry
    with share.matrix(7, False) as found:
        assert (found != matrix).nnz == 0
    share.close()
    with pytest.raises(DataError, match="tocsr"):
        Arrays([str(tmp_path / "csc.npz")], {})


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("labels", [np.arange(25), np.ones((10, 2))], ids=["more", "two columns"])
def test_labels_that_do_not_fit(tmp_path: Path, sparse: bool, labels: np.ndarray) -> None:
    matrix = csr_matrix(np.ones((10, 3), np.float32))
    arrays = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    file = str(tmp_path / "a.npz")
    if sparse:
        np.savez(file, **arrays, shape=matrix.shape, y=labels)
    else:
        np.savez(file, X=matrix.toarray(), y=labels)
    with pytest.raises(DataError, match=r"y \(label\) has the shape .* there are 10 rows"):
        Arrays([file], {})


def test_a_sparse_matrix_that_contradicts_itself(tmp_path: Path) -> None:
    file = str(tmp_path / "a.npz")
    for beyond in (3, 2**32 + 1):
        arrays = {"data": np.ones(2), "indices": np.array([0, beyond]), "indptr": [0, 1, 2]}
        np.savez(file, **arrays, shape=(2, 3))
        with pytest.raises(DataError, match="beyond its 3 columns") as caught:
            list(Arrays([file], {}).share(0, 1))
        assert caught.value.__traceback__ and file not in open_files()
    np.savez(file, **arrays, shape=(3, 3))
    with pytest.raises(DataError, match="indptr has the shape"):
        Arrays([file], {})


def open_files() -> set[str]:
    """The files that this process has open; none where the kernel does not say."""
    opened = set()
    for link in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            opened.add(str(link.readlink()))
    return opened


@pytest.mark.parametrize("form", ["npz", "parquet"])
@pytest.mark.parametrize(
    "qids", [[0, -3], [1.0, 1.5], [1.0, np.nan], [1.0, np.inf]], ids=["-3", "1.5", "nan", "inf"]
)
def test_a_qid_that_is_none(tmp_path: Path, form: str, qids: list[float]) -> None:
    file = str(tmp_path / f"a.{form}")
    table: object
    if form == "npz":
        np.savez(file, X=np.ones((2, 1)), query=qids)
        table = Arrays([file], {"qid": "query"})
    else:
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        from shanty.xgboost.parquet import Table

        parquet.write_table(arrow.table({"a": [1.0, 2.0], "query": qids}), file)
        table = Table([file], {"qid": "query"})
    with pytest.raises(DataError) as caught:
        list(table.share(0, 1))  # type: ignore[attr-defined]
    assert "query (qid) needs whole numbers" in str(caught.value) and file in str(caught.value)
    assert form != "npz" or file not in open_files()  # while the error is kept


def test_a_qid_that_is_null(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from shanty.xgboost.parquet import Table

    file = str(tmp_path / "a.parquet")
    whole = {"a": [1.0] * 3, "q": arrow.array([1, None, 2], arrow.int64())}
    parquet.write_table(arrow.table(whole), file)
    with pytest.raises(DataError, match=r"a\.parquet: column q \(qid\) has a null"):
        list(Table([file], {"qid": "q"}).share(0, 1))
    kinds = {"f": [1.0, 1.0, 2.0], "u": arrow.array([1, 1, 2**64 - 1], arrow.uint64())}
    parquet.write_table(arrow.table({"a": [1.0] * 3, **kinds}), file)
    for name, last in (("f", 2), ("u", 2**64 - 1)):
        (rows_of_it,) = Table([file], {"qid": name}).share(0, 1)
        assert rows_of_it.qids is not None and rows_of_it.qids.tolist() == [1, 1, last]


# ---- names of files ------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("b.csv", "a.csv", "a.csv.weight", "x.libsvm.gz", "plain", ".hidden"):
        (tmp_path / name).write_text("1\n")
    (tmp_path / "more").mkdir()
    for name in ("2.svm", "1.svm", "_SUCCESS"):
        (tmp_path / "more" / name).write_text("1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "files", "form", "options"),
    [
        ("a.csv", ["a.csv"], "csv", {}),
        ("a.csv?label_column=0", ["a.csv"], "csv", {"label_column": "0"}),
        ("a.csv?delimiter=%09", ["a.csv"], "csv", {"delimiter": "\t"}),
        ("*.csv", ["a.csv", "b.csv"], "csv", {}),
        ("b.csv;a.csv", ["b.csv", "a.csv"], "csv", {}),
        (["b.csv", Path("a.csv")], ["b.csv", "a.csv"], "csv", {}),
        ("x.libsvm.gz", ["x.libsvm.gz"], "libsvm", {}),
        ("plain?format=libsvm&indexing_mode=1", ["plain"], "libsvm", {"indexing_mode": "1"}),
        ("more", ["more/1.svm", "more/2.svm"], "libsvm", {}),
        ("file://a.csv", ["a.csv"], "csv", {}),
        ("t.parquet?label=y", ["t.parquet"], "parquet", {"label": "y"}),
    ],
    ids=str,
)
@pytest.mark.usefixtures("folder")
def test_a_name(name: object, files: list[str], form: str, options: dict[str, str]) -> None:
    found = parse(name)
    assert list(found.files) == files
    assert (found.format, found.options) == (form, options)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("s3://bucket/a.csv", "s3"),
        ("plain", "?format=libsvm"),
        ("plain?format=libfm", "libfm"),
        ("a.csv?label", "name=value"),
        ("a.csv?colour=1", "colour"),
        ("a.csv#c#d", "only one"),
        ("no*.csv", "no file"),
        ("", "names no file"),
        ("a.csv;x.libsvm.gz", "several formats"),
        (["a.csv", "b.csv?label_column=0"], "differently"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("folder")
def test_a_name_that_is_refused(name: object, word: str) -> None:
    with pytest.raises(DataError) as caught:
        parse(name)
    assert word in str(caught.value)


@pytest.mark.usefixtures("folder")
def test_files_beside() -> None:
    assert side_files(parse("a.csv")) == {".weight": "a.csv.weight"}
    assert side_files(parse("b.csv")) == {}
    with pytest.raises(DataError, match=r"a\.csv\.weight"):
        side_files(parse("*.csv"))


@pytest.mark.parametrize(
    ("data", "is_one"),
    [("a", True), (Path("a"), True), (["a", Path("b")], True), ([], False), ([[1.0]], False)],
    ids=str,
)
def test_what_names_files(data: object, is_one: bool) -> None:
    assert is_source(data) is is_one


# ---- what the ranks agree on ---------------------------------------------------------------------


def told(count: int, columns: int, dense: bool | None, *given: str) -> Summary:
    return Summary(count, columns, dense, given)


def test_agreement() -> None:
    empty = told(0, 0, None)
    agreed = agree([empty, told(3, 4, False, "label"), told(2, 9, False, "label"), empty], False)
    assert (agreed.rows, agreed.columns, agreed.dense, agreed.given) == (5, 9, False, ("label",))


@pytest.mark.parametrize(
    ("summaries", "label", "word"),
    [
        ([told(0, 0, None)], False, "no row"),
        ([told(1, 2, True), told(1, 3, True)], False, "rank 1 3"),
        ([told(1, 2, False, "label"), told(1, 2, False)], False, "without a label"),
        ([told(1, 2, False, "label")], True, "twice"),
    ],
    ids=["empty", "columns", "labels", "twice"],
)
def test_no_agreement(summaries: list[Summary], label: bool, word: str) -> None:
    with pytest.raises(DataError) as caught:
        agree(summaries, label)
    assert word in str(caught.value)


@pytest.mark.parametrize("values", [[0, np.inf], [np.nan, 1]], ids=str)
def test_a_label_that_is_no_number(values: list[float]) -> None:
    share = Share()
    with pytest.raises(DataError, match="the label of row"):
        share.add(rows(np.array(values)))
    share.close()
