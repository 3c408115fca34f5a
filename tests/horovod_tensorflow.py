"""Looks up Horovod's names for TensorFlow and Keras in what we have, and prints it as JSON.

A program for a Python that has TensorFlow, and shanty on its path.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from horovod_names import Name, Section, look, read
from shanty import compat
from shanty.compat.absent import AbsentError

TENSORFLOW = Path(__file__).with_name("horovod_api_tensorflow.toml")
KERAS = Path(__file__).with_name("horovod_api_keras.toml")

_MISSING = object()
_TF, _TF_KERAS, _KERAS = "shanty.tensorflow", "shanty.tensorflow.keras", "shanty.keras"
_ON_TF = (
    Section("tensorflow.start", "Beginning and end", _TF),
    Section("tensorflow.questions", "Questions about the world", _TF),
    Section("tensorflow.questions_in_graphs", "Questions in graphs", _TF),
    Section("tensorflow.operations", "Operations", _TF),
    Section("tensorflow.reductions", "Reductions", _TF),
    Section("tensorflow.compression", "Compression", _TF),
    Section("tensorflow.process_sets", "Process sets", _TF),
    Section("tensorflow.functions", "Variables and objects", _TF),
    Section("tensorflow.training", "Training", _TF),
    Section("tensorflow.tape", "What `DistributedGradientTape` returns has also", _TF),
    Section("tensorflow.optimizer", "What `DistributedOptimizer` returns has also", _TF),
    Section("tensorflow.adasum_optimizer", "The same with `op=Adasum`", _TF),
    Section("tensorflow.elastic", "`elastic`", f"{_TF}.elastic"),
    Section("tensorflow.functions_module", "`functions`", f"{_TF}.functions"),
    Section("tensorflow.compression_module", "`compression`", f"{_TF}.compression"),
    Section("tensorflow.sync_batch_norm", "`sync_batch_norm`", f"{_TF}.sync_batch_norm"),
    Section("tensorflow.mpi_ops", "`mpi_ops`", "horovod.tensorflow.mpi_ops"),
    Section("tensorflow.util", "`util`", "horovod.tensorflow.util"),
    Section("tensorflow.helpers", "Helpers", "horovod.tensorflow"),
    Section(
        "tensorflow.gradient_aggregation",
        "`gradient_aggregation`",
        "horovod.tensorflow.gradient_aggregation",
    ),
    Section(
        "tensorflow.gradient_aggregation_eager",
        "`gradient_aggregation_eager`",
        "horovod.tensorflow.gradient_aggregation_eager",
    ),
    Section(
        "tensorflow.data.compute_service",
        "`data.compute_service`",
        "horovod.tensorflow.data.compute_service",
    ),
    Section(
        "tensorflow.data.compute_worker",
        "`data.compute_worker`",
        "horovod.tensorflow.data.compute_worker",
    ),
)


def _of_keras(prefix: str, ours: str) -> tuple[Section, ...]:
    title = f"horovod.{prefix}"
    made = [
        Section(f"{prefix}.start", f"`{title}`: beginning and end", ours),
        Section(f"{prefix}.questions", f"`{title}`: questions about the world", ours),
        Section(f"{prefix}.operations", f"`{title}`: operations", ours),
        Section(f"{prefix}.reductions", f"`{title}`: reductions", ours),
        Section(f"{prefix}.compression", f"`{title}`: compression", ours),
        Section(f"{prefix}.process_sets", f"`{title}`: process sets", ours),
        Section(f"{prefix}.functions", f"`{title}`: variables and models", ours),
        Section(f"{prefix}.training", f"`{title}`: training", ours),
        Section(f"{prefix}.callbacks", f"`{title}.callbacks`", f"{ours}.callbacks"),
        Section(f"{prefix}.elastic", f"`{title}.elastic`", f"{ours}.elastic"),
    ]
    if ours == _TF_KERAS:
        of_optimizer = "What its `DistributedOptimizer` returns has also"
        made.insert(-2, Section(f"{prefix}.optimizer", of_optimizer, ours))
        made.append(Section(f"{prefix}.helpers", f"`{title}`: helpers", title))
    return tuple(made)


SECTIONS = {
    TENSORFLOW: _ON_TF,
    KERAS: (*_of_keras("keras", _KERAS), *_of_keras("tensorflow.keras", _TF_KERAS)),
}


def places(section: Section) -> list[Any]:
    """Where the names of a section are: in modules that all have them, or in one of classes."""
    optimizer = import_module("shanty.tensorflow.optimizer")
    if section.key == "tensorflow.optimizer":
        return [optimizer._Reducing]
    if section.key == "tensorflow.adasum_optimizer":
        return [optimizer._AdasumReducing]
    if section.key == "tensorflow.tape":
        return [import_module("shanty.tensorflow.tape").DistributedTape]
    if section.key == "tensorflow.keras.optimizer":
        hvd = import_module(_TF_KERAS)
        made = hvd.DistributedOptimizer(hvd.tf.keras.optimizers.SGD())
        return [type(made), import_module("shanty.keras.optimizer")._Keras2]
    try:
        ours = import_module(section.ours)
    except AbsentError:
        return []
    return [ours, import_module(section.ours.replace("shanty", "horovod", 1))]


def find(name: Name, among: Sequence[Any]) -> Any:
    """What we have under a name, or _MISSING."""
    found = [_within(place, name.path) for place in among]
    if isinstance(among[0], type):
        return next((each for each in found if each is not _MISSING), _MISSING)
    same = all(inspect.ismodule(each) or each is found[0] for each in found)
    return found[0] if same else _MISSING


def _within(thing: Any, path: str) -> Any:
    for part in path.split("."):
        thing = getattr(thing, part, _MISSING)
    return thing


def main() -> None:
    warnings.simplefilter("ignore")
    compat.install()
    result: dict[str, Any] = {}
    for facts, sections in SECTIONS.items():
        for section in sections:
            among = places(section)
            for name in read(facts).of(section.key) if among else ():
                thing = find(name, among)
                found = None if thing is _MISSING else dataclasses.asdict(look(thing, name))
                result[name.key] = found
    print(json.dumps(result))


if __name__ == "__main__":
    main()
