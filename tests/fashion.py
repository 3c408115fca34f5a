"""Fashion-MNIST as text for XGBoost: real rows, small enough to train on in a second.

Debian's package dataset-fashion-mnist has it. Each image is 7 by 7 means of 4 by 4 pixels, and the
label says whether it is a shirt, which is the hardest of its ten kinds to tell.
"""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

FOLDER = Path("/usr/share/datasets/fashion-mnist")
TRAIN, TEST = 6_000, 10_000  # rows
_SHIRT = 6

Images = NDArray[np.uint8]  # (rows, 49)
Labels = NDArray[np.uint8]  # (rows,), 0 or 1
Row = tuple[float, tuple[tuple[int, float], ...]]  # label; column and value of what is not 0


def load(part: str, rows: int) -> tuple[Images, Labels]:
    """The first rows of "train" or "t10k"; skips the test where the data is not there."""
    if not FOLDER.is_dir():
        pytest.skip(f"needs {FOLDER}, which Debian's dataset-fashion-mnist has")
    with gzip.open(FOLDER / f"{part}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(16 + rows * 784), np.uint8, offset=16)
    with gzip.open(FOLDER / f"{part}-labels-idx1-ubyte.gz") as file:
        kinds = np.frombuffer(file.read(8 + rows), np.uint8, offset=8)
    means = pixels.reshape(rows, 7, 4, 7, 4).mean((2, 4)).round()
    return means.reshape(rows, 49).astype(np.uint8), (kinds == _SHIRT).astype(np.uint8)


def write(folder: Path) -> None:
    """Make train.libsvm and test.libsvm in the folder."""
    for name, part, rows in (("train", "train", TRAIN), ("test", "t10k", TEST)):
        images, labels = load(part, rows)
        with (folder / f"{name}.libsvm").open("w") as file:
            for image, label in zip(images, labels, strict=True):
                words = [f"{column}:{value}" for column, value in enumerate(image) if value]
                file.write(" ".join([str(label), *words]) + "\n")


def rows_of(text: str) -> Counter[Row]:
    """The rows of a LibSVM text, with how often each is there; zeros are as if not written."""
    found: Counter[Row] = Counter()
    for line in text.splitlines():
        label, *words = line.split()
        pairs = (word.split(":") for word in words)
        values = tuple((int(column), float(value)) for column, value in pairs if float(value))
        found[float(label), values] += 1
    return found
