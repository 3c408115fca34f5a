"""Archives of images: what is written is read again, and damage is an error with words."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.runtime.containers import archive
from shanty.runtime.containers.archive import Layer, compressed, inflated, layers_of
from shanty.runtime.errors import PrepareError

CONTENTS = st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=5)


def parts_of(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    """The bytes in pieces of these sizes, over and over."""
    at = 0
    while at < len(data):
        size = sizes[0]
        sizes = [*sizes[1:], size]
        yield data[at : at + size]
        at += size


@given(CONTENTS, st.lists(st.integers(1, 700), min_size=1, max_size=4))
def test_what_is_compressed_is_the_same_again_however_it_is_cut(
    blocks: list[bytes], sizes: list[int]
) -> None:
    packed = b"".join(compressed(blocks))
    assert b"".join(inflated(parts_of(packed, sizes))) == b"".join(blocks)
    assert gzip.decompress(packed) == b"".join(blocks)


@given(CONTENTS, st.data())
def test_an_end_that_is_missing_is_seen(blocks: list[bytes], data: st.DataObject) -> None:
    members = [gzip.compress(block) for block in blocks]
    cut = data.draw(st.integers(1, len(members[-1]) - 1))
    with pytest.raises(EOFError):
        list(inflated([b"".join(members[:-1]) + members[-1][:cut]]))


def test_damage_is_seen() -> None:
    packed = bytearray(gzip.compress(b"x" * 100_000))
    packed[len(packed) // 2] ^= 0xFF
    with pytest.raises(zlib.error):
        list(inflated([bytes(packed)]))


@given(CONTENTS, st.lists(st.integers(0, 5000), max_size=20))
def test_a_reader_gives_what_it_is_asked_for(blocks: list[bytes], sizes: list[int]) -> None:
    whole = b"".join(blocks)
    reader = archive.Reader(blocks)
    got = b""
    for size in sizes:
        piece = reader.read(size)
        assert len(piece) == min(size, len(whole) - len(got))
        got += piece
    assert got + reader.read(len(whole)) == whole


def image(contents: list[bytes]) -> tuple[bytes, list[Layer]]:
    """The description of an image of these layers."""
    layers = [Layer(hashlib.sha256(each).hexdigest(), len(each)) for each in contents]
    digests = [f"sha256:{layer.digest}" for layer in layers]
    return json.dumps({"rootfs": {"type": "layers", "diff_ids": digests}}).encode(), layers


def written(contents: list[bytes]) -> tuple[bytes, bytes]:
    config, layers = image(contents)
    by_digest = {layer.digest: data for layer, data in zip(layers, contents, strict=True)}
    sink = io.BytesIO()
    archive.write(config, layers, lambda digest: [by_digest[digest]], sink)
    return config, sink.getvalue()


@given(st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=5))
def test_an_archive_is_read_as_it_was_written(contents: list[bytes]) -> None:
    contents = [b"layer " + each for each in contents]
    config, data = written(contents)
    found: list[bytes] = []
    assert archive.split(io.BytesIO(data), lambda _, b: found.append(b"".join(b))) == config
    assert found == list(dict.fromkeys(contents))  # one that an image has twice is written once
    assert layers_of(config) == [hashlib.sha256(each).hexdigest() for each in contents]
    assert written(contents)[1] == data


def oci(layer: bytes, *, name: str = "blobs/sha256/" + 64 * "1") -> bytes:
    """An archive as docker writes it where containerd keeps the images."""
    sink = io.BytesIO()
    config = b'{"rootfs": {"diff_ids": ["sha256:1"]}}'
    manifest = json.dumps([{"Config": "blobs/sha256/0", "Layers": [name]}]).encode()
    files = {"oci-layout": b"{}", name: layer, "blobs/sha256/0": config, "manifest.json": manifest}
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return sink.getvalue()


@pytest.mark.parametrize("size", [10, archive._SMALL + 7], ids=["small", "large"])
def test_layers_that_the_engine_has_compressed_are_read_plain(size: int) -> None:
    plain = bytes(range(256)) * (size // 256 + 1)
    found: list[bytes] = []
    stream = io.BytesIO(oci(gzip.compress(plain, 0)))
    assert b"rootfs" in archive.split(stream, lambda _, b: found.append(b"".join(b)))
    assert found == [plain]


def test_a_layer_that_cannot_be_read_is_named() -> None:
    def take(_name: str, blocks: Iterator[bytes]) -> None:
        list(blocks)

    with pytest.raises(PrepareError, match="zstd"):
        archive.split(io.BytesIO(oci(b"\x28\xb5\x2f\xfd and more")), take)


@given(st.data())
def test_no_damage_is_more_than_an_error(data: st.DataObject) -> None:
    """Cut short or changed anywhere, an archive is read or refused; nothing else is raised."""
    whole = bytearray(written([b"layer one", b"layer two"])[1])
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole = whole[:at]
    else:
        whole[at] ^= data.draw(st.integers(1, 255))
    try:
        archive.split(io.BytesIO(bytes(whole)), lambda _, blocks: list(blocks) and None)
    except PrepareError as error:
        assert "the engine's archive" in error.what


@pytest.mark.parametrize("config", [b"", b"{}", b"[]", b'{"rootfs": 1}', b"\xff"])
def test_a_description_without_layers_is_refused(config: bytes) -> None:
    with pytest.raises(PrepareError, match="has no layers"):
        layers_of(config)


def test_a_very_large_layer_has_its_size(tmp_path: Path) -> None:
    """More than the eight gigabytes that the oldest form of a tar can say."""
    member = archive._member("x.tar", 9 << 30)
    assert tarfile.TarInfo.frombuf(member.tobuf(tarfile.GNU_FORMAT), "utf-8", "").size == 9 << 30
