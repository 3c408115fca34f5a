"""Makes layers of images: tars that have the same bytes whenever the same files go in."""

from __future__ import annotations

import configparser
import contextlib
import csv
import importlib.util
import io
import marshal
import posixpath
import struct
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shanty.launch.content.wheels import Member
from shanty.runtime.containers.archive import BLOCK, pieces
from shanty.runtime.errors import PrepareError, UsageError

_TIME = 315532800  # 1980: the earliest that a zip file can have, which scripts may make of these
_PADDING = 512  # bytes of a block of a tar
_CONSOLE = ("console_scripts", "gui_scripts")
# What an installer writes for an entry point.
_SCRIPT = """#!{python}
import sys
from {module} import {first}
if __name__ == "__main__":
    sys.argv[0] = sys.argv[0].removesuffix(".exe")
    sys.exit({call}())
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a layer: its absolute path there, and what is in it, or where a link leads."""

    path: str
    content: Path | bytes = b""
    program: bool = False
    link: str = ""


@dataclass(frozen=True, slots=True)
class Venv:
    """A virtual environment in an image, on the interpreter `base` of the image.

    `key` is its version as far as packages care: 3.11, 3.13t; `tag` is in the names of what it
    has compiled: cpython-311.
    """

    folder: str
    base: str
    version: str
    key: str
    tag: str

    @property
    def python(self) -> str:
        """Its interpreter."""
        return f"{self.folder}/bin/python"

    @property
    def packages(self) -> str:
        """Its folder of packages."""
        return f"{self.folder}/lib/python{self.key}/site-packages"

    def entries(self) -> list[Entry]:
        """The environment without a package; it has those of the image behind its own."""
        text = (
            f"home = {posixpath.dirname(self.base)}\n"
            "include-system-site-packages = true\n"
            f"version = {self.version}\n"
        )
        names = ("python", "python3", f"python{self.key}")
        return [
            Entry(f"{self.folder}/pyvenv.cfg", text.encode()),
            *(Entry(f"{self.folder}/bin/{name}", link=self.base) for name in names),
        ]


def installed(members: Sequence[Member], venv: Venv) -> list[Entry]:
    """The files of a wheel (all but RECORD) as an installer puts them into an environment."""
    found, rows = [], []
    info = next((m.name.split("/")[0] for m in members if _is_info(m.name)), "")
    for member in members:
        place = _place(member.name, venv)
        content = member.source
        if isinstance(content, bytes) and content.startswith(b"#!python"):
            first, _, rest = content.partition(b"\n")
            content = first.replace(b"#!python", b"#!" + venv.python.encode(), 1) + b"\n" + rest
        found.append(Entry(place, content, member.program))
        found += _compiled(place, content, venv.tag)
    texts = [m.source for m in members if m.name == f"{info}/entry_points.txt"]
    for name, text in _scripts(texts[0] if texts else b"", venv.python):
        found.append(Entry(f"{venv.folder}/bin/{name}", text, program=True))
    if info:
        found.append(Entry(f"{venv.packages}/{info}/INSTALLER", b"shanty\n"))
        record = f"{venv.packages}/{info}/RECORD"
        rows = [(posixpath.relpath(one.path, venv.packages), "", "") for one in found]
        rows.append((posixpath.relpath(record, venv.packages), "", ""))
        output = io.StringIO()
        csv.writer(output, lineterminator="\n").writerows(sorted(rows))
        found.append(Entry(record, output.getvalue().encode()))
    return found


