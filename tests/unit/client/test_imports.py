"""What `--warm` has to import, as the script tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from shanty.client.imports import heavy_imports
from shanty.client.options import OPTIONS
from shanty.runtime.errors import UsageError
from shanty.runtime.spec import Command, JobSpec, Module, Script

FOUND = {
    "import torch": "torch",
    "import torch.nn.functional as F, os\nfrom torchvision import models": (
        "torch.nn.functional torchvision"
    ),
    '"""Doc."""\nfrom __future__ import annotations\nimport numpy as np\nimport numpy': "numpy",
    "import horovod.torch as hvd\nfrom shanty import keras": "torch keras",
    "from shanty.torch import elastic": "torch",
    "try:\n    import jax\nexcept ImportError:\n    import tensorflow": "jax",
    "import os\nSIZE = 3\nimport torch\nos.environ['A'] = 'b'\nimport jax": "torch",
    "import os\ndef f():\n    return os.environ\nimport torch": "torch",
    "from . import torch\nimport mytorch, xgboost": "xgboost",
    "def f():\n    import torch\nimport scipy.sparse": "scipy.sparse",
}
NONE = [
    "import os",
    "from dotenv import load_dotenv\nload_dotenv()\nimport torch",
    "import torchlib",
]


def of(text: str, folder: Path, path: str = "train.py", command: Command | None = None) -> str:
    file = folder / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    job = JobSpec(command or Script("train.py"), workdir=str(folder))
    return " ".join(heavy_imports(job))


@pytest.mark.parametrize("text", FOUND)
def test_the_frameworks_at_the_top_are_found(text: str, tmp_path: Path) -> None:
    assert of(text, tmp_path) == FOUND[text]


@pytest.mark.parametrize("text", NONE)
def test_a_script_without_any_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="imports no framework at its top"):
        of(text, tmp_path)


def test_modules_and_folders_are_found(tmp_path: Path) -> None:
    assert of("import jax", tmp_path, "pack/train.py", Module("pack.train")) == "jax"
    assert of("import torch", tmp_path, "pack/__main__.py", Module("pack")) == "torch"
    assert of("import torch", tmp_path, "pack/__main__.py", Script("pack")) == "torch"


def test_what_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read") as error:
        of("print 'old'", tmp_path)
    assert "--warm=torch" in error.value.fix
    with pytest.raises(UsageError, match="cannot read"):
        heavy_imports(JobSpec(Module("nowhere"), workdir=str(tmp_path)))


@pytest.mark.parametrize(
    "given, wanted",
    [(True, ("imports",)), (False, None), ("torch, numpy,torch", ("torch", "numpy"))],
)
def test_modules_are_read(given: object, wanted: object) -> None:
    read = OPTIONS["warm"].read
    assert read is not None
    assert read(given, "--warm", Path()) == wanted
    with pytest.raises(UsageError, match="names of modules"):
        read("a b", "--warm", Path())
