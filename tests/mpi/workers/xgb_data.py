"""Every way to a matrix, on all ranks, with files that rank 0 writes: the same rows, each once.

The argument is a folder. See run_checks.py.
"""

from __future__ import annotations

import gzip
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
from alike import WORLD, differs, same
from pyarrow import parquet
from scipy.sparse import csr_matrix, save_npz
from sklearn.datasets import load_digits

import shanty.xgboost as xgb
from shanty.xgboost import share

FOLDER = Path(sys.argv[1], f"{WORLD.bcast(time.time_ns(), 0)}")
PARAMS = {"objective": "binary:logistic", "max_depth": 4, "tree_method": "hist", "nthread": 1}
X, DIGITS = load_digits(return_X_y=True)
Y = (DIGITS > 4).astype(np.float32)  # odd enough not to be trivial
X = X.astype(np.float32)


def made(name: str, write: Callable[[Path], object]) -> str:
    """A file that rank 0 writes and all see."""
    path = FOLDER / name
    if WORLD.rank == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    WORLD.Barrier()
    return str(path)


def text(name: str, content: str) -> str:
    return made(name, lambda path: path.write_text(content))


def svm(features: np.ndarray, labels: np.ndarray, qids: np.ndarray | None = None) -> str:
    rows = []
    for number, (row, label) in enumerate(zip(features, labels, strict=True)):
        group = "" if qids is None else f"qid:{qids[number]} "
        values = " ".join(f"{index}:{value:g}" for index, value in enumerate(row))
        rows.append(f"{label:g} {group}{values}\n")
    return "".join(rows)


def csv(features: np.ndarray, labels: np.ndarray) -> str:
    rows = np.column_stack([labels, features])
    return "".join(",".join(f"{value:g}" for value in row) + "\n" for row in rows)


def table(path: Path, features: np.ndarray, groups: int = 400, **more: np.ndarray) -> None:
    columns = {f"f{index}": features[:, index] for index in range(features.shape[1])}
    parquet.write_table(pa.table({**columns, **more}), path, row_group_size=groups)


def total(number: float) -> float:
    return float(WORLD.allreduce(number))


def refused(data: object, *words: str, **options: object) -> str:
    """DMatrix(data) is refused on all ranks, at once, with the same words."""
    return differs(xgb.DataError, lambda: xgb.DMatrix(data, **options), *words)


# ---- the same rows in every format ---------------------------------------------------------------


def sources() -> dict[str, tuple[object, dict[str, object]]]:
    half = len(X) // 2
    labels = Y.astype(np.float64)
    text("two/a.libsvm", svm(X[:half], Y[:half]))
    text("two/b.libsvm", svm(X[half:], Y[half:]))
    zipped = made("z.libsvm.gz", lambda path: path.write_bytes(gzip.compress(svm(X, Y).encode())))
    parts = made("p/1.parquet", lambda path: table(path, X[:half], y=labels[:half]))
    made("p/2.parquet", lambda path: table(path, X[half:], y=labels[half:]))
    sparse = made("s.npz", lambda path: save_npz(path, csr_matrix(X + 0)))
    return {
        "libsvm": (text("a.libsvm", svm(X, Y)), {}),
        "uri": (text("a.txt", svm(X, Y)) + "?format=libsvm", {}),
        "folder": (str(FOLDER / "two"), {}),
        "glob": (str(FOLDER / "two" / "*.libsvm"), {}),
        "list": ([FOLDER / "two" / "a.libsvm", FOLDER / "two" / "b.libsvm"], {}),
        "gz": (zipped, {}),
        "csv": (text("a.csv", csv(X, Y)) + "?label_column=0", {}),
        "tsv": (text("a.tsv", csv(X, Y).replace(",", "\t")) + "?label_column=0", {}),
        "parquet": (str(Path(parts).parent), {"label": "y"}),
        "npz": (made("a.npz", lambda path: np.savez(path, X=X, y=Y)), {}),
        "compressed": (made("c.npz", lambda path: np.savez_compressed(path, data=X, label=Y)), {}),
        "labels": (
            text("l.csv", csv(X, Y).replace("\n", ",7\n")) + "?label_column=65",
            {"label": Y},
        ),
        "sparse": (sparse, {"label": Y}),
    }


