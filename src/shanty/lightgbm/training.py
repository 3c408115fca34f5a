"""Trains over all ranks, and saves the model on one."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import shanty
from shanty import _categories
from shanty.lightgbm import network
from shanty.lightgbm.columns import joined
from shanty.lightgbm.errors import DataError, WorldError
from shanty.lightgbm.installed import lightgbm
from shanty.lightgbm.metric import Means, over_ranks
from shanty.lightgbm.stopping import together
from shanty.runtime.rundir import RUN_DIR

_LEARNERS = ("data", "voting")
# Parameters of LightGBM's own network, which the run's MPI replaces.
_NETWORK = ("machines", "machine_list_filename", "local_listen_port", "time_out", "num_machines")
_OURS = ("num_machines", "tree_learner", "pre_partition")
# What hosts may differ in.
_OF_A_RANK = ("verbosity", "num_threads", "gpu_platform_id", "gpu_device_id")
_FILES = (str, os.PathLike)
# What LightGBM's learners for several machines do not support, and how they fail.
_ALONE = {
    "linear_tree": "LightGBM fits the leaves to each rank's own rows",
    "interaction_constraints": "LightGBM fails with std::bad_array_new_length",
    "forcedsplits_filename": "LightGBM does not force splits there",
}
_OF_ROWS = ("weight", "group", "init_score", "position")


class Dataset(lightgbm.Dataset):  # type: ignore[misc]
    """lightgbm.Dataset of this rank's rows.

    Where the data is the name of a file, which all ranks give alike, each rank reads its share of
    the rows. What bins the values have is agreed among the ranks.
    """

    def __init__(self, data: Any, *args: Any, **options: Any) -> None:
        network.init()
        super().__init__(data, *args, **options)

    @network.leaving_together()
    def construct(self) -> Any:
        """Make it, by all ranks."""
        if self._handle is None:
            own: Any = self
            own.params = {**parameters(own.params or {}), **_shares(own.data)}
            if own.reference is None:  # else it is coded as that one is
                own.data = joined(own.data)
        return super().construct()


def parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """LightGBM's parameters for training over all ranks; data parallel unless `given` differs."""
    values = {key: value for key, value in given.items() if key not in _aliases(*_NETWORK)}
    for name in _OURS[1:]:
        for other in _aliases(name) - {name}:
            if other in values:
                values[name] = values.pop(other)
    if network.size() == 1:
        return values
    learner = values.get("tree_learner", "data")
    learner = {"data_parallel": "data", "voting_parallel": "voting"}.get(learner, learner)
    if learner not in _LEARNERS:
        raise DataError(
            f"tree_learner is {learner!r}: over several ranks it must be one of "
            f"{', '.join(_LEARNERS)} (LightGBM supports feature parallel in its own program only)"
        )
    for name, why in _ALONE.items():
        if any(values.get(each) for each in _aliases(name)):
            raise DataError(f"{name} is for one rank only: {why}. Leave it out, or take one rank")
    values.update(num_machines=network.size(), tree_learner=learner)
    values.setdefault("pre_partition", True)
    return values


def _aliases(*names: str) -> set[str]:
    """These parameters by all the names that LightGBM knows them by."""
    found: set[str] = lightgbm.basic._ConfigAliases.get(*names)
    return found


def _shares(data: Any) -> dict[str, bool]:
    """Whether the rows have been shared out already; LightGBM does it for files."""
    return {"pre_partition": not isinstance(data, _FILES)} if network.size() > 1 else {}


@network.leaving_together()
def train(
    params: dict[str, Any],
    train_set: Any,
    num_boost_round: int = 100,
    *args: Any,
    callbacks: Sequence[Any] | None = None,
    **options: Any,
) -> Any:
    """lightgbm.train by all ranks; each gets the whole model, the same.

    Metrics are means over the ranks, by their rows or the weights of these, so early stopping ends
    all of them at the same round. Columns whose categories differ get the union of all ranks'.
    DataError, on all ranks, where one has no rows, other parameters or other columns.
    """
    network.init()
    params = parameters(params)
    options |= zip([*inspect.signature(lightgbm.train).parameters][3:], args, strict=False)
    valid = options.get("valid_sets") or []
    valid = [valid] if isinstance(valid, lightgbm.Dataset) else list(valid)
    given = {name: getattr(train_set, name, None) is not None for name in _OF_ROWS}
    for name in ("feature_name", "categorical_feature"):
        given[name] = getattr(train_set, name)
    given["init_model"] = options.get("init_model") is not None
    given |= {**train_set.get_params(), **params}
    agree(given, num_boost_round, [train_set.data, *(each.data for each in valid)])
    if train_set._handle is not None:
        _same_categories(train_set)
    elif not isinstance(train_set, Dataset):
        train_set.data = joined(train_set.data)
    options["feval"] = over_ranks(options.get("feval"))
    booster = lightgbm.train(
        params, train_set, num_boost_round,
        callbacks=[*reports(), *together(callbacks)], **options,
    )  # fmt: skip
    return same_model(booster, params)


