"""Makes this machine's Python environment on hosts: same versions, own code included.

What a host can take from an index it takes from there; what it cannot, and all where it reaches
none, is sent as wheels (`wheels`, `builds`). uv does the installing. The name of an environment is
a hash over all that is in it, so what is there already costs one question.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shanty.launch.cluster import builds, content_store, indexes, wheels
from shanty.launch.cluster.environment import Differences, Environment, Package
from shanty.launch.cluster.parallel import Progress, Step, side_by_side, told
from shanty.launch.cluster.platforms import refuse_foreign, runs_on, wheel_tags
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.launch.cluster.wheels import Wheel
from shanty.runtime.errors import PrepareError
from shanty.runtime.rpc.store import machine

_PROBE = 3.0  # seconds for an index to answer
_ROUNDS = 3  # how often an index may turn out to lack something more
_UV_LIMIT = 600  # seconds to fetch uv


def sync(
    clients: Sequence[RpcClient],
    environment: Environment,
    home: Path,
    progress: Progress,
    environ: Mapping[str, str],
) -> dict[str, str]:
    """The interpreter of an equal environment on every host, made where it is not there yet.

    `home` is shanty's folder here; `environ` and pip's configuration name the index. Raises
    PrepareError with the host, or with the package that cannot be had there.
    """
    store = _Wheels(environment, home / "cache" / "wheels")
    name = _hash(environment, store)
    answers = side_by_side(
        clients, lambda client: client.ask("env-has", hash=name, key=environment.key).values
    )
    pythons = {host: str(each["python"]) for host, each in answers.items() if each["have"]}
    missing = [client for client in clients if client.host.name not in pythons]
    if missing:
        index = indexes.configured(environ, Path(environment.prefix))
        reach = side_by_side(
            missing,
            lambda client: bool(
                client.ask("env-reach", url=index.main, timeout=_PROBE).values["reach"]
            ),
        )
        if not all(reach.values()):
            store.make_all(progress)

        def make(client: RpcClient) -> str:
            host = client.host.name
            online = index.variables() if reach[host] else {}
            site = _Site(client, environment, store, home, progress)
            return site.make(name, answers[host], online)

        pythons |= side_by_side(missing, make)
    return {client.host.name: pythons[client.host.name] for client in clients}


def _hash(environment: Environment, store: _Wheels) -> str:
    """Over all that is in the environment; code without a version of its own by its content."""
    parts = [environment.implementation, environment.key, store.shanty.sha256]
    for package in environment.wanted():
        known = package.version if package.kind == "index" else store.of(package).sha256
        parts.append(f"{package.name}=={known}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


# -------------------------------------------------------------------------- the wheels


class _Wheels:
    """The wheels of an environment, each made when it is asked for."""

    def __init__(self, environment: Environment, cache: Path) -> None:
        self._environment = environment
        self._cache = cache
        self._scheme = wheels.Scheme(
            Path(environment.prefix), Path(environment.purelib), Path(environment.platlib)
        )
        self._made: dict[str, Wheel] = {}
        self._lock = threading.Lock()
        self.shanty = builds.shanty_wheel(cache)

    def of(self, package: Package) -> Wheel:
        """The wheel of a package."""
        found = self._made.get(package.name)
        if found is None:
            if package.kind == "editable":
                found = builds.editable_wheel(
                    package.name,
                    package.version,
                    package.source,
                    self._environment.python,
                    self._cache,
                )
            else:
                found = wheels.wheel_of(Path(package.info), self._scheme, self._cache)
            self._made[package.name] = found
        return found

    def make_all(self, progress: Progress) -> None:
        """Make those of all packages, as many at once as there are cores."""
        wanted = self._environment.wanted()
        step = Step("", "wheels", 0, len(wanted), "packages")

        def make(package: Package) -> None:
            nonlocal step
            self.of(package)
            with self._lock:
                step = replace(step, done=step.done + 1)
                progress(step)

        progress(step)
        content_store.prune(self._cache)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(make, wanted))


# ---------------------------------------------------------------------------- one host


@dataclass(frozen=True, slots=True)
class _Site:
    """The making of an environment on one host."""

    client: RpcClient
    environment: Environment
    store: _Wheels
    home: Path
    progress: Progress

    def make(self, name: str, answer: Mapping[str, Any], online: Mapping[str, str]) -> str:
        """The interpreter of the environment `name`; `answer` is what env-has said."""
        host = self.client.host.name
        if answer["base"] is None and not online:
            raise PrepareError(
                f"{host} has no Python {self.environment.key}",
                f"it has {answer['own']}, and reaches no package index from which another comes",
                f"install Python {self.environment.key} there, or choose with --python one of "
                "the version that the hosts have",
            )
        uv = answer["uv"] or self._send_uv(answer["machine"])
        sent = [one for one in self.environment.wanted() if not online or one.kind != "index"]
        for _ in range(_ROUNDS):
            made = self._make(name, uv, sent, online, answer["machine"])
            if made["python"]:
                return str(made["python"])
            lacking = set(made["lacking"])
            sent += [one for one in self.environment.wanted() if one.name in lacking]
        raise PrepareError(f"{host} could not get all packages", ", ".join(made["lacking"]))

    def _make(
        self,
        name: str,
        uv: str,
        sent: Sequence[Package],
        online: Mapping[str, str],
        there: Mapping[str, str],
    ) -> dict[str, Any]:
        names = {one.name for one in sent}
        fetched = [one for one in self.environment.wanted() if one.name not in names]
        found = [self.store.shanty, *map(self.store.of, sent)]
        for wheel in found:
            refuse_foreign(
                wheel.path.name, wheel.tags, there, self.client.host.name,
                "give the hosts an index, take hosts of one kind, or --env none",
            )  # fmt: skip
        self._send(found)
        step = Step(self.client.host.name, "environment", 0, len(fetched) + len(found), "packages")
        self.progress(step)

        def hear(said: Mapping[str, Any]) -> None:
            if "done" in said:
                self.progress(replace(step, done=int(said["done"])))
            else:
                self.progress(replace(step, what=next(iter(map(str, said.values())), step.what)))

        return self.client.ask(
            "env-make",
            progress=hear,
            hash=name,
            key=self.environment.key,
            uv=uv,
            index=dict(online),
            packages=[f"{one.name}=={one.version}" for one in fetched],
            wheels=_names(found),
        ).values

    def _send(self, found: Sequence[Wheel]) -> None:
        """Send the wheels that the host does not have."""
        missing = self.client.ask("wheels-missing", wheels=_names(found)).values["missing"]
        sizes = {one.sha256: one.path.stat().st_size for one in found if one.sha256 in missing}
        total, before = sum(sizes.values()), 0
        for wheel in found:
            if wheel.sha256 not in sizes:
                continue
            step = Step(self.client.host.name, "wheels", before, total)
            with wheel.path.open("rb") as file:
                self.client.ask(
                    "wheel-put",
                    data=told(file, step, self.progress),
                    size=sizes[wheel.sha256],
                    hash=wheel.sha256,
                    name=wheel.path.name,
                )
            before += sizes[wheel.sha256]

    def _send_uv(self, there: Mapping[str, str]) -> str:
        host = self.client.host.name
        package = _uv_package(self.home, there, host)
        return str(Path(content_store.put_tree(self.client, "uv", package, self.progress), "uv"))


def _names(found: Iterable[Wheel]) -> dict[str, str]:
    return {one.sha256: one.path.name for one in found}


# ------------------------------------------------------------------------- uv for a host


def _uv_package(home: Path, there: Mapping[str, str], host: str) -> content_store.Package:
    """A uv that runs on a machine: that of this one, else one from the index."""
    kept = home / "cache" / "uv" / "uv"
    if not kept.exists():
        own = builds.local_uv()
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
    """False for a script that stands for uv, as pyenv's, which is of no use elsewhere."""
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
                "there is no uv, which makes environments on hosts",
                done.stdout.strip()[-800:],
                f"{sys.executable} -m pip install uv, or --env none",
            )
        with zipfile.ZipFile(wheel) as archive:
            name = next(one for one in archive.namelist() if one.endswith(".data/scripts/uv"))
            made = Path(archive.extract(name, folder))
        made.chmod(0o755)
        made.replace(target)


