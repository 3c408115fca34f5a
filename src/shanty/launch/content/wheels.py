"""Makes wheels of the packages that are installed here, for hosts that do not reach an index.

An installed distribution is turned back into its wheel, by its RECORD. The format is the binary
distribution format of the Python Packaging User Guide:
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
A package that is installed as a link to its source is built, and so is shanty itself.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from shanty.launch.content.workspace import listing
from shanty.launch.package import FOLDER
from shanty.runtime.errors import PrepareError
from shanty.runtime.rpc.store import placing

# Files that an installer writes.
_INSTALLERS = (
    "INSTALLER", "REQUESTED", "direct_url.json", "RECORD", "RECORD.jws", "RECORD.p7s",
    "uv_cache.json", "uv_build.json",
)  # fmt: skip
Scheme = Mapping[str, Path]  # an environment's purelib, platlib and data, as sysconfig names them
_LEVEL = 1  # of deflate: fast, and a third of the size
_BLOCK = 1 << 20
_BUILD_LIMIT = 900  # seconds for a build, which may compile code
_LAST_LINES = 12
# The hook of PEP 517: a backend builds a wheel of its current folder.
_HOOK = """
import importlib, sys
backend, folder, path = sys.argv[1], sys.argv[2], sys.argv[3:]
sys.path[:0] = path
name, _, inner = backend.partition(":")
module = importlib.import_module(name)
for part in filter(None, inner.split(".")):
    module = getattr(module, part)
