"""The layers of `tf.contrib.layers`, by TensorFlow's own operations; no Keras is needed.

Variables have the names that they had: `fully_connected/weights`, `Conv/biases`,
`BatchNorm/moving_mean`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shanty.compat.tensorflow1.arg_scope import add_arg_scope
from shanty.compat.tensorflow1.installed import v1
from shanty.compat.tensorflow1.weights import xavier_initializer

_LAST, _FIRST = "NHWC", "NCHW"  # where an image has its channels
Function = Callable[..., Any]


class _WithWeights(NamedTuple):
    """The arguments that layers with weights have in common, in their order."""

    activation_fn: Function | None = v1.nn.relu
    normalizer_fn: Function | None = None
    normalizer_params: Mapping[str, Any] | None = None
    weights_initializer: Any = None
    weights_regularizer: Function | None = None
    biases_initializer: Any = v1.zeros_initializer()  # None means no biases
    biases_regularizer: Function | None = None
    reuse: Any = None
    variables_collections: Any = None
    outputs_collections: Any = None
    trainable: bool = True
    scope: Any = None

    def within(self, default: str, inputs: Any) -> Any:
        """Return the scope of the layer's variables. default: its name where none is given."""
        return v1.variable_scope(self.scope, default, [inputs], reuse=self.reuse)

    def weights(self, inputs: Any, shape: list[int]) -> Any:
        """Return the variable of the weights."""
        return _variable(
            "weights",
            shape,
            inputs.dtype.base_dtype,
            self.weights_initializer or xavier_initializer(),
            self.weights_regularizer,
            self.trainable,
            self.variables_collections,
        )

    def finished(self, outputs: Any, size: int, order: str = "") -> Any:
        """Return what comes after the weights: normalization or biases, activation, collections.

        order: of an image's dimensions; "" for rows.
        """
        if self.normalizer_fn is not None:
            how = dict(self.normalizer_params or {})
            if self.normalizer_fn is batch_norm and order:
                how = {"data_format": order, **how}
            outputs = self.normalizer_fn(outputs, **how)
        elif self.biases_initializer is not None:
            biases = _variable(
                "biases",
                [size],
                outputs.dtype.base_dtype,
                self.biases_initializer,
                self.biases_regularizer,
                self.trainable,
                self.variables_collections,
            )
            if order:
                outputs = v1.nn.bias_add(outputs, biases, data_format=order)
            else:
                outputs = outputs + biases
        if self.activation_fn is not None:
            outputs = self.activation_fn(outputs)
        return _collected(outputs, self.outputs_collections)


@add_arg_scope
def fully_connected(inputs: Any, num_outputs: int, *common: Any, **named: Any) -> Any:
    """Return activation(inputs · weights + biases), over the last dimension of `inputs`.

    common, named: as in _WithWeights. With `normalizer_fn` the layer has no biases. ValueError if
    the last dimension is unknown.
    """
    how = _WithWeights(*common, **named)
    inputs = v1.convert_to_tensor(inputs)
    features = _known(inputs, -1)
    with how.within("fully_connected", inputs):
        weights = how.weights(inputs, [features, num_outputs])
        outputs = v1.tensordot(inputs, weights, [[len(inputs.shape) - 1], [0]])
        outputs.set_shape([*inputs.shape.as_list()[:-1], num_outputs])
        return how.finished(outputs, num_outputs)


relu = functools.partial(fully_connected, activation_fn=v1.nn.relu)
linear = functools.partial(fully_connected, activation_fn=None)


@add_arg_scope
def conv2d(
    inputs: Any,
    num_outputs: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    rate: Any = 1,
    *common: Any,
    **named: Any,
) -> Any:
    """Return activation(convolution + biases) of images.

    kernel_size, stride, rate: a number, or one for height and one for width. data_format: NHWC
    (as with None) or NCHW. common, named: as in _WithWeights.
    """
    how = _WithWeights(*common, **named)
    inputs = v1.convert_to_tensor(inputs)
    order = data_format or _LAST
    channels = _known(inputs, order.index("C"))
    with how.within("Conv", inputs):
        outputs = v1.nn.conv2d(
            inputs,
            how.weights(inputs, [*_pair(kernel_size), channels, num_outputs]),
            strides=_four(stride, order),
            padding=padding.upper(),
            data_format=order,
            dilations=_four(rate, order),
        )
        return how.finished(outputs, num_outputs, order)


convolution2d = conv2d


