"""What all ranks must have alike to train together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("xgboost")

from shanty.xgboost.agreement import compare, of_parameters
from shanty.xgboost.errors import DataError

FACTS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3)


@given(st.lists(FACTS, min_size=2, max_size=4))
def test_ranks_agree_where_all_that_have_facts_have_the_same(seen: list[dict[str, str]]) -> None:
    there = [each for each in seen if each]
    if all(each == there[0] for each in there):
        compare([[each] for each in seen])
        return
    with pytest.raises(DataError) as raised:
        compare([[{"same": "1"}, each] for each in seen])
    first = seen.index(there[0])
    assert f"on rank {first}, " in str(raised.value)


def test_parameters_that_mean_the_same() -> None:
    one = {"eta": 0.1, "eval_metric": ["auc", "error"], "monotone_constraints": (1, 0)}
    other = {**one, "monotone_constraints": np.array([1, 0]), "nthread": 3, "device": "cuda:1"}
    assert of_parameters(one) == of_parameters(other) == of_parameters({**one, "alpha": None})
    named = {"monotone_constraints": {"b": 1, "a": -1}}
    assert of_parameters(named) == of_parameters({"monotone_constraints": {"a": -1, "b": 1}})
    assert of_parameters(named) != of_parameters({"monotone_constraints": {"a": 1, "b": 1}})
    pairs = [("eval_metric", "auc"), ("eval_metric", "error")]
    assert of_parameters(pairs) != of_parameters(pairs[::-1]) != of_parameters(pairs[:1])
    assert of_parameters({"objective": print}) == of_parameters({"objective": len})


def test_words_that_say_what_differs() -> None:
    with pytest.raises(DataError) as raised:
        compare([[{"eta": "0.1"}], [{"eta": "0.1"}], [{}], [{"eta": "0.1", "max_depth": "3"}]])
    assert str(raised.value) == (
        "The ranks train with different values of max_depth: missing on rank 0, 3 on rank 3. Give "
        "all ranks the same."
    )
