"""Layers of images on a host: kept in the store, taken from an engine, handed to one.

An item `layers` of the store is a layer of any image, named by the SHA-256 of its tar; an item
`images` is an image file for apptainer, named by what it was made of. So an image costs what is
new in it, and an engine gets it as an archive that is put together while it reads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import subprocess
import tempfile
import time
import zlib
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from shanty.runtime import stored_tree
from shanty.runtime.containers import archive
from shanty.runtime.containers.archive import Layer, layers_of, plain_digest
from shanty.runtime.containers.engine_errors import explained, last_line
from shanty.runtime.containers.engines import ENGINES
from shanty.runtime.errors import PrepareError
from shanty.runtime.programs import run
from shanty.runtime.rpc import Ask, Data, Say, seldom
from shanty.runtime.rpc.images import content_hash, layers_named, look
from shanty.runtime.rpc.store import home, kept_file, machine, mark_used, place_of, placing

_FILE, _SIZE = "layer.tar.gz", "size"
IMAGE_FILE = "image.sif"  # the name of an image file in the store
_REPORT = 0.5  # seconds between two words on how far it is
_LIMIT = 7200.0  # seconds for an engine to make an image of what it was given
# Seconds for it to give or take a byte; docker writes a whole image to its disk before the first.
_STALLED = 1800.0
_LAST = 60.0  # seconds for an engine to end once it has all of it, or nothing more
_COMPLAINTS = 64 << 10


# -------------------------------------------------------------------------------- the store


def kept(digest: str) -> Optional[Layer]:
    """The layer of that digest, if the store has it; it counts as used today."""
    folder = place_of("layers", digest)
    try:
        with open(os.path.join(folder, _SIZE), encoding="ascii") as file:
            size = int(file.read())
    except (OSError, ValueError):
        return None
    return Layer(digest, size) if mark_used(folder) and not stored_tree.damage(folder) else None


def path_of(digest: str) -> str:
    """The file of a layer that the store has, compressed."""
    return os.path.join(place_of("layers", digest), _FILE)


def content(digest: str) -> Iterator[bytes]:
    """The plain tar of a layer, in blocks; PrepareError for a damaged layer, which is removed."""
    try:
        with open(path_of(digest), "rb") as file:
            yield from archive.inflated(archive.pieces(file))
    except (EOFError, zlib.error) as error:
        stored_tree.remove(place_of("layers", digest))
        what = f"a layer of the image was damaged here ({path_of(digest)})"
        raise PrepareError(
            what, str(error), "run the command again, which sends it again"
        ) from error


def keep(blocks: Iterable[bytes]) -> Layer:
    """Keep a layer, of its plain tar in blocks."""
    digest, size = hashlib.sha256(), 0

    def counted() -> Iterator[bytes]:
        nonlocal size
        for block in blocks:
            digest.update(block)
            size += len(block)
            yield block

    parent = os.path.dirname(place_of("layers", "0" * 64))
    os.makedirs(parent, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=".layer-", dir=parent)
    try:
        with open(handle, "wb") as file:
            for part in archive.compressed(counted()):
                file.write(part)
        layer = Layer(digest.hexdigest(), size)
        with placing(place_of("layers", layer.digest)) as folder:
            os.rename(draft, os.path.join(folder, _FILE))
            _finish(folder, layer)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
    return layer


def _finish(folder: str, layer: Layer) -> None:
    os.chmod(os.path.join(folder, _FILE), 0o644)
    with open(os.path.join(folder, _SIZE), "w", encoding="ascii") as file:
        file.write(str(layer.size))
    stored_tree.note(folder)


def layer_put(ask: Ask, data: Data, _say: Say) -> Dict[str, Any]:
    """Keep the layer `hash` that follows, compressed; it has to be that one."""
    wanted = str(ask["hash"])
    with placing(place_of("layers", wanted)) as folder:
        digest, size = hashlib.sha256(), 0
        with open(os.path.join(folder, _FILE), "xb") as file:

            def arriving() -> Iterator[bytes]:
                for block in archive.pieces(data):
                    file.write(block)
                    yield block

            try:
                for block in archive.inflated(arriving()):
                    digest.update(block)
                    size += len(block)
                found = digest.hexdigest()
                why = "" if found == wanted else f"its SHA-256 is {found[:12]}, not {wanted[:12]}"
            except (EOFError, zlib.error) as error:
                why = str(error)
        if why:
            what = "a layer of the image did not arrive as a whole"
            raise PrepareError(what, why, "run the command again")
        _finish(folder, Layer(wanted, size))
    return {}


# ------------------------------------------------------------------------------ from an engine


def read_layers(engine: str, program: str, image: str, wanted: Sequence[str], say: Say) -> bytes:
    """Keep those layers of an engine's image that are `wanted`; the image's description.

    `say` gets the number of bytes that were read.
    """
    lacking = set(wanted)
    # What an engine names by its content need not be read to know that it is not wanted.
    there = look(engine, program, image).image or {"layers": []}
    known = set(there["layers"]) - lacking
    read, say = 0, seldom(say, _REPORT)

    def counted(blocks: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal read
        for block in blocks:
            read += len(block)
            say({"done": read})
            yield block

    def take(name: str, blocks: Iterator[bytes]) -> None:
        stem = os.path.basename(name)
        if lacking and (stem[:-4] if stem.endswith(".tar") else stem) not in known:
            lacking.discard(keep(counted(blocks)).digest)

    form = [] if engine == "docker" else ["--format", "docker-archive"]
    with _Engine([program, "save", *form, image]) as saving:
        try:
            config = archive.split(saving, take)
        except PrepareError as error:
            if saving.stalled:
                raise
            saving.stop()
            said = saving.said()
            raise _failure(f"{image} cannot be read", said) if said else error from None
    if lacking:
        raise PrepareError(
            f"{image} cannot be read",
            f"{ENGINES[engine].title} did not provide layer {min(lacking)[:12]}",
            "pull the image again",
        )
    return config


class _Engine:
    """A command of an engine that reads or writes an archive; ended with the block.

    It is given up when nothing goes through its pipe for a long time: then it is `stalled`.
    """

    def __init__(
        self, words: Sequence[str], *, reads: bool = False, environ: Optional[Dict[str, str]] = None
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by __exit__
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(
            words, stdin=pipe if reads else nothing,
            stdout=self._errors if reads else pipe, stderr=self._errors, env=environ,
        )  # fmt: skip
        end = self._process.stdin if reads else self._process.stdout
        assert end is not None
        self._end = end
        self._command = " ".join(words[:2])
        self.stalled = False
        os.set_blocking(self._end.fileno(), False)

    def __enter__(self) -> _Engine:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
        self._errors.close()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes of what it writes; none at the end."""
        self._wait_for(select.POLLIN)
        return os.read(self._end.fileno(), size)

    def write(self, data: bytes) -> int:
        """Write all of it, for the command to read."""
        rest = memoryview(data)
        while rest:
            self._wait_for(select.POLLOUT)
            rest = rest[os.write(self._end.fileno(), rest) :]
        return len(data)

    def _wait_for(self, event: int) -> None:
        poll = select.poll()
        poll.register(self._end.fileno(), event)
        self.stalled = self.stalled or not poll.poll(_STALLED * 1000)
        if self.stalled:
            raise PrepareError(
                f"{self._command} has stopped halfway",
                f"for {_STALLED:g} s it has neither given nor taken anything",
                "see whether the engine works at all; run the command again",
            )

    def stop(self) -> None:
        """End it: first by the end of its pipe, which leaves nothing half."""
        with contextlib.suppress(OSError):
            self._end.close()
        try:
            self._process.wait(_LAST)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def result(self, say: Callable[[], None]) -> int:
        """Its exit code, once it has read all."""
        with contextlib.suppress(OSError):
            self._end.close()
        until = time.monotonic() + _LIMIT
        while time.monotonic() < until:
            say()
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(_REPORT)
        self._process.kill()
        return self._process.wait()

    def said(self) -> str:
        """The last of what it said."""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - _COMPLAINTS))
        return self._errors.read().decode(errors="replace").strip()