@add_arg_scope
def conv2d_transpose(
    inputs: Any,
    num_outputs: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str = _LAST,
    *common: Any,
    **named: Any,
) -> Any:
    """Return activation(transposed convolution + biases) of images, which grow by `stride`.

    common, named: as in _WithWeights.
    """
    how = _WithWeights(*common, **named)
    inputs = v1.convert_to_tensor(inputs)
    order = data_format
    channels = _known(inputs, order.index("C"))
    with how.within("Conv2d_transpose", inputs):
        size, steps, same = _pair(kernel_size), _pair(stride), padding.upper() == "SAME"
        shape, known = [v1.shape(inputs)[0], 0, 0, 0], inputs.shape.as_list()
        shape[order.index("C")] = known[order.index("C")] = num_outputs
        for axis, kernel, step in zip("HW", size, steps, strict=True):
            more = 0 if same else max(kernel - step, 0)
            at = order.index(axis)
            shape[at] = v1.shape(inputs)[at] * step + more
            known[at] = None if known[at] is None else known[at] * step + more
        outputs = v1.nn.conv2d_transpose(
            inputs,
            how.weights(inputs, [*size, num_outputs, channels]),
            output_shape=v1.stack(shape),
            strides=_four(stride, order),
            padding=padding.upper(),
            data_format=order,
        )
        outputs.set_shape(known)
        return how.finished(outputs, num_outputs, order)


def _pooling(name: str, pool: Function, default: str, doc: str) -> Function:
    """Return a layer that pools images. default: the name of its scope."""

    def layer(
        inputs: Any,
        kernel_size: Any,
        stride: Any = 2,
        padding: str = "VALID",
        data_format: str = _LAST,
        outputs_collections: Any = None,
        scope: Any = None,
    ) -> Any:
        with v1.name_scope(scope, default, [inputs]):
            outputs = pool(
                v1.convert_to_tensor(inputs),
                ksize=_four(kernel_size, data_format),
                strides=_four(stride, data_format),
                padding=padding.upper(),
                data_format=data_format,
            )
            return _collected(outputs, outputs_collections)

    layer.__name__, layer.__doc__ = name, doc
    return add_arg_scope(layer)


max_pool2d = _pooling(
    "max_pool2d", v1.nn.max_pool, "MaxPool2D", "Return the largest value of each window of images."
)
avg_pool2d = _pooling(
    "avg_pool2d", v1.nn.avg_pool, "AvgPool2D", "Return the mean of each window of images."
)


@add_arg_scope
def flatten(inputs: Any, outputs_collections: Any = None, scope: Any = None) -> Any:
    """Return each example as one row."""
    with v1.name_scope(scope, "Flatten", [inputs]):
        inputs = v1.convert_to_tensor(inputs)
        batch, *rest = inputs.shape.as_list()
        width = None if None in rest else math.prod(rest)
        outputs = v1.reshape(inputs, [v1.shape(inputs)[0], -1] if width is None else [-1, width])
        outputs.set_shape([batch, width])
        return _collected(outputs, outputs_collections)


@add_arg_scope
def dropout(
    inputs: Any,
    keep_prob: Any = 0.5,
    noise_shape: Any = None,
    is_training: Any = True,
    outputs_collections: Any = None,
    scope: Any = None,
    seed: int | None = None,
) -> Any:
    """Return inputs of which each is kept with the probability `keep_prob`, and scaled, or is 0.

    is_training: whether to do so; a bool or a bool tensor.
    """
    with v1.name_scope(scope, "Dropout", [inputs]):
        inputs = v1.convert_to_tensor(inputs)
        outputs = _if(
            is_training,
            lambda: v1.nn.dropout(inputs, rate=1 - keep_prob, noise_shape=noise_shape, seed=seed),
            lambda: v1.identity(inputs),
        )
        return _collected(outputs, outputs_collections)


