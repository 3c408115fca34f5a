"""Who finds TensorFlow 1 under the name tensorflow; with a TensorFlow that is a few files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import shanty
from shanty.runtime.rank import old_api_advice, tensorflow1

SOURCE = str(Path(shanty.__file__).parents[1])
INSTALLED = {
    "tensorflow/__init__.py": "from tensorflow import compat\n__version__ = '2.99.0'\ntwo = 2\n",
    "tensorflow/compat/__init__.py": "from tensorflow.compat import v1\n",
    "tensorflow/compat/v1/__init__.py": (
        "import tensorflow.compat as compat\n"
        "from tensorflow.compat.v1 import keras, train\n"
        "placeholder = 'a placeholder'\n"
        "disabled = []\n"
        "def disable_v2_behavior():\n"
        "    disabled.append(True)\n"
    ),
    "tensorflow/compat/v1/keras.py": "layers, __version__ = 'layers of Keras 2', '2'\n",
    "tensorflow/compat/v1/train.py": "Saver = 'a saver'\n",
    "tensorflow/python/__init__.py": "",
    "tensorflow/python/ops.py": "inner = 1\n",
    "tensorflow/python/util/__init__.py": "",
    "tensorflow/python/util/deprecation.py": "",
    "keras/__init__.py": "three = 3\n",
    "library.py": "import keras, tensorflow\ntwo, three = tensorflow.two, keras.three\n",
}
START = (
    "import sys; sys.path[:0] = [{source!r}, {packages!r}, {folder!r}]\n"
    "from shanty.runtime.rank import tensorflow1\n"
    "tensorflow1.install()\n"
    "import runpy; runpy.run_path({script!r}, run_name='__main__')\n"
)


class Script:
    """Runs scripts with these packages, as a rank of a run with --tf1 would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages = folder / "site-packages"

    def add(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.packages / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def __call__(self, text: str) -> subprocess.CompletedProcess[str]:
        script = self.folder / "script.py"
        script.write_text(text)
        places = {"source": SOURCE, "packages": str(self.packages), "folder": str(self.folder)}
        program = START.format(**places, script=str(script))
        environ = {k: v for k, v in os.environ.items() if k != tensorflow1.LEGACY_KERAS}
        return subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=environ
        )


@pytest.fixture
def script(tmp_path: Path) -> Script:
    found = Script(tmp_path)
    found.add(INSTALLED)
    return found


def printed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_script_and_what_is_beside_it_see_version_1(script: Script) -> None:
    (script.folder / "beside.py").write_text("import tensorflow as tf\n")
    text = (
        "import beside, library, tensorflow as tf\n"
        "from tensorflow.train import Saver\n"
        "from tensorflow import placeholder\n"
        "import tensorflow.python.ops\n"
        "print(placeholder == tf.placeholder, Saver, tf.compat.v1.disabled, beside.tf is tf)\n"
        "print(library.two, library.three, hasattr(tf, 'two'), tf.python.ops.inner)\n"
        "import keras\n"
        "print(keras.layers)\n"
    )
    assert printed(script(text)).splitlines() == [
        "True a saver [True] True",
        "2 3 False 1",
        "layers of Keras 2",
    ]


def test_nothing_is_loaded_for_other_scripts(script: Script) -> None:
    text = "import sys, json\nprint([each for each in sys.modules if 'tensorflow1' in each])\n"
    assert printed(script(text)) == "['shanty.runtime.rank.tensorflow1']"


FAILING = {
    "import tensorflow.contrib.crf": "tf.contrib.crf ended with TensorFlow 1",
    "from tensorflow.contrib import crf": "tf.contrib.crf ended with TensorFlow 1",
    "from tensorflow import two": "has no attribute 'two', nor had TensorFlow 1",
    "import tensorflow.estimator.inputs": "tf.estimator.inputs is in TensorFlow up to 2.15",
    "from tensorflow.examples import other": "tf.examples.other ended with TensorFlow 1",
    "import nothing": "No module named 'nothing'",
}
TRY = "try:\n    {}\nexcept ImportError:\n    print(traceback.format_exc(), end='|')\n"


def test_an_import_that_fails_shows_the_script_only(script: Script) -> None:
    done = script("import traceback\n" + "".join(map(TRY.format, FAILING)))
    errors = printed(done).split("|")[:-1]
    for says, error in zip(FAILING.values(), errors, strict=True):
        *frames, last = error.strip().splitlines()
        assert says in last
        assert not any("tensorflow1" in frame for frame in frames), error


def test_where_there_is_no_tensorflow(tmp_path: Path) -> None:
    done = Script(tmp_path)("import tensorflow\n")
    assert done.stderr.strip().endswith("ModuleNotFoundError: No module named 'tensorflow'")
    assert "shanty/" not in done.stderr


