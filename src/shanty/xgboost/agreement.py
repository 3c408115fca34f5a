"""What must be the same on all ranks that train together, and whether their models are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from shanty.xgboost.communication import Communicator
from shanty.xgboost.consensus import together
from shanty.xgboost.errors import DataError, WorldError
from shanty.xgboost.installed import xgboost

# What hosts may differ in. Ranks may draw their rows by another seed; where columns are drawn by
# it, XGBoost takes that of rank 0.
_OF_A_RANK = {
    *("verbosity", "silent", "nthread", "n_jobs", "device", "gpu_id"),
    *("seed", "random_state"),
}
_OF_ROWS = ("label", "weight", "base_margin", "label_lower_bound", "label_upper_bound")

Facts = dict[str, str]


def agree(
    ranks: Communicator, params: Any, call: Mapping[str, Any], matrices: Mapping[str, Any]
) -> None:
    """DataError on all ranks if they cannot train together; it says what differs.

    params: XGBoost's, as a mapping or pairs. call: the arguments beside them. matrices: those that
    it trains and evaluates on, by name.
    """
    if ranks.size == 1:
        return

    def look(_: object) -> list[Facts]:
        facts = {**of_parameters(params), **{name: _spell(value) for name, value in call.items()}}
        facts["evals"] = ", ".join(list(matrices)[1:]) or "none"
        return [facts, *(_of_matrix(name, each) for name, each in matrices.items())]

    together(ranks, "training", look, compare)


def of_parameters(params: Any) -> Facts:
    """The parameters that must be the same on all ranks, as text."""
    pairs = params.items() if isinstance(params, Mapping) else params or ()
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        if value is not None and name not in _OF_A_RANK:
            found.setdefault(str(name), []).append(value)
    return {name: ", ".join(map(_spell, values)) for name, values in found.items()}


def compare(seen: Sequence[Sequence[Facts]], what: str = "train with") -> None:
    """DataError for the first fact that differs between two ranks.

    what: the ranks do with their values. A rank without rows has no facts about them.
    """
    for at in range(min(map(len, seen))):
        known = [(rank, each[at]) for rank, each in enumerate(seen) if each[at]]
        for rank, facts in known[1:]:
            first, here = known[0]
            for name in dict.fromkeys([*here, *facts]):
                mine, other = here.get(name, "missing"), facts.get(name, "missing")
                if mine != other:
                    raise DataError(
                        f"The ranks {what} different values of {name}: {_short(mine)} on rank "
                        f"{first}, {_short(other)} on rank {rank}. Give all ranks the same."
                    )


def of_columns(matrix: Any) -> Facts:
    """The facts about the columns of a matrix."""
    return {
        "columns": str(matrix.num_col()),
        "feature names": ", ".join(matrix.feature_names or ["none"]),
        "feature types": ", ".join(matrix.feature_types or ["none"]),
    }


def same_model(ranks: Communicator, booster: Any) -> None:
    """WorldError on all ranks if their models differ."""
    if ranks.size == 1:
        return
    own = booster.attributes()  # which callbacks may set on one rank
    booster.set_attr(**dict.fromkeys(own))
    digest = hashlib.blake2b(booster.save_raw("ubj"), digest_size=8).hexdigest()
    booster.set_attr(**own)
    known = together(ranks, "comparing models", lambda _: digest, lambda each: each)
    if len(set(known)) > 1:
        raise WorldError(
            "The ranks have trained different models: "
            + ", ".join(f"{each[:8]} on rank {rank}" for rank, each in enumerate(known))
            + ". They must have the same parameters, columns and categories, and, with dart, the "
            "same seed."
        )


# ---- within ------------------------------------------------------------------------------------


def _of_matrix(name: str, matrix: Any) -> Facts:
    """The facts about a matrix that must be the same on all ranks with rows."""
    rows = matrix.num_row() if isinstance(matrix, xgboost.DMatrix) else 0
    if not rows:
        return {}
    facts = {f"{what} of {name}": text for what, text in of_columns(matrix).items()}
    for what in _OF_ROWS:
        size = matrix.get_float_info(what).size
        if what == "weight":  # of rows or of groups
            facts[f"{what} of {name}"] = "given" if size else "missing"
        else:
            facts[f"{what} of {name}"] = f"{size / rows:g} a row" if size else "missing"
    grouped = len(matrix.get_uint_info("group_ptr")) > 1
    facts[f"qid or group of {name}"] = "given" if grouped else "missing"
    weights = np.asarray(matrix.get_float_info("feature_weights"))
    facts[f"feature_weights of {name}"] = _spell(weights) if weights.size < 9 else _digest(weights)
    for column, text in _categories_of(matrix):
        facts[f"the categories of column {column!r} of {name}"] = text
    return facts


def _categories_of(matrix: Any) -> list[tuple[str, str]]:
    """The columns that are categories, and their categories as text, as far as they are known."""
    if "c" not in (matrix.feature_types or ()):
        return []
    kept = None
    if hasattr(matrix, "get_categories"):  # XGBoost 3.1
        with suppress(ImportError):  # it needs pyarrow
            kept = matrix.get_categories(export_to_arrow=True).to_arrow()
    if kept is None:
        return [(each.name, each.digest) for each in getattr(matrix, "shanty_columns", None) or ()]
    found = []
    for column, values in kept:
        text = ", ".join(map(str, values.to_pylist())) if values is not None else ""
        if len(text) > 60:
            text = f"{text[:60]}… ({len(values)} of them, {_digest(text)})"
        found.append((column, text))
    return found


def _spell(value: Any) -> str:
    """A value as text, equal for values that XGBoost treats alike. All functions are equal."""
    if callable(value):
        return "a function"
    try:
        return json.dumps(value, sort_keys=True, default=_plain)
    except (TypeError, ValueError):
        return type(value).__name__


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # NumPy's
        return value.tolist()
    if callable(value):
        return "a function"
    return type(value).__name__


def _digest(value: Any) -> str:
    data = value.encode() if isinstance(value, str) else value.tobytes()
    return hashlib.blake2b(data, digest_size=4).hexdigest()


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:120]}…"
