"""Says what to do about a script that failed over a name of TensorFlow 1.

Loaded by `post_mortem`, for an error of TensorFlow's, and never before.
"""

from __future__ import annotations

import os
import re
import sys

_ONLY_1 = re.compile(r"No module named '(tensorflow\.(?:contrib|examples)\b[\w.]*)'")
_NO_ATTRIBUTE = re.compile(r"module '(tensorflow[\w.]*)' has no attribute '(\w+)'")
_NO_NAME = re.compile(r"cannot import name '(\w+)' from '(tensorflow[\w.]*)'")
_NO_KERAS_2 = re.compile(r"is not available with Keras 3")
_NO_KERAS_NAME = re.compile(r"module 'keras\b[\w.]*' has no attribute|from 'keras\b[\w.]*'")
_ENDED = ("contrib", "examples", "estimator")
_API = "tensorflow._api.v2"
_ESTIMATORS = (
    "tf.estimator is in TensorFlow up to 2.15: with Python 3.11 or older, "
    "pip install 'tensorflow<2.16'"
)


def advice(error: BaseException) -> str:
    """Returns what to do about it; "" where the cause is another one."""
    text = str(error)
    of_1 = os.environ.get("SHANTY_TF1", "0") != "0"
    if _NO_KERAS_2.search(text) or (of_1 and _has_keras_3() and _NO_KERAS_NAME.search(text)):
        version = ".".join(_version().split(".")[:2])
        return f"install Keras 2, which is taken then: pip install tf_keras~={version}.0"
    if of_1 or not _is_of_1(text):
        return ""
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    fix = f"it is written for TensorFlow 1: shanty run --tf1 {os.path.basename(script)}".rstrip()
    old = tuple(int(each) for each in re.findall(r"\d+", _version())[:2]) < (2, 16)
    return fix if old or not _needs_estimators(script, text) else f"{fix}; {_ESTIMATORS}"


def _is_of_1(text: str) -> bool:
    """Tells whether what is missing was in TensorFlow 1."""
    if _ONLY_1.search(text):
        return True
    found, imported = _NO_ATTRIBUTE.search(text), _NO_NAME.search(text)
    if found is None and imported is None:
        return False
    if found is not None:
        module, name = found[1], found[2]
    else:
        module, name = imported[2], imported[1]  # type: ignore[index]
    parts = module[len(_API) :] if module.startswith(_API) else module[len("tensorflow") :]
    if not parts and name in _ENDED:
        return True
    place = getattr(getattr(sys.modules.get("tensorflow"), "compat", None), "v1", None)
    for part in parts.split(".")[1:]:
        place = getattr(place, part, None)
    return hasattr(place, name)


def _has_keras_3() -> bool:
    version = str(getattr(sys.modules.get("keras"), "__version__", ""))
    return version.startswith("3.") and "tf_keras" not in sys.modules


def _needs_estimators(script: str, text: str) -> bool:
    if "'estimator'" in text:
        return True
    try:
        with open(script, errors="replace") as file:
            return re.search(r"\bestimator\.(?!ModeKeys)", file.read()) is not None
    except OSError:
        return False


def _version() -> str:
    return str(getattr(sys.modules.get("tensorflow"), "__version__", "2"))