def check_same_rows_and_model() -> None:
    answers = {}
    for name, (data, options) in sources().items():
        if name == "labels":
            refused(data, "twice", **options)
            continue
        matrix = xgb.DMatrix(data, **options)
        assert total(matrix.num_row()) == len(X), name
        assert matrix.num_col() == X.shape[1], name
        assert total(float(matrix.get_label().sum())) == Y.sum(), name
        assert matrix.num_row() > len(X) / WORLD.size - 30, name
        entries = total(matrix.num_nonmissing())
        if name == "sparse":
            assert entries == np.count_nonzero(X)
            continue
        assert entries == X.size, name
        booster = xgb.train(PARAMS, matrix, 5)
        same(bytes(booster.save_raw("json")))
        whole = booster.inplace_predict(X, validate_features=False)
        answers[name] = whole
        np.testing.assert_allclose(whole, answers["libsvm"], atol=1e-5, err_msg=name)


def check_quantiles() -> None:
    data = text("q.libsvm", svm(X, Y))
    usual = xgb.train(PARAMS, xgb.DMatrix(data), 5)
    matrix = xgb.QuantileDMatrix(data, max_bin=256)
    assert total(matrix.num_row()) == len(X)
    booster = xgb.train(PARAMS, matrix, 5)
    same(bytes(booster.save_raw("json")))
    np.testing.assert_allclose(booster.inplace_predict(X), usual.inplace_predict(X), atol=1e-5)


def check_rows_that_are_not_in_order() -> None:
    """Columns that fall, values that are missing; by XGBoost's own form, and without."""
    falling = text("f.libsvm", "".join(f"{row % 2} 5:{row} 2:1 0:nan 3:7\n" for row in range(40)))
    rows = []
    for form in (share.fields, lambda *_: b""):
        with mock.patch.object(share, "fields", form):
            matrix = xgb.DMatrix(falling)
        found = matrix.get_data()
        assert found.has_sorted_indices
        assert total(matrix.num_nonmissing()) == 3 * 40
        assert matrix.num_col() == 6
        assert found[:, 5].sum() == found[:, [5]].toarray().sum()
        rows.append((found.indices.tolist(), found.data.tolist(), found.indptr.tolist()))
    assert rows[0] == rows[1]
    assert total(float(matrix.get_data()[:, [5]].sum())) == sum(range(40))


def check_columns_agree() -> None:
    lines = ["1 0:1 9:1\n"] + [f"{number % 2} 0:{number} 1:1\n" for number in range(300)]
    matrix = xgb.DMatrix(text("c.libsvm", "".join(lines)))
    assert matrix.num_col() == 10
    names = [f"n{number}" for number in range(12)]
    matrix = xgb.DMatrix(str(FOLDER / "c.libsvm"), feature_names=names)
    assert matrix.num_col() == 12 and matrix.feature_names == names
    found = refused(str(FOLDER / "c.libsvm"), "has 3 names", feature_names=names[:3])
    assert "the files 10 columns" in found
    dense = text("names.csv", "1,2,3\n" * 2)
    refused(dense, "has 4 names, the files 3 columns", feature_names=list("abcd"))
    refused(dense, "has 2 names, the files 3 columns", feature_names=list("ab"))
    assert xgb.DMatrix(dense, feature_names=list("abc")).feature_names == list("abc")
    sparse = csr_matrix(np.array([[1, 2, 0, 0]] * 10, np.float32))
    data = made("w.npz", lambda path: save_npz(path, sparse))
    assert xgb.DMatrix(data, label=np.zeros(10)).num_col() == 4