module.build_wheel(folder)
"""


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
    """A file of a wheel: its path there, and its content, or the file that contains it."""

    name: str
    source: Path | bytes
    program: bool = False


def wheel_of(info: Path, scheme: Scheme, cache: Path) -> Wheel:
    """The wheel of an installed distribution, by the folder of its metadata.

    It is made once for each RECORD. Raises PrepareError if the distribution has no RECORD, like
    system packages.
    """
    record, wheel_text = _own_texts(info)
    key = hashlib.sha256(str(info).encode() + record).hexdigest()[:32]
    return kept(
        cache / key,
        lambda folder: write_wheel(
            folder / file_name(info.name.removesuffix(".dist-info"), wheel_text),
            info.name,
            _members(info, record.decode(), scheme),
        ),
    )


def _own_texts(info: Path) -> tuple[bytes, str]:
    """The RECORD and the WHEEL of an installed distribution."""
    try:
        return (info / "RECORD").read_bytes(), (info / "WHEEL").read_text(encoding="utf-8")
    except OSError as error:
        raise PrepareError(
            f"{info.name} cannot be sent",
            f"it has no {Path(str(error.filename)).name}: it was not installed by pip or uv",
            "install it with pip into the environment, or let the hosts reach an index",
        ) from error


def members_of(info: Path, scheme: Scheme) -> list[Member]:
    """The files of an installed distribution as in its wheel, except RECORD."""
    return list(_members(info, _own_texts(info)[0].decode(), scheme))


def members_in(wheel: Wheel) -> list[Member]:
    """The files of a wheel, except RECORD."""
    with zipfile.ZipFile(wheel.path) as archive:
        return [
            Member(one.filename, archive.read(one), bool(one.external_attr >> 16 & 0o100))
            for one in archive.infolist()
            if not one.is_dir() and not re.fullmatch(r"[^/]+\.dist-info/RECORD", one.filename)
        ]


def identity(info: Path) -> str:
    """A hash of the files of an installed distribution, the same wherever it is installed."""
    digest = hashlib.sha256(info.name.encode())
    for row in sorted(csv.reader(io.StringIO(_own_texts(info)[0].decode()))):
        outside = not row or row[0].startswith(("..", "/"))
        if outside or row[0].endswith(".pyc") or row[0].rpartition("/")[2] in _INSTALLERS:
            continue  # it depends on where and how it was installed
        digest.update("\0".join(row).encode() + b"\n")
    return digest.hexdigest()


def kept(place: Path, make: Callable[[Path], Path]) -> Wheel:
    """The wheel in `place`; if it is missing, `make` writes it into a folder."""
    found = _in(place)
    if found is None:
        with placing(str(place)) as folder:
            with make(Path(folder)).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            Path(folder, "sha256").write_text(digest, encoding="ascii")
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


def _members(info: Path, record: str, scheme: Scheme) -> Iterator[Member]:
    root = info.parent
    if root not in scheme.values() and len(root.parents) >= 3:
        # A folder of another environment, such as the system's PREFIX/lib/python3.11/site-packages.
        scheme = {"purelib": root, "platlib": root, "data": root.parents[2]}
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
        elif path.parent == scheme["data"] / "bin":
            if path.name not in generated:
                yield Member(f"{name}.data/scripts/{path.name}", _script(path), True)
        else:
            yield Member(f"{name}.data/{_elsewhere(path, info, scheme)}", path, program)


def _elsewhere(path: Path, info: Path, scheme: Scheme) -> str:
    for kind, folder in scheme.items():
        if path.is_relative_to(folder):
            return f"{kind}/{path.relative_to(folder).as_posix()}"
    raise PrepareError(
        f"{info.name} cannot be sent",
        f"it has installed {path}, outside of its environment ({scheme['data']})",
        "leave it out of this environment, or let the hosts reach an index",
    )


def _entry_points(info: Path) -> set[str]:
    """The names of the scripts that an installer makes."""
    found = metadata.PathDistribution(info).entry_points
    return {each.name for each in found if each.group in ("console_scripts", "gui_scripts")}


def _script(path: Path) -> Path | bytes:
    """A script as in the wheel: an installer puts the path of its Python into the first line."""
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


def file_name(stem: str, wheel_text: str) -> str:
    """The file name of a wheel, from NAME-VERSION and its WHEEL file."""
    tags = [tag.split("-") for tag in re.findall(r"^Tag:\s*(\S+)", wheel_text, re.MULTILINE)]
    build = re.search(r"^Build:\s*(\S+)", wheel_text, re.MULTILINE)
    parts = [".".join(dict.fromkeys(column)) for column in zip(*tags, strict=True)]
    if len(parts) != 3:
        parts = ["py3", "none", "any"]
    return "-".join([stem, *([build[1]] if build else []), *parts]) + ".whl"


def write_wheel(path: Path, info: str, members: Iterable[Member]) -> Path:
    """Write a wheel with a RECORD in its folder `info`."""
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
        # An entry opened by name has the date 1980 and the archive's compression level.
        archive.open(member.name, "w", force_zip64=True) as sink,
    ):
        while block := file.read(_BLOCK):
            digest.update(block)
            sink.write(block)
            size += len(block)
    mode = 0o100755 if member.program else 0o100644
    archive.getinfo(member.name).external_attr = mode << 16
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode(), size


def editable_wheel(name: str, version: str, source: str, python: str, cache: Path) -> Wheel:
    """The wheel of an editable package, from the current state of its source folder (a URL).

    The package's build backend in the environment of `python` builds it, else uv, which fetches
    the backend. Raises PrepareError with the package and what it needs.
    """
    folder = Path(unquote(urlparse(source).path))
    if not folder.is_dir():
        raise PrepareError(
            f"the source folder of {name} does not exist",
            f"it is installed as editable from {folder}",
            f"install {name} again, or uninstall it",
        )
    files = _sources(folder)
    state = _state(f"{name}\0{version}\0{python}\0{folder}", folder, files)
    return kept(
        cache / f"{name}-{state}",
        lambda target: _build(name, version, folder, files, python, target),
    )


def _sources(folder: Path) -> list[str]:
    """The files of a source folder: those of a workspace, without results of earlier builds."""
    files, _ = listing(folder)
    if not any((place / ".git").exists() for place in (folder, *folder.parents)):
        files = [path for path in files if path.partition("/")[0] not in ("build", "dist")]
    return sorted(files)


def _state(name: str, folder: Path, files: Sequence[str]) -> str:
    digest = hashlib.sha256(f"{name}\n".encode())
    for path in files:
        try:
            stat = (folder / path).stat()
        except OSError:
            continue
        digest.update(f"{path}\0{stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]


def _build(
    name: str, version: str, source: Path, files: list[str], python: str, target: Path
) -> Path:
    """Build in a copy: backends leave folders behind, and reuse files that they find there."""
    with tempfile.TemporaryDirectory(prefix="shanty-build-") as scratch:
        copy = Path(scratch, source.name)
        copy.mkdir()
        for path in files:
            place = copy / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if (source / path).is_file():
                shutil.copy2(source / path, place)
        # The copy has no .git from which a backend could take the version.
        environ = {**os.environ, "SETUPTOOLS_SCM_PRETEND_VERSION": version}
        environ["SOURCE_DATE_EPOCH"] = "315532800"  # 1980: the same bytes each time
        environ.pop("PYTHONPATH", None)
        system = _build_system(copy)
        backend = str(system.get("build-backend", "setuptools.build_meta:__legacy__"))
        folders = [str(copy / one) for one in system.get("backend-path", [])]
        argv = [python, "-c", _HOOK, backend, str(target), *folders]
        said = complaint(argv, copy, environ)
        if said is not None:
            by_uv: str | None = "uv could fetch it, but is not on PATH"
            uv = local_uv()
            if uv is not None:
                argv = [uv, "build", "--quiet", "--wheel", "--python", python, "--out-dir"]
                by_uv = complaint([*argv, str(target), str(copy)], copy, environ)
            said = None if by_uv is None else f"{said}\n{by_uv}"
    built = sorted(target.glob("*.whl"))
    if said is None and built:
        return built[0]
    needs = " ".join(map(repr, _build_system(source).get("requires", ["setuptools"])))
    raise PrepareError(
        f"cannot build a wheel of {name}, which is installed as editable from {source}",
        said or "its build backend did not make one",
        f"install its build requirements: {python} -m pip install {needs}",
    )


def _build_system(source: Path) -> dict[str, list[str]]:
    try:
        found = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    system = found.get("build-system")
    return system if isinstance(system, dict) else {}


def complaint(
    argv: Sequence[str], folder: Path, environ: Mapping[str, str], limit: float = _BUILD_LIMIT
) -> str | None:
    """Run a builder or an installer; None if it succeeded, else its last lines."""
    try:
        done = subprocess.run(
            argv, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=limit, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{argv[0]} did not end within {limit / 60:.0f} min"
    if done.returncode == 0:
        return None
    return "\n".join(done.stdout.decode(errors="replace").strip().splitlines()[-_LAST_LINES:])


def local_uv() -> str | None:
    """The uv of this machine: next to shanty's interpreter, or on PATH."""
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("uv")