def agree(given: Mapping[str, Any], rounds: int, tables: Sequence[Any]) -> None:
    """Raise DataError, on all ranks, where they cannot train together.

    given: the parameters, and what else all must have alike. tables: the rows to train on, and
    those to evaluate on.
    """
    free = _aliases(*_OURS, *_OF_A_RANK)
    plain = {key: _plain(value) for key, value in given.items() if key not in free}
    text = {str(key): value for key, value in plain.items() if value is not None}
    text["num_boost_round"] = repr(rounds)
    shapes = [getattr(each, "shape", None) or () for each in tables]
    seen = network.gather(
        (text, [tuple(each) if len(each) == 2 else None for each in shapes], _names(tables))
    )
    first = seen[0][0]
    for rank, (other, _, _) in enumerate(seen):
        wrong = sorted(key for key in {*first, *other} if first.get(key) != other.get(key))
        if wrong:
            key = wrong[0]
            raise DataError(
                f"the ranks have different parameters: {key} is {first.get(key)} on rank 0 and "
                f"{other.get(key)} on rank {rank}"
            )
    counts = [len(shapes) for _, shapes, _ in seen]
    if len(set(counts)) > 1:
        raise DataError("the ranks evaluate different data: give all the same valid_sets")
    for at in range(counts[0]):
        what = "" if at == 0 else f" in valid_sets[{at - 1}]"
        each_shape = [shapes[at] for _, shapes, _ in seen]
        for rank, each in enumerate(each_shape):
            if each is not None and each[0] == 0:
                raise DataError(
                    f"rank {rank} has no rows{what}: give each rank some, or take fewer ranks"
                )
            if each is not None and each_shape[0] is not None and each[1] != each_shape[0][1]:
                raise DataError(
                    f"the ranks have different numbers of columns{what}: "
                    f"{each_shape[0][1]} on rank 0 and {each[1]} on rank {rank}"
                )
        _categories.different(
            {rank: names[at] for rank, (_, _, names) in enumerate(seen)}, DataError
        )


def _names(tables: Sequence[Any]) -> list[Any]:
    """The columns of each of these, where they have names."""
    return [_categories.columns(_categories.table(each)) for each in tables]


def _same_categories(train_set: Any) -> None:
    """DataError where ranks have made their datasets by themselves, each with its categories."""
    seen = network.gather(_plain(train_set.pandas_categorical))
    for rank, each in enumerate(seen):
        if each != seen[0]:
            raise DataError(
                f"the ranks' datasets have different categories: {seen[0]} on rank 0 and {each} on "
                f"rank {rank}. Make the datasets with shanty.lightgbm.Dataset, which joins them"
            )


def _plain(value: Any) -> str | None:
    """A parameter as text; None for a function and the like, which cannot be compared."""
    try:
        return json.dumps(value, sort_keys=True, default=float)
    except (TypeError, ValueError):
        return None


def reports() -> list[Any]:
    """The callbacks that make metrics the same on all ranks, and send them to the run."""
    return [*([Means()] if network.size() > 1 else []), *_report()]


def _report() -> list[Any]:
    """The callback with which rank 0 reports the rounds and their metrics to the run."""
    if RUN_DIR not in os.environ or network.rank() != 0:
        return []
    bar: Iterator[int] | None = None

    def to_the_run(env: Any) -> None:
        nonlocal bar
        if bar is None:
            bar = shanty.progress(range(env.end_iteration - env.begin_iteration), label="rounds")
            next(bar, None)
        values = {f"{each[0]}-{each[1]}": each[2] for each in env.evaluation_result_list or []}
        if values:
            shanty.log(values, round=env.iteration)
        next(bar, None)

    to_the_run.order = 1  # type: ignore[attr-defined]
    to_the_run.before_iteration = False  # type: ignore[attr-defined]
    return [to_the_run]


def same_model(booster: Any, params: Mapping[str, Any]) -> Any:
    """The booster, after a check that all ranks have the same."""
    if network.size() == 1:
        return booster
    text = booster.model_to_string(num_iteration=-1)
    trees = text.partition("\nparameters:")[0]  # ranks may differ in some of these
    trees += _plain(booster.pandas_categorical) or ""
    digests = network.gather(hashlib.sha256(trees.encode()).hexdigest())
    if len(set(digests)) == 1:
        return booster
    if params.get("tree_learner") == "voting":  # each rank counts the rows of leaves by itself
        best, scores = booster.best_iteration, booster.best_score
        booster = lightgbm.Booster(model_str=network.gather(text)[0])
        booster.best_iteration, booster.best_score = best, scores
        return booster
    raise WorldError(
        "the ranks have trained different models: "
        + ", ".join(f"{each[:8]} on rank {rank}" for rank, each in enumerate(digests))
    )


def save_model(booster: Any, path: str | os.PathLike[str]) -> None:
    """Write the model into a file, once: rank 0 does, whole or not at all.

    All ranks call it, and the file exists when it returns. All ranks raise DataError if it cannot
    be written.
    """
    network.init()
    wrong = ""
    if network.rank() == 0:
        target = Path(path)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            booster.save_model(str(beside))
            beside.replace(target)
        except (OSError, lightgbm.basic.LightGBMError) as error:
            wrong = str(error)
        finally:
            beside.unlink(missing_ok=True)
    wrong = network.gather(wrong)[0]
    if wrong:
        raise DataError(f"the model cannot be written to {os.fspath(path)}: {wrong}")


def cv(*args: Any, **options: Any) -> Any:
    """lightgbm.cv on one process; over several ranks it would make folds of each one's own rows."""
    if network.size() == 1:
        return lightgbm.cv(*args, **options)
    raise NotImplementedError(
        "shanty.lightgbm has no cv over several ranks: LightGBM makes folds of one process' rows. "
        "Make them yourself and call train for each, or let each rank run lightgbm.cv on another "
        "set of parameters"
    )