def _failure(what: str, text: str) -> PrepareError:
    why, fix = explained(text)
    return PrepareError(what, why or last_line(text), fix)


# ----------------------------------------------------------------------------- what there is


def image_have(ask: Ask, _data: Data, say: Say) -> Dict[str, Any]:
    """Look for the image `id` (`layers`, `content`) in an engine (`engine`, `program`).

    `missing` are the layers that neither the store nor an image of the engine has; those of such
    images are kept in the store now, unless the image itself is there.
    """
    engine, program = str(ask["engine"]), str(ask["program"])
    layers = [str(one) for one in ask["layers"]]
    answer: Dict[str, Any] = {"image": None, "missing": [], "machine": machine()}
    if engine == "apptainer":
        answer["image"] = _image_file(plain_digest(ask["id"]))
        images: List[Dict[str, Any]] = []
    else:
        images = images_of(program)
        same = next((one for one in images if _is_same(one, ask)), None)
        if same is not None:
            answer["image"] = look(engine, program, same["Id"]).image
    if answer["image"] is None:
        missing = [one for one in dict.fromkeys(layers) if kept(one) is None]
        for image, some in _sources(images, missing):
            with contextlib.suppress(PrepareError):  # then they are sent
                read_layers(engine, program, image, some, say)
        answer["missing"] = [one for one in missing if kept(one) is None]
    return answer


