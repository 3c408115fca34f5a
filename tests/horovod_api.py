"""The pages of documentation that show Horovod's public names beside ours.

`python tests/horovod_api.py` writes them anew. What the names are here is asked of a Python that
has the framework: PyTorch beside the tests, TensorFlow and Keras in an environment of their own.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import environments
import horovod_tensorflow
import shanty
from horovod_names import Found, Name, Section, look, page, read

DOCS = Path(__file__).parents[1] / "docs" / "reference"
TORCH = Path(__file__).with_suffix(".toml")
PAGES = {
    TORCH: DOCS / "horovod-api.md",
    horovod_tensorflow.TENSORFLOW: DOCS / "horovod-api-tensorflow.md",
    horovod_tensorflow.KERAS: DOCS / "horovod-api-keras.md",
}
PATIENCE = 120  # seconds for TensorFlow to be imported

_TITLES = {
    "start": "Beginning and end",
    "questions": "Questions about the world",
    "operations": "Operations",
    "reductions": "Reductions",
    "compression": "Compression",
    "process_sets": "Process sets",
    "functions": "Models, optimizers, objects",
    "training": "Training",
    "optimizer": "What `DistributedOptimizer` returns has also",
    "elastic": "Restarting from the last commit",
}
SECTIONS = {
    TORCH: tuple(Section(key, title, "shanty.torch") for key, title in _TITLES.items()),
    **horovod_tensorflow.SECTIONS,
}
_HEADS = {
    TORCH: """# Horovod's API, name by name

Every public name of `horovod.torch` 0.28.1 and what stands for it in `shanty.torch`. A test writes
this page, and fails where a name is missing or takes other arguments: `tests/horovod_api.py`.

""",
    horovod_tensorflow.TENSORFLOW: """# Horovod's API for TensorFlow, name by name

Every public name of `horovod.tensorflow` 0.28.1 and what stands for it in `shanty.tensorflow`; each
is in `horovod.tensorflow` too, as it stands in for Horovod in a run. A test writes this page, and
fails where a name is missing or takes other arguments: `tests/horovod_api.py`. For Keras:
[horovod-api-keras](horovod-api-keras.md).

""",
    horovod_tensorflow.KERAS: """# Horovod's API for Keras, name by name

Every public name of `horovod.keras` and `horovod.tensorflow.keras` 0.28.1, and what stands for it
in `shanty.keras` and `shanty.tensorflow.keras`, here with Keras 3; each is in `horovod.keras` or
`horovod.tensorflow.keras` too, as it stands in for Horovod in a run. A test writes this page, and
fails where a name is missing or takes other arguments: `tests/horovod_api.py`.

""",
}


def of_torch(name: Name) -> list[Any]:
    """What we have under a name of horovod.torch: methods of the optimizer in both of its forms."""
    import shanty.torch as hvd
    from shanty.torch.hvd.optimizer import AdasumReducing, Reducing

    if name.section == "optimizer":
        return [getattr(each, name.path) for each in (Reducing, AdasumReducing)]
    thing: Any = hvd
    for part in name.path.split("."):
        thing = getattr(thing, part)
    return [thing]


@functools.cache
def found(path: Path) -> Mapping[str, Found | None]:
    """What we have under each name of a file of facts."""
    if path == TORCH:
        return {name.key: look(of_torch(name)[0], name) for name in read(path).names}
    return {key: value and Found(**value) for key, value in _on_tensorflow().items()}


@functools.cache
def _on_tensorflow() -> dict[str, Any]:
    """What a Python with TensorFlow says of the names there, once."""
    source = Path(shanty.__file__).parents[1]
    done = subprocess.run(
        [environments.tensorflow(), horovod_tensorflow.__file__],
        env={**os.environ, "PYTHONPATH": str(source), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{horovod_tensorflow.__file__}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def text(path: Path) -> str:
    """The page of a file of facts."""
    return page(_HEADS[path], SECTIONS[path], read(path), found(path))


if __name__ == "__main__":
    for each, where in PAGES.items():
        where.write_text(text(each), encoding="utf-8")
        print(where)