def shanty_wheel(cache: Path) -> Wheel:
    """The wheel of the running shanty, from its own files, since these may have been edited."""
    root = FOLDER
    found = (path for path in sorted(root.rglob("*")) if "__pycache__" not in path.parts)
    files = [path.relative_to(root).as_posix() for path in found if path.is_file()]

    def make(target: Path) -> Path:
        version, texts = _own_metadata()
        info = f"shanty-{version}.dist-info"
        members = [
            Member(f"shanty/{path}", root / path, bool((root / path).stat().st_mode & 0o100))
            for path in files
        ]
        members += [Member(f"{info}/{name}", text.encode()) for name, text in texts.items()]
        return write_wheel(target / f"shanty-{version}-py3-none-any.whl", info, members)

    return kept(cache / f"shanty-{_state(str(root), root, files)}", make)


def _own_metadata() -> tuple[str, dict[str, str]]:
    """The version and metadata files of shanty, from its installation if it has one."""
    wheel = "Wheel-Version: 1.0\nGenerator: shanty\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    try:
        own = metadata.distribution("shanty")
    except metadata.PackageNotFoundError:  # run from its source, by PYTHONPATH
        version = "0"
        text = f"Metadata-Version: 2.1\nName: shanty\nVersion: {version}\n"
        return version, {"METADATA": text, "WHEEL": wheel}
    found = {name: own.read_text(name) for name in ("METADATA", "entry_points.txt")}
    texts = {name: text for name, text in found.items() if text}
    return own.version, {**texts, "WHEEL": wheel}