def check_empty_shares() -> None:
    params = {"tree_method": "hist", "nthread": 1}  # logistic loss wants both classes
    for rows in (1, 2):
        data = text(f"e{rows}.libsvm", "".join(f"{each} 0:{each} 3:2\n" for each in range(rows)))
        matrix = xgb.DMatrix(data)
        same(matrix.num_col())
        assert total(matrix.num_row()) == rows
        found: dict[str, dict[str, list[float]]] = {}
        booster = xgb.train(
            {**params, "eval_metric": "rmse"},
            matrix,
            3,
            evals=[(matrix, "train")],
            evals_result=found,
            early_stopping_rounds=2,
            verbose_eval=False,
        )
        same(bytes(booster.save_raw("json")))
        same(found["train"]["rmse"])
        xgb.train(params, xgb.QuantileDMatrix(data), 2)
        few = made(f"e{rows}.npz", partial(np.savez, X=X[:rows], y=Y[:rows]))
        xgb.train(params, xgb.DMatrix(few), 2)


# ---- rankings, and what stands beside the rows ---------------------------------------------------


def check_groups_stay_whole() -> None:
    sizes = [1 + number * 7 % 40 for number in range(80)]
    qids = np.repeat(np.arange(len(sizes)), sizes)[: len(X)]
    count = len(qids)
    features, labels = X[:count], (DIGITS[:count] % 5).astype(np.float32)
    there = {
        "libsvm": (text("g.libsvm", svm(features, labels, qids)), {}),
        "parquet": (
            made("g.parquet", lambda path: table(path, features, 37, y=labels, q=qids)),
            {"label": "y", "qid": "q"},
        ),
        "npz": (made("g.npz", lambda path: np.savez(path, X=features, y=labels, qid=qids)), {}),
        "group": (text("h.libsvm", svm(features, labels)), {}),
    }
    found = np.bincount(qids)
    text("h.libsvm.group", "".join(f"{size}\n" for size in found))
    text("h.libsvm.weight", "".join(f"{1 + size % 3}\n" for size in found))
    for name, (data, options) in there.items():
        matrix = xgb.DMatrix(data, **options)
        groups = np.diff(matrix.get_uint_info("group_ptr"))
        assert np.concatenate(WORLD.allgather(groups)).tolist() == found.tolist(), name
        if name == "group":
            weights = np.concatenate(WORLD.allgather(matrix.get_weight()))
            assert weights.tolist() == [1 + size % 3 for size in found]
        booster = xgb.train({"objective": "rank:ndcg", "nthread": 1}, matrix, 3)
        same(bytes(booster.save_raw("json")))
    refused(there["npz"][0], "twice", qid=qids)
    refused(there["group"][0], "twice", group=found)


def group_sizes(matrix: xgb.DMatrix) -> list[int]:
    """Of all ranks."""
    own = np.diff(matrix.get_uint_info("group_ptr"))
    return [int(size) for size in np.concatenate(WORLD.allgather(own))]


def ranking(name: str, qids: np.ndarray) -> dict[str, tuple[str, dict[str, object]]]:
    """Some rows with these qids, in each format that has them."""
    count = len(qids)
    features, labels = X[:count], (DIGITS[:count] % 5).astype(np.float32)
    return {
        "libsvm": (text(f"{name}.libsvm", svm(features, labels, qids)), {}),
        "parquet": (
            made(f"{name}.parquet", lambda path: table(path, features, 37, y=labels, q=qids)),
            {"label": "y", "qid": "q"},
        ),
        "npz": (made(f"{name}.npz", partial(np.savez, X=features, y=labels, qid=qids)), {}),
    }


