"""What is advised where a script fails since Keras 3 lacks what Keras 2 had."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shanty.runtime.rank import instrumentation, old_api_advice

ADVICE = (
    "it is written for Keras 2: pip install tf_keras~=2.21.0, and "
    "shanty run -e TF_USE_LEGACY_KERAS=1"
)
BESIDE = ADVICE + ", with `import tf_keras as keras` in the place of `import keras`"


@pytest.fixture(autouse=True)
def keras(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Keras 3 with TensorFlow 2.21, and a script."""
    layers: Any = ModuleType("keras._tf_keras.keras.layers")
    layers.Dense = 1
    main: Any = ModuleType("__main__")
    main.__file__ = str(tmp_path / "main.py")
    Path(main.__file__).write_text("import tensorflow as tf\n")
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(__version__="3.15.1"))
    monkeypatch.setitem(sys.modules, layers.__name__, layers)
    monkeypatch.setitem(sys.modules, "_shanty_instrumentation", instrumentation)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(__version__="2.21.0"))
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)


@pytest.mark.parametrize(
    "error",
    [
        ImportError("`keras.optimizers.legacy` is not supported in Keras 3. When using `tf.keras`, "
                    "to continue using a `tf.keras.optimizers.legacy` optimizer, you can …"),
        ValueError("Argument(s) not recognized: {'lr': 0.1}"),
        TypeError("Trainer.compile() got an unexpected keyword argument "
                  "'experimental_run_tf_function'"),
        TypeError("TensorFlowTrainer.fit() got an unexpected keyword argument 'workers'"),
        AttributeError("'Sequential' object has no attribute 'fit_generator'"),
        AttributeError("'SGD' object has no attribute 'lr'"),
        ValueError("Invalid filepath extension for saving. Please add either a `.keras` …"),
        ValueError("File format not supported: filepath=m. "
                   "Keras 3 only supports V3 `.keras` files"),
        ValueError("The filename must end in `.weights.h5`. Received: filepath=w"),
        ValueError("Unrecognized keyword arguments passed to Dense: {'weights': [1]}"),
        AttributeError("module 'keras._tf_keras.keras.layers' has no attribute 'experimental'"),
        AttributeError("module 'keras._tf_keras.keras.backend' has no attribute "
                       "'set_learning_phase'"),
        ModuleNotFoundError("No module named 'keras.engine'"),
    ],
)  # fmt: skip
def test_a_script_for_keras_2(error: Exception) -> None:
    assert old_api_advice.advice(error) == ADVICE


@pytest.mark.parametrize(
    "error",
    [
        AttributeError("module 'keras._tf_keras.keras.layers' has no attribute 'Dence'"),
        AttributeError("module 'keras.mixed_precision' has no attribute 'experimental'"),
        AttributeError("module 'numpy' has no attribute 'lr'"),
        AttributeError("'Model' object has no attribute 'other'"),
        TypeError("train() got an unexpected keyword argument 'other'"),
        ValueError("bad value"),
    ],
)
def test_another_cause(error: Exception) -> None:
    assert old_api_advice.advice(error) == ""


def test_a_script_of_keras_alone() -> None:
    Path(sys.modules["__main__"].__file__ or "").write_text("import keras\n")
    error = ValueError("Argument(s) not recognized: {'lr': 0.1}")
    assert old_api_advice.advice(error) == BESIDE


def test_no_advice_to_do_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert old_api_advice.advice(ValueError("Argument(s) not recognized: {'lr': 0.1}")) == ""


def test_a_session_of_keras() -> None:
    error = AttributeError("module 'keras._tf_keras.keras.backend' has no attribute 'set_session'")
    assert old_api_advice.advice(error) == (
        "it is written for TensorFlow 1, and needs Keras 2: pip install tf_keras~=2.21.0, and "
        "shanty run --tf1 main.py"
    )


def test_what_no_keras_has_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    error = AttributeError("'Sequential' object has no attribute 'predict_classes'")
    assert "np.argmax(model.predict(x), axis=-1)" in old_api_advice.advice(error)
