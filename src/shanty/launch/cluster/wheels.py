"""Makes wheels of what is installed here, for hosts that reach no index.

An installed distribution is turned back into the wheel that it came as, by its RECORD; that is
the binary distribution format of the Python Packaging User Guide, read backwards:
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shanty.runtime.errors import PrepareError

# What the installer wrote, and the next one writes itself.
_INSTALLERS = (
    "INSTALLER", "REQUESTED", "direct_url.json", "RECORD", "RECORD.jws", "RECORD.p7s",
    "uv_cache.json", "uv_build.json",
)  # fmt: skip
_LEVEL = 1  # of deflate: done once, sent often, and a third of the size
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel on this machine."""

    path: Path
    sha256: str

    @property
    def tags(self) -> tuple[str, ...]:
        """Its platform tags."""
        return tuple(self.path.name.removesuffix(".whl").rsplit("-", 1)[1].split("."))


@dataclass(frozen=True, slots=True)
class Member:
    """A file of a wheel: its path there, and its content, or the file that has it."""

    name: str
    source: Path | bytes
    program: bool = False


@dataclass(frozen=True, slots=True)
class Scheme:
    """Where an environment keeps things."""

    prefix: Path
    purelib: Path
    platlib: Path


def wheel_of(info: Path, scheme: Scheme, cache: Path) -> Wheel:
    """The wheel of an installed distribution, by the folder of its metadata.

    It is made once for each RECORD. Raises PrepareError when the distribution has none, as
    those that the system's packages installed.
    """
    try:
        record = (info / "RECORD").read_bytes()
        wheel_text = (info / "WHEEL").read_text(encoding="utf-8")
    except OSError as error:
        raise PrepareError(
            f"{info.name} cannot be sent",
            f"it has no {Path(str(error.filename)).name}: another tool than pip or uv installed it",
            "install it with pip into the environment, or let the hosts reach an index",
        ) from error
    key = hashlib.sha256(str(info).encode() + record).hexdigest()[:32]
    return kept(
        cache / key,
        lambda folder: write_wheel(
            folder / file_name(info.name.removesuffix(".dist-info"), wheel_text),
            info.name,
            _members(info, record.decode(), _scheme_of(info.parent, scheme)),
        ),
    )


def _scheme_of(root: Path, scheme: Scheme) -> Scheme:
    """Where what is installed in `root` has its scripts and data.

    An environment may add folders of another one to its path: the system's, the user's own.
    """
    if root in (scheme.purelib, scheme.platlib) or len(root.parents) < 3:
        return scheme
    return Scheme(root.parents[2], root, root)  # PREFIX/lib/python3.11/site-packages


def kept(place: Path, make: Callable[[Path], Path]) -> Wheel:
    """The one wheel in `place`; where there is none, `make` writes it into a folder."""
    found = _in(place)
    if found is not None:
        return found
    place.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        path = make(folder)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        (folder / "sha256").write_text(digest, encoding="ascii")
        try:
            folder.rename(place)
        except OSError:
            if _in(place) is None:
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = _in(place)
    assert found is not None
    return found


def _in(place: Path) -> Wheel | None:
    try:
        digest = (place / "sha256").read_text(encoding="ascii")
        os.utime(place)
    except OSError:
        return None
    path = next(place.glob("*.whl"), None)
    return Wheel(path, digest) if path is not None else None


# ------------------------------------------------------------------------ reading back


def _members(info: Path, record: str, scheme: Scheme) -> Iterator[Member]:
    root = info.parent
    generated = _entry_points(info)
    name = info.name.removesuffix(".dist-info")
    for row in csv.reader(io.StringIO(record)):
        if not row:
            continue
        path = Path(os.path.normpath(root / row[0]))
        if "__pycache__" in path.parts or not path.is_file():
            continue
        if path.parent == info and path.name in _INSTALLERS:
            continue
        program = bool(path.stat().st_mode & 0o100)
        if path.is_relative_to(root):
            yield Member(path.relative_to(root).as_posix(), path, program)
        elif path.parent == scheme.prefix / "bin":
            if path.name not in generated:
                yield Member(f"{name}.data/scripts/{path.name}", _script(path), True)
        else:
            yield Member(f"{name}.data/{_elsewhere(path, info, scheme)}", path, program)


def _elsewhere(path: Path, info: Path, scheme: Scheme) -> str:
    """Where in a wheel's data a file outside of its own site-packages belongs."""
    for kind, folder in (("purelib", scheme.purelib), ("platlib", scheme.platlib)):
        if path.is_relative_to(folder):
            return f"{kind}/{path.relative_to(folder).as_posix()}"
    if path.is_relative_to(scheme.prefix):
        return f"data/{path.relative_to(scheme.prefix).as_posix()}"
    raise PrepareError(
        f"{info.name} cannot be sent",
        f"it has installed {path}, outside of its environment ({scheme.prefix})",
        "leave it out of this environment, or let the hosts reach an index",
    )


def _entry_points(info: Path) -> set[str]:
    """The scripts that an installer makes anew."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        parser.read(info / "entry_points.txt", encoding="utf-8")
    except configparser.Error:
        return set()
    kinds = ("console_scripts", "gui_scripts")
    return {name for kind in kinds if parser.has_section(kind) for name in parser[kind]}


def _script(path: Path) -> Path | bytes:
    """A script as it was in the wheel: the installer has put its own Python into the first line."""
    with path.open("rb") as file:
        head = file.readline(1000)
        if not head.startswith(b"#!"):
            return path
        rest = file.read()
    if b"python" in head:
        return b"#!python\n" + rest
    if head.strip() == b"#!/bin/sh" and rest.startswith(b"'''exec'"):  # for a long path
        return b"#!python\n" + rest.split(b"\n", 2)[2]
    return head + rest


# ---------------------------------------------------------------------------- writing


def file_name(stem: str, wheel_text: str) -> str:
    """The name of a wheel, of NAME-VERSION and of its WHEEL file."""
    tags = [tag.split("-") for tag in re.findall(r"^Tag:\s*(\S+)", wheel_text, re.MULTILINE)]
    build = re.search(r"^Build:\s*(\S+)", wheel_text, re.MULTILINE)
    parts = [".".join(dict.fromkeys(column)) for column in zip(*tags, strict=True)]
    if len(parts) != 3:
        parts = ["py3", "none", "any"]
    return "-".join([stem, *([build[1]] if build else []), *parts]) + ".whl"


def write_wheel(path: Path, info: str, members: Iterable[Member]) -> Path:
    """Write a wheel with a RECORD of its own into the folder `info` of it."""
    rows = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for member in sorted(members, key=lambda one: one.name):
            digest, size = _add(archive, member)
            rows.append((member.name, f"sha256={digest}", str(size)))
        rows.append((f"{info}/RECORD", "", ""))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        _add(archive, Member(f"{info}/RECORD", text.getvalue().encode()))
    return path


def _add(archive: zipfile.ZipFile, member: Member) -> tuple[str, int]:
    digest = hashlib.sha256()
    size = 0
    source = member.source
    with (
        io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file,
        # Given by its name, an entry is of 1980 and has the archive's level, not zlib's own.
        archive.open(member.name, "w", force_zip64=True) as sink,
    ):
        while block := file.read(_BLOCK):
            digest.update(block)
            sink.write(block)
            size += len(block)
    mode = 0o100755 if member.program else 0o100644
    archive.getinfo(member.name).external_attr = mode << 16
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode(), size