# ------------------------------------------------------------------------------- mpi4py


def mpi4py_tags() -> tuple[str, ...]:
    """The platform tags of the mpi4py beside shanty; empty when there is none."""
    found = _mpi4py()
    return wheel_tags(found[1]) if found else ()


def place_mpi4py(
    clients: Sequence[RpcClient],
    differences: Mapping[str, Differences],
    home: Path,
    progress: Progress,
) -> dict[str, str]:
    """A folder with shanty's own mpi4py on each host that lacks one and where ours runs.

    It is for the end of the search path of an interpreter with the cache tag of the one that
    runs shanty; the others are left out.
    """
    package = _mpi4py_package(home)
    if package is None:
        return {}
    lacking = [
        client
        for client in clients
        for each in (differences[client.host.name],)
        if each.there.package("mpi4py") is None
        and each.there.cache_tag == sys.implementation.cache_tag
        and runs_on(package.tags, each.machine)
    ]
    return side_by_side(
        lacking, lambda client: content_store.put_tree(client, "mpi4py", package, progress)
    )


def place_mpi4py_beside(
    clients: Sequence[RpcClient], environment: Environment, home: Path, progress: Progress
) -> dict[str, str]:
    """The same for environments that are made after this one: what it lacks, they lack."""
    package = _mpi4py_package(home)
    if (
        package is None
        or environment.package("mpi4py") is not None
        or environment.cache_tag != sys.implementation.cache_tag
    ):
        return {}
    ask: dict[str, Any] = {"kind": "mpi4py", "hash": package.hash}
    answers = side_by_side(clients, lambda client: client.ask("store-has", **ask).values)
    lacking = [one for one in clients if runs_on(package.tags, answers[one.host.name]["machine"])]
    return side_by_side(
        lacking, lambda client: content_store.put_tree(client, "mpi4py", package, progress)
    )


def _mpi4py_package(home: Path) -> content_store.Package | None:
    """The mpi4py beside shanty; None when there is none that could be sent."""
    found = _mpi4py()
    if found is None:
        return None
    root, info = found
    files = [path for path in content_store.recorded(root, info) if "/" in path]
    return replace(content_store.package("mpi4py", root, files, home), tags=wheel_tags(info))


def _mpi4py() -> tuple[Path, Path] | None:
    """The site-packages that hold the mpi4py beside shanty, and its metadata there."""
    spec = importlib.util.find_spec("mpi4py")
    if spec is None or not spec.origin:
        return None
    root = Path(spec.origin).parent.parent
    info = next(root.glob("mpi4py-*.dist-info"), None)
    return (root, info) if info is not None and (info / "RECORD").exists() else None
