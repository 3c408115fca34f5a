"""What of TensorFlow 1 is not here, and what stands for it."""

from __future__ import annotations

import tensorflow

_ADDONS = "TensorFlow Addons went on with it until 2024"
_INSTEAD = {
    "bayesflow": "TensorFlow Probability is what became of it",
    "cluster_resolver": "there is tf.distribute.cluster_resolver",
    "crf": _ADDONS,
    "data": "there are tf.data and tf.data.experimental",
    "distribute": "there is tf.distribute",
    "distributions": "TensorFlow Probability is what became of it",
    "eager": "there are tf.enable_eager_execution() and the names of tf itself",
    "estimator": "there is tf.estimator, up to TensorFlow 2.15",
    "feature_column": "there is tf.feature_column",
    "framework": "there is tf.train",
    "gan": "TF-GAN is what became of it",
    "image": _ADDONS,
    "layers": "there are tf.layers and tf.keras.layers",
    "learn": "there is tf.estimator, up to TensorFlow 2.15",
    "lite": "there is tf.lite",
    "lookup": "there is tf.lookup",
    "losses": "there is tf.losses",
    "metrics": "there is tf.metrics",
    "opt": _ADDONS,
    "quantize": "TensorFlow Model Optimization is what became of it",
    "rnn": "there are tf.nn.rnn_cell and tf.keras.layers",
    "seq2seq": _ADDONS,
    "slim": "it is found after: pip install tf-slim",
    "summary": "there is tf.compat.v2.summary",
    "tensorboard": "there is tensorboard.plugins.projector",
    "tpu": "there is tf.tpu",
    "training": "there is tf.train",
}


def text(name: str) -> str:
    """Say of `name`, as "tf.contrib.crf", that it is not here, and what stands for it."""
    parts = name.split(".")
    if parts[1] != "contrib":
        return f"{name} ended with TensorFlow 1"
    instead = _INSTEAD.get(parts[2], "")
    more = f": {instead}" if instead else ""
    if len(parts) == 3:
        return f"{name} ended with TensorFlow 1{more}"
    return f"{name} is not in shanty's stand-in for tf.contrib, which ended with TensorFlow 1{more}"


def estimator(name: str) -> str:
    """Say of `name`, as "tf.estimator.Estimator", which TensorFlow has it."""
    return (
        f"{name} is in TensorFlow up to 2.15, and this is {tensorflow.__version__}: with Python "
        "3.11 or older, pip install 'tensorflow<2.16'"
    )