@pytest.mark.parametrize(("keras", "takes"), [("3.1.0", "1"), ("2.15.0", "None")])
def test_keras_2_is_taken_beside_keras_3(script: Script, keras: str, takes: str) -> None:
    script.add(
        {
            "tf_keras/__init__.py": "",
            f"keras-{keras}.dist-info/METADATA": f"Name: keras\nVersion: {keras}\n",
        }
    )
    text = f"import library, os\nprint(os.environ.get({tensorflow1.LEGACY_KERAS!r}))\n"
    assert printed(script(text)) == takes


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ({"__name__": "__main__", "__file__": "/x/site-packages/a.py"}, True),
        ({"__name__": "model", "__file__": "/work/model.py"}, True),
        ({"__name__": "keras.a", "__file__": "/x/site-packages/keras/a.py"}, False),
        ({"__name__": "a", "__file__": "/usr/lib/python3/dist-packages/a.py"}, False),
        ({"__name__": "horovod.tensorflow", "__file__": "/work/horovod/tensorflow.py"}, False),
        ({"__name__": "shanty.tensorflow", "__file__": "/src/shanty/tensorflow.py"}, False),
        ({"__name__": "runpy", "__file__": os.__file__.replace("os.py", "runpy.py")}, False),
        ({"__name__": "made up"}, False),
        ({}, False),
    ],
)
def test_who_is_of_the_script(names: dict[str, str], wanted: bool) -> None:
    assert tensorflow1.is_script(names) is wanted


def test_the_package_of_a_module_that_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__package__ = "pack.sub"
    monkeypatch.setitem(sys.modules, "__main__", main)
    names = {"__name__": "pack.model", "__file__": "/x/site-packages/pack/model.py"}
    assert tensorflow1.is_script(names)
    assert not tensorflow1.is_script({**names, "__name__": "package"})


# -------------------------------------------------------------------------- what is advised


@pytest.fixture
def tensorflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A TensorFlow 2.21 with some names of version 1, and a script."""
    train = SimpleNamespace(AdamOptimizer=1)
    v1 = SimpleNamespace(placeholder=1, app=1, train=train)
    module: Any = ModuleType("tensorflow")
    module.compat, module.__version__ = SimpleNamespace(v1=v1), "2.21.0"
    main: Any = ModuleType("__main__")
    main.__file__ = str(tmp_path / "main.py")
    Path(main.__file__).write_text("tf.app.run()\n")
    monkeypatch.setitem(sys.modules, "tensorflow", module)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.delenv("SHANTY_TF1", raising=False)
    return module


ADVICE = "it is written for TensorFlow 1: shanty run --tf1 main.py"


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (AttributeError("module 'tensorflow' has no attribute 'placeholder'"), ADVICE),
        (AttributeError("module 'tensorflow' has no attribute 'contrib'"), ADVICE),
        (AttributeError("module 'tensorflow' has no attribute 'other'"), ""),
        (AttributeError("module 'tensorflow._api.v2.train' has no attribute 'AdamOptimizer'. Did"
                        " you mean: 'Example'?"), ADVICE),
        (AttributeError("module 'tensorflow._api.v2.nn' has no attribute 'AdamOptimizer'"), ""),
        (AttributeError("module 'numpy' has no attribute 'placeholder'"), ""),
        (ImportError("cannot import name 'app' from 'tensorflow' (/x/__init__.py)"), ADVICE),
        (ModuleNotFoundError("No module named 'tensorflow.contrib'"), ADVICE),
        (ModuleNotFoundError("No module named 'tensorflow.examples.tutorials'"), ADVICE),
        (ModuleNotFoundError("No module named 'tensorflow.contributed'"), ""),
        (AttributeError("module 'tensorflow' has no attribute 'estimator'"),
         f"{ADVICE}; tf.estimator is in TensorFlow up to 2.15: with Python 3.11 or older, pip "
         "install 'tensorflow<2.16'"),
        (AttributeError("`dense` is not available with Keras 3."),
         "install Keras 2, which is taken then: pip install tf_keras~=2.21.0"),
    ],
)  # fmt: skip
def test_advice(tensorflow: Any, error: Exception, fix: str) -> None:
    assert old_api_advice.advice(error) == fix


def test_advice_for_a_script_with_estimators(tensorflow: Any) -> None:
    Path(sys.modules["__main__"].__file__ or "").write_text("tf.estimator.Estimator(model)\n")
    error = AttributeError("module 'tensorflow' has no attribute 'placeholder'")
    assert "pip install 'tensorflow<2.16'" in old_api_advice.advice(error)
    tensorflow.__version__ = "2.15.1"
    assert old_api_advice.advice(error) == ADVICE


def test_no_advice_to_do_what_was_done(tensorflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHANTY_TF1", "1")
    error = AttributeError("module 'tensorflow' has no attribute 'placeholder'")
    assert old_api_advice.advice(error) == ""
    keras = SimpleNamespace(__version__="3.1.0")
    monkeypatch.setitem(sys.modules, "keras", keras)
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    error = AttributeError("module 'keras.backend' has no attribute 'set_session'")
    assert "pip install tf_keras~=2.21.0" in old_api_advice.advice(error)
