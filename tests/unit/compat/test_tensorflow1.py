"""What of TensorFlow 1 needs no TensorFlow: HParams, and the files of MNIST."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from mnist_files import write_mnist
from shanty.compat.tensorflow1 import mnist
from shanty.compat.tensorflow1.hparams import HParams


def test_hparams_are_changed_by_a_text() -> None:
    params = HParams(rate=0.1, layers=2, sizes=[1, 2], on=True, name="adam", odd=None)
    text = "rate=1e-3, layers=3,sizes=[4,5,6],on=false,name=a-b.c,sizes[1]=7"
    assert params.parse(text) is params
    assert params.values() == {
        "rate": 1e-3, "layers": 3, "sizes": [4, 7, 6], "on": False, "name": "a-b.c", "odd": None,
    }  # fmt: skip
    assert type(params.parse("rate=1").rate) is float
    assert params.parse_json('{"layers": 5}').layers == params.get("layers") == 5
    assert params.get("none", 3) == 3
    assert "rate" in params
    assert "rat" not in params
    params.del_hparam("rate")
    assert "rate" not in params
    assert params.to_json(sort_keys=True).startswith('{"layers": 5, "name"')


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("other=1", KeyError),
        ("layers=1.5", ValueError),
        ("layers=[1]", ValueError),
        ("on=maybe", ValueError),
        ("rate", ValueError),
        ("rate=a", ValueError),
        ("layers[0]=1", ValueError),
    ],
)
def test_hparams_that_are_refused(text: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        HParams(rate=0.1, layers=2, on=True).parse(text)


def test_hparams_names() -> None:
    params = HParams(a=1)
    for name in ("a", "values"):
        with pytest.raises(ValueError, match="reserved"):
            params.add_hparam(name, 1)
    with pytest.raises(ValueError, match="must be a single value"):
        params.set_hparam("a", [1])
    with pytest.raises(ValueError, match="cannot be converted to it"):
        params.set_hparam("a", True)
    assert str(params.override_from_dict({"a": 2})) == "[('a', 2)]"


def test_mnist_from_a_folder(tmp_path: Path) -> None:
    train, test = write_mnist(tmp_path, 60, 20)
    data = mnist.read_data_sets(str(tmp_path), one_hot=True, validation_size=10)
    assert [part.num_examples for part in data] == [50, 10, 20]
    assert data.train.images.shape == (50, 784)
    assert data.train.images.dtype == np.float32
    assert data.train.images.max() <= 1
    np.testing.assert_array_equal(data.validation.labels.argmax(1), train.labels[:10])
    whole = mnist.read_data_sets(str(tmp_path), dtype=np.uint8, reshape=False, validation_size=0)
    np.testing.assert_array_equal(whole.test.images[..., 0], test.images)
    np.testing.assert_array_equal(whole.test.labels, test.labels)
    with pytest.raises(ValueError, match="between 0 and 60"):
        mnist.read_data_sets(str(tmp_path))


def test_batches_have_each_example_once_an_epoch(tmp_path: Path) -> None:
    images = np.arange(10)
    data = mnist.DataSet(images, images + 100, seed=1)
    taken = [data.next_batch(4) for _ in range(5)]
    values = np.concatenate([each for each, _ in taken])
    assert all((labels == each + 100).all() for each, labels in taken)
    assert sorted(values[:10]) == sorted(values[10:]) == list(range(10))
    assert list(values[:10]) != list(range(10))
    assert data.epochs_completed == 1
    in_order = mnist.DataSet(images, images)
    assert [in_order.next_batch(6, shuffle=False)[0].tolist() for _ in range(2)] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9, 0, 1],
    ]


def test_files_that_are_not_there_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"put MNIST's four files into .*t10k-images"):
        mnist.read_data_sets(str(tmp_path))
    write_mnist(tmp_path, 10, 10)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    data = gzip.decompress(path.read_bytes())
    path.unlink()
    plain = path.with_suffix("")
    plain.write_bytes(data)
    assert mnist.read_data_sets(str(tmp_path), validation_size=0).train.num_examples == 10
    plain.write_bytes(data[:-1])
    with pytest.raises(ValueError, match="incomplete"):
        mnist.read_data_sets(str(tmp_path))
    plain.write_bytes(b"<html>")
    with pytest.raises(ValueError, match="not in MNIST's format"):
        mnist.read_data_sets(str(tmp_path))