def _compiled(place: str, source: Path | bytes, tag: str) -> Iterator[Entry]:
    """The bytecode of a module, for nobody can write it beside the modules of an image.

    That of a file is what is beside it here, if it has been imported; its header gets the time
    that the file has in the image (PEP 3147, PEP 552).
    """
    if not place.endswith(".py"):
        return
    folder, name = posixpath.split(place)
    file = f"__pycache__/{name.removesuffix('.py')}.{tag}.pyc"
    if isinstance(source, bytes):
        if tag != sys.implementation.cache_tag:
            return
        with contextlib.suppress(SyntaxError, ValueError):  # a template, or for another Python
            code = marshal.dumps(compile(source, place, "exec", dont_inherit=True))
            head = bytes(4) + struct.pack("<II", _TIME, len(source))
            yield Entry(f"{folder}/{file}", importlib.util.MAGIC_NUMBER + head + code)
        return
    status = source.stat()
    stamp = struct.pack("<III", 0, int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    try:
        data = (source.parent / file).read_bytes()
    except OSError:
        return
    if data[4:16] == stamp:
        yield Entry(f"{folder}/{file}", data[:8] + struct.pack("<I", _TIME) + data[12:])


def _is_info(name: str) -> bool:
    folder, slash, _ = name.partition("/")
    return bool(slash) and folder.endswith(".dist-info")


def _place(name: str, venv: Venv) -> str:
    """Where an installer puts a file of a wheel."""
    top, _, rest = name.partition("/")
    if top.endswith(".data") and rest:
        kind, _, rest = rest.partition("/")
        project = top.removesuffix(".data").split("-")[0]
        folders = {
            "scripts": f"{venv.folder}/bin",
            "data": venv.folder,
            "headers": f"{venv.folder}/include/site/python{venv.key}/{project}",
        }
        return _below(folders.get(kind, venv.packages), rest)
    return _below(venv.packages, name)


def _below(folder: str, name: str) -> str:
    path = posixpath.normpath(f"{folder}/{name}")
    if not path.startswith(f"{folder}/"):
        raise UsageError(f"{name!r} in a package leads out of it")
    return path


def _scripts(source: Path | bytes, python: str) -> Iterator[tuple[str, bytes]]:
    """The programs that an installer makes, by the text of entry_points.txt."""
    text = source if isinstance(source, bytes) else source.read_bytes()
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        parser.read_string(text.decode())
    except (configparser.Error, UnicodeDecodeError):
        return
    for kind in _CONSOLE:
        for name, value in parser.items(kind) if parser.has_section(kind) else ():
            module, _, call = value.partition("[")[0].strip().partition(":")
            if module and call and "/" not in name:
                first = call.strip().split(".")[0]
                words = {"python": python, "module": module.strip(), "first": first}
                yield name, _SCRIPT.format(**words, call=call.strip()).encode()


# ----------------------------------------------------------------------------------- the tar


def blocks(entries: Iterable[Entry]) -> Iterator[bytes]:
    """The tar of these files and of the folders that they are in, in pieces of any size.

    The last of several files of one path counts. All belong to root, with a fixed time.
    """
    known = {posixpath.normpath(entry.path).lstrip("/"): entry for entry in entries}
    folders = {parent for path in known for parent in _parents(path)}
    for path in sorted(folders | known.keys()):
        entry = known.get(path)
        if entry is None or path in folders:
            yield _header(path + "/", tarfile.DIRTYPE, 0o755)
        elif entry.link:
            yield _header(path, tarfile.SYMTYPE, 0o777, link=entry.link)
        else:
            yield from _file(path, entry)
    yield bytes(2 * _PADDING)


def _file(path: str, entry: Entry) -> Iterator[bytes]:
    mode = 0o755 if entry.program else 0o644
    if isinstance(entry.content, bytes):
        yield _header(path, tarfile.REGTYPE, mode, len(entry.content)) + entry.content
        yield bytes(-len(entry.content) % _PADDING)
        return
    with entry.content.open("rb") as file:
        size = entry.content.stat().st_size
        yield _header(path, tarfile.REGTYPE, mode, size)
        done = 0
        for piece in pieces(file, BLOCK):
            done += len(piece)
            yield piece
    if done != size:
        what = f"{entry.content} was changed while it was read"
        raise PrepareError(what, fix="run the command again")
    yield bytes(-size % _PADDING)


def _parents(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path


def _header(path: str, kind: bytes, mode: int, size: int = 0, link: str = "") -> bytes:
    member = tarfile.TarInfo(path)
    member.type, member.mode, member.size, member.linkname = kind, mode, size, link
    member.mtime = _TIME
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