def check_any_qids() -> None:
    """Ids that fall, ids that are equal in 32 bits, and one group for all ranks."""
    odd = [2**32 + 1, 1, 2**40 + 1, 2**63 + 1, 0, 2**64 - 1]
    sizes = [20, 20, 30, 1, 9, 40]
    params = {"objective": "rank:ndcg", "nthread": 1}
    for _, (data, options) in ranking("odd", np.repeat(np.array(odd, np.uint64), sizes)).items():
        matrix = xgb.DMatrix(data, **options)
        assert group_sizes(matrix) == sizes
        same(bytes(xgb.train(params, matrix, 3).save_raw("json")))
    for _, (data, options) in ranking("one", np.full(40, 7)).items():
        for kind in (xgb.DMatrix, xgb.QuantileDMatrix):
            matrix = kind(data, **options)
            assert [size for size in group_sizes(matrix) if size] == [40]
            same(xgb.train(params, matrix, 3).get_dump(with_stats=True))


def check_qids_that_come_back() -> None:
    """On the same rank, and on another one; in LibSVM they are groups of their own, as always."""
    for name, sizes in (("near", [3, 3, 3, 90]), ("far", [40, 4, 40, 40])):
        there = ranking(name, np.repeat([5, 8, 5, 9], sizes))
        assert group_sizes(xgb.DMatrix(there["libsvm"][0])) == sizes
        for form in ("parquet", "npz"):
            data, options = there[form]
            refused(data, f"{name}.{form}", "qid 5 comes back", **options)


def check_groups_as_arrays() -> None:
    data = text("arrays.csv", csv(X[:40], Y[:40])) + "?label_column=0"
    if WORLD.size > 1:
        for options in ({"qid": np.repeat([0, 1], 20)}, {"group": [20, 20]}):
            refused(data, "cannot keep groups whole", **options)
    else:
        assert group_sizes(xgb.DMatrix(data, qid=np.repeat([0, 1], 20))) == [20, 20]
        assert group_sizes(xgb.DMatrix(data, group=[15, 25])) == [15, 25]


def check_files_beside() -> None:
    data = text("b.libsvm", svm(X, Y))
    weights = np.arange(len(X)) % 4 + 1.0
    text("b.libsvm.weight", "".join(f"{weight:g}\n" for weight in weights))
    text("b.libsvm.base_margin", "".join(f"{weight / 8:g}\n" for weight in weights))
    matrix = xgb.DMatrix(data)
    assert np.concatenate(WORLD.allgather(matrix.get_weight())).tolist() == weights.tolist()
    margins = np.concatenate(WORLD.allgather(matrix.get_base_margin()))
    assert margins.tolist() == (weights / 8).tolist()
    own = xgb.DMatrix(text("n.libsvm", svm(X, Y)), weight=weights)
    assert own.get_weight().tolist() == matrix.get_weight().tolist()
    refused(str(FOLDER / "n.libsvm"), "weight= has 3 values", weight=[1, 2, 3])
    text("b.libsvm.weight", "1\n2\n")
    refused(data, "b.libsvm.weight", "too early")
    text("b.libsvm.weight", "1\n" * (len(X) + 1))
    refused(data, f"b.libsvm.weight, line {len(X) + 1}", "one more")
    made("b.libsvm.weight", lambda path: path.unlink())
    text("b.libsvm.base_margin", "1\n" * (len(X) + 2))
    refused(data, f"b.libsvm.base_margin, line {len(X) + 1}", "one more")
    made("b.libsvm.base_margin", lambda path: path.unlink())
    text("b.libsvm.group", f"{len(X)}\n0\n")
    text("b.libsvm.weight", "3\n1\n")
    weights = np.concatenate(WORLD.allgather(xgb.DMatrix(data).get_weight()))
    assert weights.tolist() == [3, 1]
    text("b.libsvm.weight", "3\n1\n1\n")
    refused(data, "b.libsvm.weight, line 3", "one more")
    text("b.libsvm.group", f"{len(X) - 1}\n1\n0\n2\n")
    refused(data, "b.libsvm.group, line 4", f"the data has {len(X)}")
    text("b.libsvm.group", f"{len(X) - 1}\n")
    refused(data, "b.libsvm.group", "too early")
    text("two/a.libsvm.weight", "1\n")
    refused(str(FOLDER / "two"), "a.libsvm.weight", "2 files")