def _is_same(image: Dict[str, Any], wanted: Ask) -> bool:
    """True for the same image; docker names it by another digest where containerd keeps it."""
    same = plain_digest(image["Id"]) == plain_digest(wanted["id"])
    return bool(same or content_hash(image) == wanted["content"])


def images_of(program: str, *filters: str) -> List[Dict[str, Any]]:
    """What docker or podman says of its images, of those that pass its filters."""
    words = [word for one in filters for word in ("--filter", one)]
    listed = run([program, "image", "ls", "--quiet", "--no-trunc", *words])
    ids = list(dict.fromkeys(listed.stdout.split())) if listed is not None else []
    seen = run([program, "image", "inspect", *ids]) if ids else None
    if seen is None or not seen.stdout.strip():
        return []
    try:
        return [one for one in json.loads(seen.stdout) if "Id" in one]
    except ValueError:
        return []


def _sources(
    images: Sequence[Dict[str, Any]], missing: Sequence[str]
) -> Iterator[Tuple[str, List[str]]]:
    """Images that have missing layers, the smallest first, and which of them each is to give."""
    left: Set[str] = set(missing)
    for image in sorted(images, key=lambda one: int(one.get("Size") or 0)):
        some = [one for one in layers_named(image) if one in left]
        if some:
            left -= set(some)
            yield str(image["Id"]), some


# ------------------------------------------------------------------------------- to an engine


def image_load(ask: Ask, data: Data, say: Say) -> Dict[str, Any]:
    """`engine program name id`: make an image of kept layers; its description follows as data.

    It gets the `name` if only an image that shanty sent has that name, or if `rename` is true.
    """
    engine, program, name = str(ask["engine"]), str(ask["program"]), str(ask["name"])
    config = data.read()
    layers = []
    for digest in layers_of(config):
        layer = kept(digest)
        if layer is None:
            what = "a layer of the image is gone"
            raise PrepareError(what, f"{digest[:12]} was here before", "run the command again")
        layers.append(layer)
    if engine == "apptainer":
        return {"image": _built(program, plain_digest(ask["id"]), config, layers, name, say)}
    said = _loaded(program, config, layers, name, say)
    image = hashlib.sha256(config).hexdigest()
    found = look(engine, program, image).image
    if found is None and "sha256:" in said:  # containerd's store names it by another digest
        found = look(engine, program, "sha256:" + said.rpartition("sha256:")[2].split()[0]).image
    if found is None:
        raise PrepareError(f"{name} was loaded but is not found", last_line(said))
    if ask.get("rename") or _is_ours(engine, program, name):
        run([program, "tag", found["id"], name])
        with open(_brought(engine, name), "w", encoding="utf-8") as file:
            file.write(found["id"])
    return {"image": found}


