"""Advises on a script that failed because it is written for TensorFlow 1 or for Keras 2.

Loaded by `post_mortem`, for an error in a process that has loaded TensorFlow or Keras, and never
before.
"""

from __future__ import annotations

import os
import re
import sys

_MISSING = re.compile(
    r"module '([\w.]+)' has no attribute '(\w+)'"
    r"|cannot import name '(\w+)' from '([\w.]+)'"
    r"|No module named '((?:tensorflow\.)?keras[\w.]*)\.(\w+)'"
)

# -------------------------------------------------------------------------------- TensorFlow 1

_NO_KERAS_2 = "is not available with Keras 3"
_ENDED_MODULE = re.compile(r"No module named 'tensorflow\.(?:contrib|examples)\b")
_ENDED = ("contrib", "examples", "estimator")
_API = "tensorflow._api.v2"
_ESTIMATORS = (
    "tf.estimator is in TensorFlow up to 2.15: with Python 3.11 or older, "
    "pip install 'tensorflow<2.16'"
)

# ------------------------------------------------------------------------------------- Keras 2

_SAID = re.compile(
    r"not supported in Keras 3|only supports V3 `\.keras` files|must end in `\.weights\.h5`"
    r"|Invalid filepath extension for saving"
)
_MEMBER = re.compile(r"'\w+' object has no attribute '(\w+)'")
_ARGUMENT = re.compile(
    r"got an unexpected keyword argument '(\w+)'"
    r"|Argument\(s\) not recognized: \{'(\w+)'"
    r"|Unrecognized keyword arguments.*?: \{'(\w+)'"
)
# The arguments and members that examples use, and that Keras 2 had and Keras 3 does not have.
_ARGUMENTS = {
    *("lr", "experimental_run_tf_function", "workers", "use_multiprocessing", "max_queue_size"),
    *("period", "write_grads", "weights", "batch_size", "embeddings_freq", "save_format"),
}
_MEMBERS = {
    *("fit_generator", "evaluate_generator", "predict_generator", "lr", "output_shape"),
    *("reset_states", "_make_train_function", "_make_predict_function", "make_train_function"),
    *("total_loss", "updates", "add_update", "get_input_shape_at"),
    *("get_output_shape_at", "get_input_at", "get_output_at", "inbound_nodes", "state_updates"),
    *("_create_all_weights", "_create_slots", "get_slot", "_get_hyper", "_set_hyper"),
}
_CLASSES = {"predict_classes": "np.argmax({}, axis=-1)", "predict_proba": "{}"}  # of Keras 2.5
_SESSIONS = ("set_session", "get_session")
# Neither Keras 2 nor Keras 3 has these.
_ENDED_IN_KERAS = {"np_utils", "multi_gpu_model", "scikit_learn"}
_ENDED_THERE = {"keras.mixed_precision": {"experimental"}}
_LIKE_A_TYPO = 0.8


def advice(error: BaseException) -> str:
    """Returns what to do about the error; "" where the script's age is not the cause."""
    text = str(error)
    fix = _for_tensorflow1(text) if "tensorflow" in sys.modules else ""
    return fix or (_for_keras2(text) if "keras" in sys.modules else "")


def _for_tensorflow1(text: str) -> str:
    of_1 = os.environ.get("SHANTY_TF1", "0") != "0"
    module, name = _missing(text)
    without_2 = of_1 and _is_keras_3() and "tf_keras" not in sys.modules
    if _NO_KERAS_2 in text or (without_2 and re.match(r"keras\b", module)):
        return f"install Keras 2, which is taken then: {_install_keras_2()}"
    if of_1 or not (_ENDED_MODULE.search(text) or _is_of_tensorflow1(module, name)):
        return ""
    fix = _run_as_tensorflow1()
    old = tuple(int(each) for each in re.findall(r"\d+", _version("tensorflow"))[:2]) < (2, 16)
    estimators = "'estimator'" in text or _script_has(r"\bestimator\.(?!ModeKeys)")
    fix = f"it is written for TensorFlow 1: {fix}"
    return fix if old or not estimators else f"{fix}; {_ESTIMATORS}"


def _is_of_tensorflow1(module: str, name: str) -> bool:
    """Returns True where TensorFlow 1 had what is missing."""
    if module.partition(".")[0] != "tensorflow" or not name:
        return False
    parts = module.removeprefix(_API).removeprefix("tensorflow")
    if not parts and name in _ENDED:
        return True
    place = getattr(getattr(sys.modules.get("tensorflow"), "compat", None), "v1", None)
    for part in parts.split(".")[1:]:
        place = getattr(place, part, None)
    return hasattr(place, name)


def _for_keras2(text: str) -> str:
    member, argument = _MEMBER.search(text), _ARGUMENT.search(text)
    if member and member[1] in _CLASSES:
        instead = _CLASSES[member[1]].format("model.predict(x)")
        return f"Keras has no {member[1]} since version 2.6: write {instead}"
    if not _is_keras_3() or os.environ.get("TF_USE_LEGACY_KERAS", "") in ("1", "true", "True"):
        return ""
    module, name = _missing(text)
    of_keras = re.match(r"(tensorflow\.)?keras\b", module)
    if of_keras and name in _SESSIONS:
        needs = f"and needs Keras 2: {_install_keras_2()}, and {_run_as_tensorflow1()}"
        return f"it is written for TensorFlow 1, {needs}"
    found = (
        _SAID.search(text)
        or (of_keras and _was_in_keras2(module, name))
        or (member and member[1] in _MEMBERS)
        or (argument and next(filter(None, argument.groups())) in _ARGUMENTS)
    )
    if not found:
        return ""
    alone = _script_has(r"^\s*(import|from) keras\b")
    more = ", with `import tf_keras as keras` in the place of `import keras`" if alone else ""
    run = f"shanty run -e TF_USE_LEGACY_KERAS=1{more}"
    return f"it is written for Keras 2: {_install_keras_2()}, and {run}"


def _was_in_keras2(module: str, name: str) -> bool:
    """Returns True for a name of Keras 2, False for a misspelt name."""
    closest = sys.modules["_shanty_instrumentation"].load_part("suggestions").closest
    names = [each for each in dir(sys.modules.get(module)) if not each.startswith("_")]
    ended = _ENDED_IN_KERAS | _ENDED_THERE.get(module, set())
    return name not in ended and not closest(name, names, _LIKE_A_TYPO)


# ---------------------------------------------------------------------------------------- both


def _missing(text: str) -> tuple[str, str]:
    """Returns the module and the name that it lacks; "" for both for another error."""
    found = _MISSING.search(text)
    if found is None:
        return "", ""
    module, name, imported, of, package, submodule = found.groups()
    return module or of or package, name or imported or submodule


def _version(package: str) -> str:
    return str(getattr(sys.modules.get(package), "__version__", ""))


def _is_keras_3() -> bool:
    return _version("keras").startswith("3.")


def _install_keras_2() -> str:
    version = ".".join(_version("tensorflow").split(".")[:2])
    return f"pip install tf_keras~={version}.0" if version else "pip install tf_keras"


def _script() -> str:
    return getattr(sys.modules.get("__main__"), "__file__", None) or ""


def _run_as_tensorflow1() -> str:
    return f"shanty run --tf1 {os.path.basename(_script())}".rstrip()


def _script_has(pattern: str) -> bool:
    try:
        with open(_script(), errors="replace") as file:
            return re.search(pattern, file.read(), re.MULTILINE) is not None
    except OSError:
        return False
