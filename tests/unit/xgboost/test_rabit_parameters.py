"""What an XGBoost script of old says, and what today's XGBoost gets to hear."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from shanty.compat.xgboost_rabit.parameters import GONE, modern

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "silent=1": ({"silent": 1}, {"verbosity": 0}),
    "silent=True as a word": ({"silent": "True"}, {"verbosity": 0}),
    "silent=0": ({"silent": 0}, {}),
    "silent and verbosity": ({"silent": 1, "verbosity": 2}, {"verbosity": 2}),
    "reg:linear": ({"objective": "reg:linear"}, {"objective": "reg:squarederror"}),
    "gpu:reg:linear": (
        {"objective": "gpu:reg:linear"},
        {"objective": "reg:squarederror", "device": "cuda"},
    ),
    "gpu:binary:logistic": (
        {"objective": "gpu:binary:logistic"},
        {"objective": "binary:logistic", "device": "cuda"},
    ),
    "gpu_hist": ({"tree_method": "gpu_hist"}, {"tree_method": "hist", "device": "cuda"}),
    "gpu_exact": ({"tree_method": "gpu_exact"}, {"tree_method": "hist", "device": "cuda"}),
    "gpu_hist on a GPU": (
        {"tree_method": "gpu_hist", "gpu_id": 1},
        {"tree_method": "hist", "device": "cuda:1"},
    ),
    "gpu_hist without one": ({"tree_method": "gpu_hist", "gpu_id": -1}, {"tree_method": "hist"}),
    "a device is given": (
        {"tree_method": "gpu_hist", "device": "cpu"},
        {"tree_method": "hist", "device": "cpu"},
    ),
    "gpu_id of no GPU": ({"tree_method": "hist", "gpu_id": 0}, {"tree_method": "hist"}),
    "predictor": ({"predictor": "cpu_predictor"}, {}),
    "grow_gpu_hist": (
        {"updater": "grow_gpu_hist,prune"},
        {"tree_method": "hist", "device": "cuda"},
    ),
    "grow_fast_histmaker": ({"updater": "grow_fast_histmaker"}, {"tree_method": "hist"}),
    "grow_skmaker": ({"updater": "grow_skmaker,prune"}, {"tree_method": "approx"}),
    "sketch_eps": (
        {"sketch_eps": 0.03, "tree_method": "approx"},
        {"max_bin": 33, "tree_method": "approx"},
    ),
    "sketch_eps of hist": ({"sketch_eps": 0.03}, {}),
    "num_pairsample": (
        {"num_pairsample": 2},
        {"lambdarank_pair_method": "mean", "lambdarank_num_pair_per_sample": 2},
    ),
    "dsplit": ({"dsplit": "row"}, {}),
    "exact": ({"tree_method": "exact"}, {"tree_method": "approx"}),
    "grow_colmaker": ({"updater": "grow_colmaker,prune"}, {"tree_method": "approx"}),
    **{name: ({name: 1}, {}) for name in sorted(GONE)},
}
TODAY = {
    "max_depth": 3,
    "eta": 0.1,
    "nthread": 1,
    "seed_per_iteration": True,
    "updater": "grow_histmaker,prune",
    "tree_method": "approx",
    "objective": "multi:softmax",
    "base_score": None,
}


@pytest.mark.parametrize("name", CASES)
def test_parameters(name: str) -> None:
    old, new = CASES[name]
    found = modern(old, 2)
    assert dict(found.pairs) == new
    assert len(found.pairs) == len(new)
    for word in old.keys() - new.keys():
        assert any(word in note for note in found.notes)


def test_what_is_today_s_stays_as_it_is() -> None:
    found = modern(TODAY, 2)
    assert found.pairs == list(TODAY.items())
    assert not found.notes


def test_a_list_of_pairs_keeps_its_order_and_names_that_come_twice() -> None:
    pairs = [("eval_metric", "auc"), ("silent", 1), ("eval_metric", "error"), ("bst:eta", 0.1)]
    found = modern(pairs, 2)
    expected = [("eval_metric", "auc"), ("verbosity", 0), ("eval_metric", "error"), ("eta", 0.1)]
    assert found.pairs == expected


@pytest.mark.parametrize("word", ["exact", "grow_colmaker"])
def test_one_process_can_be_exact(word: str) -> None:
    name = "tree_method" if word == "exact" else "updater"
    assert modern({name: word}, 1).pairs == [(name, word)]


@pytest.mark.parametrize("params", [{"booster": "gblinear"}, {"dsplit": "col"}], ids=str)
def test_what_cannot_be_done_is_refused_by_name(params: dict[str, Any]) -> None:
    (name,) = params
    with pytest.raises(ValueError, match=f"{name}={params[name]}"):
        modern(params, 2)


def test_every_outcome_is_a_parameter_of_today_s() -> None:
    xgboost = pytest.importorskip("xgboost")
    rows = xgboost.DMatrix([[0.0], [1.0]], label=[0.0, 1.0])
    for _, new in CASES.values():
        if "num_pair" in str(new) or "cuda:" in str(new):
            continue  # no ranking here, and no second GPU
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            xgboost.train(new, rows, 1)
        found = [str(each.message) for each in said]
        assert not [text for text in found if "not used" in text or "deprecated" in text], new


@pytest.mark.parametrize(
    ("values", "second"),
    [
        ((), "NEW"),
        ((-999.0,), "OLD"),
        ((-999.0, [1.0], 0), "OLD"),
        ((None,), "OLD"),
        ((None, [1.0]), "OLD"),
        ((None, [1.0], False, ["a"]), "OLD"),
        ((None, None, None, ["a"]), "OLD"),
        ((None, None, -999.0), "NEW"),
        (([1.0], None, -999.0, True), "NEW"),
    ],
)
def test_what_a_matrix_is_told_by_position(values: tuple[Any, ...], second: str) -> None:
    pytest.importorskip("xgboost")
    from shanty.compat.xgboost_rabit import files

    assert files._order(values) is getattr(files, second)


def test_which_matrices_all_ranks_make() -> None:
    xgboost = pytest.importorskip("xgboost")
    sparse = pytest.importorskip("scipy.sparse")
    from shanty.compat.xgboost_rabit.files import _of_all_ranks

    pieces = type("Pieces", (xgboost.DataIter,), dict.fromkeys(("next", "reset")))
    rows = sparse.csr_matrix([[0.0, 1.0]])
    assert _of_all_ranks(rows, [1.0])
    assert _of_all_ranks(None, None)
    assert _of_all_ranks(pieces(), None)
    for data, label in ((rows, None), ([[0.0]], [1.0]), (rows.toarray(), [1.0])):
        assert not _of_all_ranks(data, label)
