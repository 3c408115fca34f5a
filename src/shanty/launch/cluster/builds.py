"""Builds wheels of packages that are installed as a link to their source, and of shanty itself."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

import shanty
from shanty.launch.cluster.wheels import Member, Wheel, kept, write_wheel
from shanty.runtime.errors import PrepareError

_LIMIT = 900  # seconds for a build; one that compiles takes a while
_SKIPPED = frozenset(
    (".git", ".hg", "__pycache__", ".venv", "venv", "node_modules", "build", "dist", ".tox",
     ".mypy_cache", ".ruff_cache", ".pytest_cache")
)  # fmt: skip
# The hook of PEP 517: a backend builds a wheel of the folder that it is started in.
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


def editable_wheel(name: str, version: str, source: str, python: str, cache: Path) -> Wheel:
    """The wheel of an editable package, by the URL of its source folder, as that is now.

    It is built by the package's own build backend, as it is in the environment of `python`,
    else by uv, which fetches one. Raises PrepareError with the package and what it needs.
    """
    folder = Path(unquote(urlparse(source).path))
    if not folder.is_dir():
        raise PrepareError(
            f"the source of {name} is gone",
            f"it is installed as editable from {folder}",
            f"install {name} again, or uninstall it",
        )
    digest = hashlib.sha256(f"{name}\0{version}\0{python}\0{folder}\n".encode())
    files = sorted(_sources(folder))
    for path in files:
        try:
            stat = (folder / path).stat()
        except OSError:
            continue
        digest.update(f"{path}\0{stat.st_size} {stat.st_mtime_ns}\n".encode())
    return kept(
        cache / f"{name}-{digest.hexdigest()[:24]}",
        lambda target: _build(name, version, folder, files, python, target),
    )


def _sources(folder: Path) -> Iterator[str]:
    """The files of a source folder: what git knows or does not ignore, else all but the usual."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), "ls-files", "-z", "-co", "--exclude-standard"],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        for parent, folders, names in os.walk(folder):
            folders[:] = [
                one
                for one in folders
                if one not in _SKIPPED and not Path(parent, one, "pyvenv.cfg").exists()
            ]
            for name in names:
                yield Path(parent, name).relative_to(folder).as_posix()
    else:
        yield from filter(None, os.fsdecode(answer.stdout).split("\0"))


def _build(
    name: str, version: str, source: Path, files: list[str], python: str, target: Path
) -> Path:
    """Build in a copy: backends leave folders behind, and take up again what they find there."""
    with tempfile.TemporaryDirectory(prefix="shanty-build-") as scratch:
        copy = Path(scratch, source.name)
        copy.mkdir()
        for path in files:
            place = copy / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if (source / path).is_file():
                shutil.copy2(source / path, place)
        # There is no .git in the copy, so the version is told to those who would ask it.
        environ = {**os.environ, "SETUPTOOLS_SCM_PRETEND_VERSION": version}
        environ["SOURCE_DATE_EPOCH"] = "315532800"  # 1980: the same bytes each time
        environ.pop("PYTHONPATH", None)
        said = _by_backend(copy, python, target, environ)
        if said is not None:
            by_uv = _by_uv(copy, python, target, environ)
            said = None if by_uv is None else f"{said}\n{by_uv}"
    built = sorted(target.glob("*.whl"))
    if said is None and built:
        return built[0]
    needs = " ".join(map(repr, _build_system(source).get("requires", ["setuptools"])))
    raise PrepareError(
        f"no wheel could be built of {name}, which is installed as editable from {source}",
        said or "its build backend made none",
        f"install what it is built with beside it: {python} -m pip install {needs}",
    )


def _build_system(source: Path) -> dict[str, list[str]]:
    try:
        found = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    system = found.get("build-system")
    return system if isinstance(system, dict) else {}


def _by_backend(source: Path, python: str, target: Path, environ: dict[str, str]) -> str | None:
    """None when the backend of that environment has built, else what it said."""
    system = _build_system(source)
    backend = str(system.get("build-backend", "setuptools.build_meta:__legacy__"))
    path = [str(source / one) for one in system.get("backend-path", [])]
    return _said([python, "-c", _HOOK, backend, str(target), *path], source, environ)


def _by_uv(source: Path, python: str, target: Path, environ: dict[str, str]) -> str | None:
    uv = local_uv()
    if uv is None:
        return "uv could fetch it, but is not on PATH"
    words = ["build", "--quiet", "--wheel", "--python", python, "--out-dir", str(target)]
    return _said([uv, *words, str(source)], source, environ)


def _said(argv: list[str], folder: Path, environ: dict[str, str]) -> str | None:
    try:
        done = subprocess.run(
            argv, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=_LIMIT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{argv[0]} was still at it after {_LIMIT / 60:.0f} min"
    if done.returncode == 0:
        return None
    return "\n".join(done.stdout.decode(errors="replace").strip().splitlines()[-8:])


def local_uv() -> str | None:
    """The uv of this machine: beside the interpreter that runs shanty, or on PATH."""
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("uv")


# -------------------------------------------------------------------------- shanty itself


def shanty_wheel(cache: Path) -> Wheel:
    """The wheel of the shanty that is running, of its own files: it may be editable, or changed."""
    root = Path(shanty.__file__).parent
    digest = hashlib.sha256(str(root).encode())
    files = []
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            stat = path.stat()
            files.append(path)
            digest.update(f"{path}\0{stat.st_size} {stat.st_mtime_ns}\n".encode())

    def make(target: Path) -> Path:
        version, texts = _own_metadata()
        info = f"shanty-{version}.dist-info"
        members = [
            Member(
                f"shanty/{path.relative_to(root).as_posix()}",
                path,
                bool(path.stat().st_mode & 0o100),
            )
            for path in files
        ]
        members += [Member(f"{info}/{name}", text.encode()) for name, text in texts.items()]
        return write_wheel(target / f"shanty-{version}-py3-none-any.whl", info, members)

    return kept(cache / f"shanty-{digest.hexdigest()[:24]}", make)


def _own_metadata() -> tuple[str, dict[str, str]]:
    """Version and metadata files, of the installed shanty where there is one."""
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