@add_arg_scope
def batch_norm(
    inputs: Any,
    decay: float = 0.999,
    center: bool = True,
    scale: bool = False,
    epsilon: float = 0.001,
    activation_fn: Function | None = None,
    param_initializers: Mapping[str, Any] | None = None,
    param_regularizers: Mapping[str, Any] | None = None,
    updates_collections: Any = v1.GraphKeys.UPDATE_OPS,
    is_training: Any = True,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    batch_weights: Any = None,
    fused: bool | None = None,
    data_format: str = _LAST,
    zero_debias_moving_mean: bool = False,
    scope: Any = None,
    renorm: bool = False,
    renorm_clipping: Any = None,
    renorm_decay: float = 0.99,
    adjustment: Any = None,
) -> Any:
    """Return inputs normalized over all dimensions but that of the channels (Ioffe, Szegedy 2015).

    is_training, a bool or a bool tensor: by the batch, else by the moving averages. These move by
    operations in `updates_collections`, which the training step has to depend on; with None they
    move with the layer itself. `fused` changes nothing. batch_weights, renorm, adjustment and
    zero_debias_moving_mean are a ValueError.
    """
    if batch_weights is not None or renorm or adjustment or zero_debias_moving_mean:
        raise ValueError(
            "shanty's stand-in for batch_norm has no batch_weights, renorm, adjustment and "
            "zero_debias_moving_mean"
        )
    inputs = v1.convert_to_tensor(inputs)
    axis = 1 if data_format == _FIRST else len(inputs.shape) - 1
    channels = _known(inputs, axis)
    others = [each for each in range(len(inputs.shape)) if each != axis]
    initial, regular = param_initializers or {}, param_regularizers or {}
    dtype = v1.float32 if inputs.dtype.base_dtype.size < 4 else inputs.dtype.base_dtype
    with v1.variable_scope(scope, "BatchNorm", [inputs], reuse=reuse):

        def of_channels(name: str, start: Any, learned: bool, kind: str = "") -> Any:
            return _variable(
                name, [channels], dtype, initial.get(name, start), regular.get(name),
                learned and trainable, variables_collections, kind,
            )  # fmt: skip

        zeros, ones = v1.zeros_initializer(), v1.ones_initializer()
        beta = of_channels("beta", zeros, True) if center else None
        gamma = of_channels("gamma", ones, True) if scale else None
        moving_mean = of_channels("moving_mean", zeros, False, "MOVING_AVERAGE_VARIABLES")
        moving_variance = of_channels("moving_variance", ones, False, "MOVING_AVERAGE_VARIABLES")
        mean, variance = _if(
            is_training,
            lambda: tuple(v1.nn.moments(v1.cast(inputs, dtype), others)),
            lambda: (v1.identity(moving_mean), v1.identity(moving_variance)),
        )
        if is_training is not False:
            by = v1.cast(is_training, dtype) * (1 - decay)  # at 0 they stay
            moves = [
                v1.assign_sub(moving, (moving - now) * by)
                for moving, now in ((moving_mean, mean), (moving_variance, variance))
            ]
            if updates_collections is None:
                with v1.control_dependencies(moves):
                    mean, variance = v1.identity(mean), v1.identity(variance)
            for move in moves if updates_collections is not None else ():
                v1.add_to_collections(updates_collections, move)
        shape = [channels if each == axis else 1 for each in range(len(inputs.shape))]
        mean, variance, beta, gamma = (
            each if each is None else v1.reshape(each, shape)
            for each in (mean, variance, beta, gamma)
        )
        outputs = v1.nn.batch_normalization(
            v1.cast(inputs, dtype), mean, variance, beta, gamma, epsilon
        )
        outputs = v1.cast(outputs, inputs.dtype.base_dtype)
        outputs.set_shape(inputs.shape)
        if activation_fn is not None:
            outputs = activation_fn(outputs)
        return _collected(outputs, outputs_collections)


@add_arg_scope
def one_hot_encoding(
    labels: Any,
    num_classes: int,
    on_value: float = 1.0,
    off_value: float = 0.0,
    outputs_collections: Any = None,
    scope: Any = None,
) -> Any:
    """Return a row of `num_classes` for each label, with `on_value` at its place."""
    with v1.name_scope(scope, "OneHotEncoding", [labels]):
        labels = v1.cast(v1.convert_to_tensor(labels), v1.int64)
        outputs = v1.one_hot(labels, num_classes, on_value=on_value, off_value=off_value)
        return _collected(outputs, outputs_collections)


# ----------------------------------------------------------------------- what they have in common


def _known(inputs: Any, axis: int) -> int:
    """The size of a dimension of `inputs`; ValueError where it is not known before it runs."""
    size = inputs.shape.as_list()[axis]
    if size is None:
        raise ValueError(f"dimension {axis} of the inputs {inputs.shape} should be known")
    return int(size)


def _pair(size: Any) -> list[int]:
    return [size, size] if isinstance(size, int) else [int(each) for each in size]


def _four(size: Any, order: str) -> list[int]:
    """Height and width at their places in a shape of four dimensions, and ones."""
    height, width = _pair(size)
    return [{"H": height, "W": width}.get(each, 1) for each in order]


def _variable(
    name: str,
    shape: list[int],
    dtype: Any,
    initializer: Any,
    regularizer: Function | None,
    trainable: bool,
    collections: Any,
    kind: str = "",
) -> Any:
    """A variable in the current scope; `collections`: a list, or lists by the variables' names."""
    more = collections.get(name) if isinstance(collections, Mapping) else collections
    kinds = [getattr(v1.GraphKeys, kind)] if kind else []
    return v1.get_variable(
        name,
        shape,
        dtype,
        initializer,
        regularizer=regularizer,
        trainable=trainable,
        collections=[v1.GraphKeys.GLOBAL_VARIABLES, *kinds, *_names(more)],
    )


def _names(collections: Any) -> list[Any]:
    if collections is None:
        return []
    return [collections] if isinstance(collections, str) else list(collections)


def _if(wanted: Any, then: Function, otherwise: Function) -> Any:
    """What one of the two returns: decided now by a bool, or at each step by a bool tensor."""
    if isinstance(wanted, v1.Tensor):
        return v1.cond(v1.cast(wanted, v1.bool), then, otherwise)
    return then() if wanted else otherwise()


def _collected(outputs: Any, collections: Any) -> Any:
    """Put the outputs into collections, and return them."""
    for each in _names(collections):
        v1.add_to_collection(each, outputs)
    return outputs