# ---- what cannot be trained on -------------------------------------------------------------------


def check_malformed_lines() -> None:
    lines = svm(X, Y).splitlines(keepends=True)
    lines[-3] = "1 0:1 1:what 2:3\n"
    last = WORLD.size - 1
    found = refused(text("m.libsvm", "".join(lines)), "m.libsvm", f"{len(X) - 2}")
    assert WORLD.size == 1 or f"rank {last} " in found, found
    lines = csv(X, Y).splitlines(keepends=True)
    lines[5] = "1,2,3\n"
    refused(text("m.csv", "".join(lines)) + "?label_column=0", "m.csv", "6")


def check_files_that_are_not_there() -> None:
    there = text("there.libsvm", svm(X, Y))
    gone = str(FOLDER / "gone.libsvm")
    last = WORLD.size - 1
    found = refused(gone if WORLD.rank == last else there, "No such file", "gone.libsvm")
    assert last == 0 or f"rank {last} " in found, found
    other = text("other.libsvm", svm(X[:9], Y[:9]))
    if last:
        refused(other if WORLD.rank == last else there, "different files", "other.libsvm")
    refused(str(FOLDER / "no*.libsvm"), "no file has such a name")


def check_wrong_words() -> None:
    refused("hdfs://name/train.libsvm", "hdfs")
    refused(text("w.data", "1 0:1\n"), "?format=libsvm")
    refused(str(FOLDER / "w.data?format=arff"), "arff", "parquet")
    refused(str(FOLDER / "w.data?format=libsvm&label_column=0"), "no option label_column")
    refused(str(FOLDER / "w.data?format=libsvm&indexing_mode=-1"), "indexing_mode=-1")
    refused(str(FOLDER / "w.data?format=libsvm#w.cache"), "#w.cache", "Leave")
    refused(made("w.bin", lambda path: path.write_bytes(b"\x01\xab\xff\xff")), "save_binary")
    refused(str(FOLDER / "w.data?format=libsvm"), "label= names columns", label="y")
    refused(str(FOLDER / "a.csv"), "?label_column=0", label="y")


def check_labels() -> None:
    lines = svm(X, Y).splitlines(keepends=True)
    lines[len(lines) // 2] = "nan 0:1\n"
    refused(text("nan.libsvm", "".join(lines)), "label", "nan")
    half = len(X) // 2
    made("k/1.parquet", lambda path: table(path, X[:half], y=Y[:half]))
    made("k/2.parquet", lambda path: table(path, X[half:]))
    refused(str(FOLDER / "k"), "2.parquet", label="y")
    made("k/2.parquet", lambda path: table(path, X[half:], y=np.array(["a"] * len(X[half:]))))
    refused(str(FOLDER / "k"), "2.parquet", label="y")
    made("k/1.parquet", lambda path: table(path, X[:half], y=np.array(["a"] * half)))
    refused(str(FOLDER / "k"), "y is of type string", label="y")
    refused(str(FOLDER / "k" / "1.parquet"), "column z for label= not found", label="z")
    made("f.npz", lambda path: np.savez(path, X=np.asfortranarray(X), y=Y))
    refused(str(FOLDER / "f.npz"), "Fortran")
    made("short.npz", lambda path: np.savez(path, X=X, y=Y[:-1]))
    refused(str(FOLDER / "short.npz"), "y (label)")


def check_it_goes_on() -> None:
    """After all these errors."""
    booster = xgb.train(PARAMS, xgb.DMatrix(text("on.libsvm", svm(X, Y))), 2)
    same(bytes(booster.save_raw("json")))
