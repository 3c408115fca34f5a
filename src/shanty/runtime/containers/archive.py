"""Reads and writes archives of images, as `docker save` makes them and `docker load` takes them.

A layer is named by the SHA-256 of its tar, which is the same in every engine; it is kept and sent
compressed, as gzip members one after the other (RFC 1952), so several cores can make them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, Callable, Deque, Dict, Iterable, Iterator, List, NamedTuple, Sequence

from shanty.runtime.errors import PrepareError

BLOCK = 1 << 20
_LEVEL = 1  # of gzip: images are large, and the wire is seldom slower than this
_SMALL = 4 << 20  # bytes of what may be a description; all that is larger is a layer
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_EPOCH = 0  # the same archive each time


class Layer(NamedTuple):
    """A layer: the SHA-256 of its tar in hexadecimal digits, and the tar's length in bytes."""

    digest: str
    size: int


def compressed(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks as gzip members, in their order; all cores work on them."""
    workers = os.cpu_count() or 1
    waiting: Deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for block in blocks:
            waiting.append(pool.submit(gzip.compress, block, _LEVEL))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def inflated(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """What gzip members hold; EOFError where the last one is not whole, zlib.error for damage."""
    engine, begun = zlib.decompressobj(31), False
    for block in blocks:
        rest = block
        while rest:
            begun = True
            data = engine.decompress(rest)
            if data:
                yield data
            rest = engine.unused_data
            if engine.eof:
                engine, begun = zlib.decompressobj(31), False
    if begun:
        raise EOFError("the end of it is missing")


def pieces(file: Any, size: int = BLOCK) -> Iterator[bytes]:
    """A file in blocks."""
    return iter(lambda: file.read(size), b"")


class Reader:
    """A stream of blocks that is read as a file."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._rest = b""

    def read(self, size: int = BLOCK) -> bytes:
        """Up to `size` bytes, fewer at the end only."""
        found, length = [self._rest], len(self._rest)
        while length < size and (block := next(self._blocks, b"")):
            found.append(block)
            length += len(block)
        data = b"".join(found)
        self._rest = data[size:]
        return data[:size]


# ------------------------------------------------------------------------------------ reading


def split(stream: Any, take: Callable[[str, Iterator[bytes]], None]) -> bytes:
    """Read an archive of one image: `take` gets each file that may be a layer; the description.

    `take` gets the file's name, and the content as blocks of the plain tar, which it need not
    read. PrepareError for anything that is not such an archive.
    """
    small: Dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                source = archive.extractfile(member) if member.isreg() else None
                if source is None:
                    continue
                head = source.read(_SMALL)
                whole = len(head) == member.size
                if whole and head.lstrip()[:1] in (b"{", b"["):
                    small[member.name] = head
                else:
                    take(member.name, _plain(head, source))
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        raise PrepareError("the engine's archive of the image is damaged", str(error)) from error
    try:
        return small[json.loads(small["manifest.json"])[0]["Config"]]
    except (LookupError, TypeError, ValueError) as error:
        what = "the engine's archive of the image does not say what the image is"
        raise PrepareError(what, f"{type(error).__name__}: {error}") from error


def _plain(head: bytes, source: IO[bytes]) -> Iterator[bytes]:
    """The blocks of a layer's tar, which an engine may have compressed."""
    if head.startswith(_ZSTD):
        raise PrepareError(
            "a layer of the image is compressed by zstd",
            "shanty reads layers that are plain or gzip",
            "have the hosts pull the image, or build it with gzip layers",
        )
    blocks = _joined(head, source)
    return inflated(blocks) if head.startswith(_GZIP) else blocks


def _joined(head: bytes, source: IO[bytes]) -> Iterator[bytes]:
    for start in range(0, len(head), BLOCK):
        yield head[start : start + BLOCK]
    yield from pieces(source)


def layers_of(config: bytes) -> List[str]:
    """The digests of an image's layers, the lowest first, by its description."""
    try:
        found = [str(one) for one in json.loads(config)["rootfs"]["diff_ids"]]
    except (LookupError, TypeError, ValueError) as error:
        what = "the description of the image has no layers"
        raise PrepareError(what, f"{type(error).__name__}: {error}") from error
    return [plain_digest(one) for one in found]


def plain_digest(digest: str) -> str:
    """A digest without the name of its algorithm."""
    return digest.rpartition(":")[2]


# ------------------------------------------------------------------------------------ writing


def write(
    config: bytes,
    layers: Sequence[Layer],
    contents: Callable[[str], Iterable[bytes]],
    sink: Any,
) -> None:
    """Write the archive of an image to `sink`: its description, its layers, the lowest first.

    `contents` gives the plain tar of a layer, in blocks.
    """
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    files = [f"{layer.digest}.tar" for layer in layers]
    entry = {"Config": name, "RepoTags": None, "Layers": files}
    written = set()
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        for layer, file in zip(layers, files):
            if file not in written:  # an image may have one twice
                written.add(file)
                archive.addfile(_member(file, layer.size), Reader(contents(layer.digest)))
        for file, data in ((name, config), ("manifest.json", json.dumps([entry]).encode())):
            archive.addfile(_member(file, len(data)), io.BytesIO(data))


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, _EPOCH, 0o644
    return member
