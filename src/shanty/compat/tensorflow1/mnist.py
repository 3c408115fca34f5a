"""Reads MNIST as the tutorials of TensorFlow 1 did, from a folder; nothing is downloaded.

It is `tensorflow.examples.tutorials.mnist.input_data` and `tf.contrib.learn.datasets.mnist`. The
page of the data set describes the format (Y. LeCun, C. Cortes, C. Burges).
"""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_CLASSES = 10


class DataSet:
    """Images and labels, from which batches are taken."""

    def __init__(self, images: Array, labels: Array, seed: int | None = None) -> None:
        self.images = images
        self.labels = labels
        self.num_examples = len(images)
        self.epochs_completed = 0
        self._random: Any = np.random if seed is None else np.random.RandomState(seed)
        self._order: Array = np.arange(self.num_examples)
        self._at = 0

    def next_batch(
        self, batch_size: int, fake_data: bool = False, shuffle: bool = True
    ) -> tuple[Array, Array]:
        """Return the next images and labels; a new epoch begins where one ends within them."""
        if fake_data:
            raise ValueError("fake_data is not supported")
        if self._at == 0 and self.epochs_completed == 0 and shuffle:
            self._random.shuffle(self._order)
        chosen = self._order[self._at : self._at + batch_size]
        self._at += batch_size
        if self._at > self.num_examples:
            self.epochs_completed += 1
            self._at -= self.num_examples
            if shuffle:
                self._order = self._order.copy()
                self._random.shuffle(self._order)
            chosen = np.concatenate([chosen, self._order[: self._at]])
        return self.images[chosen], self.labels[chosen]


class Datasets(NamedTuple):
    """The three parts."""

    train: DataSet
    validation: DataSet
    test: DataSet


def read_data_sets(
    train_dir: str,
    fake_data: bool = False,
    one_hot: bool = False,
    dtype: Any = np.float32,
    reshape: bool = True,
    validation_size: int = 5000,
    seed: int | None = None,
    source_url: str = "",
) -> Datasets:
    """Read the four files of MNIST in a folder, packed by gzip or not.

    Images are rows of 784 values, with reshape=False 28 rows of 28 pixels of one value. They are
    from 0 to 1; with a `dtype` of uint8 they are as in the files. FileNotFoundError names the
    files that have to be there.
    """
    if fake_data:
        raise ValueError("fake_data is not supported")
    kind = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    parts = {}
    for part, (images_file, labels_file) in _FILES.items():
        images = _read(Path(train_dir), images_file)
        labels = _read(Path(train_dir), labels_file)
        images = images.reshape(len(images), -1) if reshape else images[..., np.newaxis]
        if kind != np.uint8:
            images = images.astype(kind) / kind.type(255)
        parts[part] = images, np.eye(_CLASSES)[labels] if one_hot else labels
    images, labels = parts["train"]
    if not 0 <= validation_size <= len(images):
        raise ValueError(f"Validation size should be between 0 and {len(images)}")
    return Datasets(
        DataSet(images[validation_size:], labels[validation_size:], seed),
        DataSet(images[:validation_size], labels[:validation_size], seed),
        DataSet(*parts["test"], seed),
    )


def load_mnist(train_dir: str = "MNIST-data") -> Datasets:
    """Read them as `read_data_sets` does by default."""
    return read_data_sets(train_dir)


def _read(folder: Path, name: str) -> Array:
    for path, opened in ((folder / f"{name}.gz", gzip.open), (folder / name, open)):
        if path.exists():
            with opened(path, "rb") as file:
                return _decode(file.read(), path)
    wanted = ", ".join(f"{each}.gz" for files in _FILES.values() for each in files)
    raise FileNotFoundError(
        f"{folder / name}.gz not found, and shanty's stand-in for TensorFlow 1 downloads nothing: "
        f"put MNIST's four files into {folder}: {wanted}"
    )


def _decode(data: bytes, path: Path) -> Array:
    """Read IDX: two zeros, the type (8: bytes), the number of dimensions, their sizes, values."""
    if data[:3] != b"\0\0\x08" or len(data) < 4:
        raise ValueError(f"{path} is not in MNIST's format")
    sizes = np.frombuffer(data, ">u4", data[3], offset=4).tolist()
    start = 4 + 4 * data[3]
    if len(data) != start + math.prod(sizes):
        raise ValueError(
            f"{path} is incomplete: its header gives {sizes}, and it has {len(data)} bytes"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(sizes)
