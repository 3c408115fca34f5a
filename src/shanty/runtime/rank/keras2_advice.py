"""Says what to do about a script that failed since Keras 3 lacks something that Keras 2 had.

Loaded by `post_mortem`, for an error in a process that has loaded Keras 3, and never before.
"""

from __future__ import annotations

import os
import re
import sys

_SAID = re.compile(
    r"not supported in Keras 3|only supports V3 `\.keras` files|must end in `\.weights\.h5`"
    r"|Invalid filepath extension for saving"
)
_NAME = re.compile(
    r"module '(keras\b[\w.]*)' has no attribute '(\w+)'"
    r"|cannot import name '(\w+)' from '((?:tensorflow\.)?keras\b[\w.]*)'"
    r"|No module named '((?:tensorflow\.)?keras\.[\w.]+)'()"
)
_MEMBER = re.compile(r"'\w+' object has no attribute '(\w+)'")
_ARGUMENT = re.compile(
    r"got an unexpected keyword argument '(\w+)'"
    r"|Argument\(s\) not recognized: \{'(\w+)'"
    r"|Unrecognized keyword arguments.*?: \{'(\w+)'"
)
# Of the arguments and members that Keras 2 had and Keras 3 has not, those that examples use.
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
_ENDED = {"np_utils", "multi_gpu_model", "scikit_learn"}
_ENDED_THERE = {"keras.mixed_precision": {"experimental"}}
_LIKE_A_TYPO = 0.8


def advice(error: BaseException) -> str:
    """Returns what to do about it; "" where the cause is another one."""
    text = str(error)
    member, name, argument = (each.search(text) for each in (_MEMBER, _NAME, _ARGUMENT))
    if member and member[1] in _CLASSES:
        instead = _CLASSES[member[1]].format("model.predict(x)")
        return f"Keras has no {member[1]} since version 2.6: write {instead}"
    if not _is_3() or os.environ.get("TF_USE_LEGACY_KERAS", "") in ("1", "true", "True"):
        return ""
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    if name and name[2] in _SESSIONS:
        run = f"shanty run --tf1 {os.path.basename(script)}".rstrip()
        return f"it is written for TensorFlow 1, and needs Keras 2: {_install()}, and {run}"
    found = (
        _SAID.search(text)
        or (name and _was_there(*_place(name)))
        or (member and member[1] in _MEMBERS)
        or (argument and next(filter(None, argument.groups())) in _ARGUMENTS)
    )
    if not found:
        return ""
    more = ""
    if _imports_keras(script):
        more = ", with `import tf_keras as keras` in the place of `import keras`"
    return f"it is written for Keras 2: {_install()}, and shanty run -e TF_USE_LEGACY_KERAS=1{more}"


def _is_3() -> bool:
    return str(getattr(sys.modules.get("keras"), "__version__", "")).startswith("3.")


def _install() -> str:
    version = str(getattr(sys.modules.get("tensorflow"), "__version__", ""))
    fits = "~=" + ".".join(version.split(".")[:2]) + ".0" if version else ""
    return f"pip install tf_keras{fits}"


def _place(found: re.Match[str]) -> tuple[str, str]:
    """Returns the module and the name in it that is missing."""
    module, name, imported, of, whole, _ = found.groups()
    if whole:
        module, _, name = whole.rpartition(".")
    return (module or of, name or imported)


def _was_there(module: str, name: str) -> bool:
    """Tells whether a name is one of Keras 2 rather than one that is misspelt."""
    from difflib import get_close_matches

    names = [each for each in dir(sys.modules.get(module)) if not each.startswith("_")]
    ended = _ENDED | _ENDED_THERE.get(module, set())
    return name not in ended and not get_close_matches(name, names, 1, _LIKE_A_TYPO)


def _imports_keras(script: str) -> bool:
    try:
        with open(script, errors="replace") as file:
            return re.search(r"^\s*(import|from) keras\b", file.read(), re.MULTILINE) is not None
    except OSError:
        return False