def _is_ours(engine: str, program: str, name: str) -> bool:
    """True where no image has this name, or an image that shanty sent: the name may be moved."""
    there = look(engine, program, name).image
    if there is None:
        return True
    with contextlib.suppress(OSError), open(_brought(engine, name), encoding="utf-8") as file:
        return bool(file.read() == there["id"])
    return False


def _brought(engine: str, name: str) -> str:
    """The file that says which image got this name."""
    folder = os.path.join(home(), "cache", "containers")
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, f"name-{hashlib.sha256(f'{engine} {name}'.encode()).hexdigest()}")


def _loaded(program: str, config: bytes, layers: Sequence[Layer], name: str, say: Say) -> str:
    """Have docker or podman load an image; what it said."""
    with _Engine([program, "load"], reads=True) as loading:
        sink = _Counting(loading, say, sum(layer.size for layer in layers))
        broken = False
        try:
            archive.write(config, layers, content, sink)
        except (BrokenPipeError, ConnectionResetError):
            broken = True  # it says why
        code = loading.result(lambda: say({"done": sink.done, "total": sink.total}))
        said = loading.said()
    if code or broken:
        raise _failure(f"{name} cannot be loaded", said or f"{program} load ended with {code}")
    return said


class _Counting:
    """A sink that reports its progress."""

    def __init__(self, sink: Any, say: Say, total: int) -> None:
        self.done, self.total = 0, total
        self._sink, self._say = sink, seldom(say, _REPORT)

    def write(self, data: bytes) -> int:
        self._sink.write(data)
        self.done += len(data)
        self._say({"done": self.done, "total": self.total})
        return len(data)


def _image_file(name: str) -> Optional[Dict[str, Any]]:
    folder = place_of("images", name[:40])
    path = os.path.join(folder, IMAGE_FILE)
    there = os.path.isfile(path) and mark_used(folder)
    return look("apptainer", "", path).image if there else None


def _built(
    program: str, name: str, config: bytes, layers: Sequence[Layer], title: str, say: Say
) -> Dict[str, Any]:
    """Have apptainer make an image file, once."""
    total = sum(layer.size for layer in layers)
    with placing(place_of("images", name[:40])) as folder:
        path = os.path.join(folder, "archive.tar")
        with open(path, "xb") as file:
            archive.write(config, layers, content, _Counting(file, say, total))
        made = os.path.join(folder, IMAGE_FILE)
        words = [program, "build", "--force", made, f"docker-archive:{path}"]
        environ = {**os.environ, "APPTAINER_TMPDIR": folder}
        with _Engine(words, reads=True, environ=environ) as building:
            code = building.result(lambda: say({"done": total, "total": total}))
            said = building.said()
        if code:
            raise _failure(f"no image file can be made of {title}", said)
        os.unlink(path)
        stored_tree.note(folder)
    found = _image_file(name)
    assert found is not None
    return found


# --------------------------------------------------------------------------------- image files


def image_file_have(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """Look for an image file of SHA-256 `hash` and `length` in the store, else at `path`."""
    there = kept_file("images", ask["hash"], IMAGE_FILE)
    if there is not None:
        return {"path": there, "have": True}
    own = str(ask["path"])
    with contextlib.suppress(OSError):
        same = os.path.getsize(own) == ask["length"]  # one file system for both
        if same and stored_tree.digest_of(os.path.realpath(own)) == ask["hash"]:
            return {"path": own, "have": True}
    return {"path": "", "have": False}
