"""The files that a task is given and those that it makes, looked at before the work."""

from __future__ import annotations

import os
from pathlib import Path

from shanty.compat.xgboost_program.settings import Settings


def model_file(settings: Settings, rounds: int) -> str:
    """Where the model of so many rounds goes."""
    by_period = settings.save_period and rounds % settings.save_period == 0
    if rounds == settings.num_round and settings.model_out and not by_period:
        return settings.model_out
    return f"{settings.model_dir or '.'}/{rounds:04d}.model"


def missing(settings: Settings) -> str:
    """Which file is not there: the model, or the names of features; "" where all are."""
    for name, file in (("model_in", settings.model_in), ("fmap", settings.fmap)):
        if file and not Path(file).is_file():
            return f"{name} = {file}: there is no such file"
    return ""


def unwritable(settings: Settings) -> str:
    """Why a result cannot be written; "" where all can. It is rank 0 that writes."""
    if settings.task == "train":
        every = [settings.save_period] if settings.save_period else []
        files = [model_file(settings, rounds) for rounds in (*every, settings.num_round)]
    else:
        files = {"pred": [settings.name_pred], "dump": [settings.name_dump]}.get(settings.task, [])
    for file in files:
        folder = Path(file).parent
        if file != "stdout" and not os.access(folder, os.W_OK):
            why = "cannot be written to" if folder.is_dir() else "is not there"
            return f"{file} cannot be written: the folder {folder} {why}"
    return ""
