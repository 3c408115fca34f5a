"""Files of MNIST's format with images that a small network learns in a few steps."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Part(NamedTuple):
    """Images of 28 by 28 bytes, and their labels."""

    images: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]


def write_mnist(folder: Path, train: int, test: int) -> tuple[Part, Part]:
    """Write so many images and labels, as four files; an image has a line at its label's height."""
    random = np.random.RandomState(0)
    parts = []
    for name, count in (("train", train), ("t10k", test)):
        labels = random.randint(0, 10, count).astype(np.uint8)
        images = random.randint(0, 60, (count, 28, 28)).astype(np.uint8)
        images[np.arange(count), 2 * labels + 4] = 250
        _write(folder / f"{name}-images-idx3-ubyte.gz", images)
        _write(folder / f"{name}-labels-idx1-ubyte.gz", labels)
        parts.append(Part(images, labels))
    return parts[0], parts[1]


def _write(path: Path, values: np.ndarray[Any, Any]) -> None:
    sizes = np.array(values.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()))
