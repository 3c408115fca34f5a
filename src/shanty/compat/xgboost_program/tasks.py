"""Trains, predicts, evaluates and dumps, over all ranks of a run."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TextIO

import shanty
import shanty.xgboost as parallel
from shanty.compat.xgboost_program.configuration import Settings
from shanty.compat.xgboost_rabit.parameters import modern
from shanty.xgboost.installed import xgboost
from shanty.xgboost.sources import parse_old

Parameters = dict[str, object]
Evals = list[tuple[xgboost.DMatrix, str]]
_WRONG = 2  # the exit code for wrong settings


def run(settings: Settings) -> int:
    """Does the task; all ranks have to call it. Returns the exit code."""
    try:
        parameters = _parameters(settings)
    except ValueError as error:
        return _failed(str(error), _WRONG)
    work = {"train": _train, "pred": _predict, "dump": _dump, "eval": _evaluate}[settings.task]
    try:
        with parallel.communicator():
            work(settings, parameters)
    except (parallel.DataError, parallel.WorldError, OSError) as error:
        return _failed(str(error), 1)
    except xgboost.core.XGBoostError as error:
        return _failed(str(error).partition("Stack trace:")[0].strip(), 1)
    return 0


def _failed(text: str, code: int) -> int:
    """Says why, on every rank: it is not known which rank's output is shown last."""
    print(f"xgboost: {text}", file=sys.stderr)
    return code


def _parameters(settings: Settings) -> Parameters:
    """Training parameters as today's XGBoost has them; ValueError where that cannot be."""
    found = modern(settings.parameters, shanty.size())
    notes = [*settings.notes, *found.notes]
    if notes and shanty.rank() == 0:
        print(f"xgboost: {'; '.join(notes)}", file=sys.stderr)
    metrics = [value for name, value in found.pairs if name == "eval_metric"]
    return {**dict(found.pairs), **({"eval_metric": metrics} if metrics else {})}


class _Saver(xgboost.callback.TrainingCallback):  # type: ignore[misc]
    """Saves the model after every `save_period` rounds."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings

    def after_iteration(
        self,
        model: xgboost.Booster,
        epoch: int,
        evals_log: xgboost.callback.TrainingCallback.EvalsLog,
    ) -> bool:
        """Saves after the round `epoch`, which counts from 0; training goes on."""
        if (epoch + 1) % self.settings.save_period == 0:
            parallel.save_model(model, self.settings.model_file(epoch + 1))
        return False


def _train(settings: Settings, parameters: Parameters) -> None:
    data = _matrix(settings.data)
    evals = _evals(settings)
    if settings.eval_train:
        evals.append((data, "train"))
    callbacks: list[xgboost.callback.TrainingCallback] = []
    if evals:
        callbacks.append(
            xgboost.callback.EvaluationMonitor(
                logger=lambda text: print(text.rstrip(), file=sys.stderr)
            )
        )
    if settings.save_period:
        callbacks.append(_Saver(settings))
    booster = parallel.train(
        parameters,
        data,
        num_boost_round=settings.num_round,
        evals=evals,
        xgb_model=settings.model_in or None,
        verbose_eval=False,
        callbacks=callbacks,
    )
    last = settings.model_file(settings.num_round)
    if not settings.save_period or settings.num_round % settings.save_period:
        parallel.save_model(booster, last)
    _keep(last)


def _matrix(uri: str) -> xgboost.DMatrix:
    """This rank's share of what `uri` names."""
    return parallel.DMatrix(parse_old(uri))


def _evals(settings: Settings) -> Evals:
    return [(_matrix(path), name) for name, path in settings.evals.items()]


def _booster(settings: Settings, parameters: Parameters) -> xgboost.Booster:
    return xgboost.Booster(parameters, model_file=settings.model_in)


def _predict(settings: Settings, parameters: Parameters) -> None:
    """Each rank predicts its rows; rank 0 writes them all, in the order of the file."""
    from mpi4py import MPI

    booster = _booster(settings, parameters)
    found = booster.predict(
        _matrix(settings.test),
        output_margin=settings.pred_margin,
        validate_features=False,
        iteration_range=(settings.iteration_begin, settings.iteration_end),
    )
    world = MPI.COMM_WORLD
    if parallel.rank() != 0:
        world.send(found, 0)
        return
    with _output(settings.name_pred) as file:
        for rank in range(parallel.size()):
            part = found if rank == 0 else world.recv(source=rank)
            file.writelines(f"{value:.9g}\n" for value in part.ravel().tolist())
    _keep(settings.name_pred)


def _dump(settings: Settings, parameters: Parameters) -> None:
    """Rank 0 writes the trees; the others have nothing to do."""
    if parallel.rank() != 0:
        return
    trees = _booster(settings, parameters).get_dump(
        settings.fmap, with_stats=settings.dump_stats, dump_format=settings.dump_format
    )
    with _output(settings.name_dump) as file:
        if settings.dump_format == "json":
            file.write("[\n" + ",\n".join(trees) + "\n]\n")
        else:
            file.writelines(f"booster[{number}]:\n{tree}" for number, tree in enumerate(trees))
    _keep(settings.name_dump)


def _evaluate(settings: Settings, parameters: Parameters) -> None:
    line = _booster(settings, parameters).eval_set(_evals(settings))
    if parallel.rank() == 0:
        print(line, file=sys.stderr)


def _output(name: str) -> AbstractContextManager[TextIO]:
    return nullcontext(sys.stdout) if name == "stdout" else Path(name).open("w", encoding="utf-8")


def _keep(name: str) -> None:
    """Copies a result to the run's artifacts: on hosts, the folder is a different one."""
    if parallel.rank() == 0 and name != "stdout" and "SHANTY_RUN_DIR" in os.environ:
        shutil.copy(name, shanty.artifacts() / Path(name).name)
