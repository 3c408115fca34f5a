"""Says what goes into an image that shanty builds: the packages, the MPI, shanty, the code."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from shanty.launch import interpreter
from shanty.launch.containers.layer import Entry, Venv, installed
from shanty.launch.content import content_store, environment, wheels, workspace
from shanty.launch.content.content_store import KEPT, refuse_foreign, wheel_tags
from shanty.launch.content.environment import TOOLS, Environment, Package
from shanty.launch.transport.parallel import Say
from shanty.runtime.errors import NotFoundError, PrepareError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.rpc.store import placing, prune

FOLDER = "/opt/shanty"  # of an image: all that is put into it, but for the code
CODE = "/work"
_LARGE = 64 << 20  # bytes of a package that has a layer of its own
_MOST = 12  # layers for large packages; engines take about a hundred in all
_INSTALL_LIMIT = 3600  # seconds for pip
_OTHER_FILE = re.compile(r"(?:-r|-c|--requirement|--constraint)[\s=]*(\S.*?)(?:\s+#.*)?$")


@dataclass(frozen=True, slots=True)
class Part:
    """A layer to be: `key` names what is in it, `make` gives its files; `size` is about theirs."""

    title: str
    key: str
    make: Callable[[], Iterable[Entry]]
    size: int


@dataclass(frozen=True, slots=True)
class Base:
    """An image to build on, as it was found: its id, its packages, their versions by name.

    `venv` is the environment that is put into an image on this one. `machine` has the facts that
    decide which packages run there.
    """

    name: str
    id: str
    venv: Venv
    machine: Mapping[str, str]
    packages: Mapping[str, str]


# -------------------------------------------------------------------------- which environment


def chosen(
    python: str | None,
    requirements: str | None,
    folder: Path,
    home: Path,
    environ: Mapping[str, str],
    say: Say,
) -> tuple[Environment, str]:
    """The environment whose packages are taken, and words for where they come from.

    A run would take the same environment. If `requirements` names a file, or if no environment is
    chosen and the workspace `folder` has such a file, an environment is made of that file.
    """
    found = interpreter.choose(python, folder, environ)
    file = folder / requirements if requirements else None
    active = any(environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX"))
    if not (file or python or active) and found == sys.executable:
        names = (folder / name for name in ("requirements.txt", "pyproject.toml"))
        file = next((path for path in names if path.is_file() and _lines(path)), None)
    if file is None:
        return environment.local_environment(found, home), found
    if not file.is_file():
        raise NotFoundError(f"{file} not found", fix="check --requirements")
    if not _lines(file):
        raise PrepareError(f"{file} names no packages", fix="leave --requirements out")
    made = _made_of(file, found, folder, home, say)
    return environment.local_environment(made, home), file.name


def _lines(file: Path) -> list[str]:
    """The requirements of requirements.txt, or the dependencies of pyproject.toml."""
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix != ".toml":
            return [line.strip() for line in text.splitlines() if re.match(r"\s*[^\s#]", line)]
        found = tomllib.loads(text).get("project", {}).get("dependencies", [])
        return [str(one) for one in found]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise PrepareError(f"{file} cannot be read", str(error)) from error


def _all_lines(file: Path, seen: set[Path]) -> Iterator[str]:
    """The same, with those of the files that they name (-r, -c)."""
    if file.is_file() and file.resolve() not in seen:  # the installer reports a missing file
        seen.add(file.resolve())
        for line in _lines(file):
            yield line
            named = _OTHER_FILE.match(line)
            if named:
                yield from _all_lines(file.parent / named[1].strip("\"'"), seen)


def _made_of(file: Path, python: str, folder: Path, home: Path, say: Say) -> str:
    """The interpreter of an environment with the packages of a file, made where it is not kept."""
    parts = [*_all_lines(file, set()), python, str(folder)]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:40]
    place = home / "cache" / "requirements" / name
    made = place / "bin" / "python"
    prune(str(place.parent), KEPT)
    if not made.exists():
        say("gets the packages from the index")
        with placing(str(place)) as draft:
            _run([python, "-m", "venv", "--without-pip", draft], folder, "no environment")
            if file.suffix == ".toml":
                lines = _lines(file)
                file = Path(draft, "requirements.txt")
                file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            _run(
                [*_installer(f"{draft}/bin/python"), "-r", str(file)],
                folder,
                "the packages cannot be installed",
            )
    return str(made)


def _installer(python: str) -> list[str]:
    if importlib.util.find_spec("pip"):
        words = ["--no-input", "--disable-pip-version-check", "--quiet"]
        return [sys.executable, "-m", "pip", "--python", python, "install", *words]
    uv = wheels.local_uv()
    if uv is None:
        raise PrepareError(
            "neither pip nor uv is there to get packages",
            f"{sys.executable} has no module pip, and no uv is on PATH",
            f"{sys.executable} -m ensurepip, or leave --requirements out",
        )
    return [uv, "pip", "install", "--quiet", "--python", python]


def _run(words: Sequence[str], folder: Path, what: str) -> None:
    said = wheels.complaint(words, folder, os.environ, _INSTALL_LIMIT)
    if said is not None:
        raise PrepareError(what, said, "the lines above are the installer's")


# ------------------------------------------------------------------------------- which layers


def parts(
    base: Base,
    packages: Environment,
    mpi: Installation | None,
    code: Path | None,
    home: Path,
    say: Say,
) -> list[Part]:
    """The layers of an image, what seldom changes first.

    `mpi` None leaves the base's own, `code` is a workspace whose files go along. PrepareError for
    what does not run in the base image.
    """
    found = []
    if mpi is not None:
        found.append(_mpi_part(mpi, base, home))
    found += _package_parts(base, packages, home)
    if code is not None:
        found.append(_code_part(code, home, say))
    return found


def _mpi_part(mpi: Installation, base: Base, home: Path) -> Part:
    title = f"{FLAVOURS[mpi.flavour].title} {mpi.version}"
    if mpi.origin == "system":
        raise PrepareError(
            f"{title} of this machine cannot be put into an image",
            f"it is a system package ({mpi.prefix}) and needs other system packages",
            f"shanty mpi install {mpi.flavour} gets one to put in; or take a base image that has "
            "it, with --mpi image",
        )
    package = content_store.mpi_package(mpi, home)
    refuse_foreign(title, package.tags, base.machine, base.name, "take another --base")

    def make() -> Iterable[Entry]:
        for path in package.files:
            place, source = f"{FOLDER}/mpi/{path}", package.root / path
            if source.is_symlink():
                yield Entry(place, link=str(source.readlink()))
            else:
                yield Entry(place, source, bool(source.stat().st_mode & 0o100))

    size = sum((package.root / path).lstat().st_size for path in package.files)
    return Part(title, f"mpi {package.hash}", make, size)


def _package_parts(base: Base, packages: Environment, home: Path) -> list[Part]:
    """A layer of the environment, one for each large package, one for what is worked on."""
    venv = base.venv
    scheme = _scheme(packages)
    kept: list[tuple[Package, Mapping[str, Path]]] = [
        (one, scheme) for one in packages.wanted() if base.packages.get(one.name) != one.version
    ]
    kept += _of_shanty(packages, base, home)
    plain = [(one, where) for one, where in kept if one.kind != "editable"]
    for one, _ in plain:
        tags = wheel_tags(Path(one.info))
        fix = "take another --base, or --requirements FILE for packages from the index"
        refuse_foreign(f"{one.name} {one.version}", tags, base.machine, base.name, fix)
    sizes = {one.name: _recorded_size(Path(one.info)) for one, _ in plain}
    large = sorted((n for n, size in sizes.items() if size >= _LARGE), key=lambda n: -sizes[n])
    large = large[:_MOST]

    def part(title: str, chosen: Sequence[tuple[Package, Mapping[str, Path]]]) -> Part:
        keys = [f"{one.name} {_identity(one)}" for one, _ in chosen]

        def make() -> Iterable[Entry]:
            for one, where in chosen:
                yield from installed(wheels.members_of(Path(one.info), where), venv)

        size = sum(sizes[one.name] for one, _ in chosen)
        return Part(title, _hash(["packages", venv.folder, venv.key, *keys]), make, size)

    found = []
    for name in large:
        chosen = [each for each in plain if each[0].name == name]
        found.append(part(f"{name} {chosen[0][0].version}", chosen))
    rest = [each for each in plain if each[0].name not in large]
    if rest:
        found.append(part(f"{len(rest)} packages" if len(rest) > 1 else rest[0][0].name, rest))
    cache = home / "cache" / "wheels"
    own = [wheels.shanty_wheel(cache)]
    for one, _ in kept:
        if one.kind == "editable":
            named = (one.name, one.version, one.source)
            own.append(wheels.editable_wheel(*named, packages.python, cache))

    def make_own() -> Iterable[Entry]:
        yield from venv.entries()
        for wheel in own:
            yield from installed(wheels.members_in(wheel), venv)

    names = ", ".join(["shanty", *(one.name for one, _ in kept if one.kind == "editable")])
    key = _hash(["own", str(venv), *(wheel.sha256 for wheel in own)])
    size = sum(wheel.path.stat().st_size for wheel in own)
    return [*found, Part(names, key, make_own, size)]


def _of_shanty(
    packages: Environment, base: Base, home: Path
) -> list[tuple[Package, Mapping[str, Path]]]:
    """What shanty needs and the environment lacks, where that of our interpreter fits."""
    own = environment.local_environment(sys.executable, home)
    if (own.implementation, own.key) != (packages.implementation, packages.key):
        return []
    try:
        needed = metadata.requires("shanty") or []
    except metadata.PackageNotFoundError:  # run from its source
        needed = []
    names = [re.split(r"[^\w.-]", one)[0].lower().replace("_", "-") for one in needed]
    names = [name for one, name in zip(needed, names, strict=True) if "extra ==" not in one]
    lacking = [name for name in dict.fromkeys(names) if name not in TOOLS | set(base.packages)]
    found = [own.package(name) for name in lacking if packages.package(name) is None]
    return [(one, _scheme(own)) for one in found if one is not None]


def _scheme(packages: Environment) -> dict[str, Path]:
    folders = (packages.purelib, packages.platlib, packages.prefix)
    return dict(zip(("purelib", "platlib", "data"), map(Path, folders), strict=True))


def _identity(package: Package) -> str:
    try:
        return wheels.identity(Path(package.info))
    except PrepareError as error:
        fix = "install it with pip, or take --requirements FILE for packages from the index"
        raise PrepareError(f"{package.name} cannot be put into an image", error.why, fix) from error


def _code_part(folder: Path, home: Path, say: Say) -> Part:
    found = workspace.manifest(folder, workspace.cache_file(folder, home), say)
    entries = [
        Entry(f"{CODE}/{one.path}", folder / one.path, one.executable) for one in found.files
    ]
    entries += [Entry(f"{CODE}/{path}", link=goal) for path, goal in found.links]
    size = sum(one.size for one in found.files)
    return Part("the code", f"code {found.hash}", lambda: entries, size)


def _recorded_size(info: Path) -> int:
    """About how many bytes a package has, by its record."""
    try:
        text = (info / "RECORD").read_text(encoding="utf-8")
    except OSError:
        return 0
    return sum(int(size) for size in re.findall(r",(\d+)\s*$", text, re.MULTILINE))


def _hash(parts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
