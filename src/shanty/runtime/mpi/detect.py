"""Finds the MPIs of a machine by their files, without starting any of them.

An MPI is a launcher and a libmpi that belong together. The library tells its flavour by what
is in it (see `library`), the launcher tells what it can start by the names of the settings that it
reads. No file name is trusted alone: Debian keeps two MPIs in /usr, and two wheels in one
environment overwrite each other's files.
"""

from __future__ import annotations

import glob
import mmap
import os
import re
import site
import sys
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.library import Library, flavour_of_library, real_library

__all__ = [
    "Library",
    "clobbered",
    "find_installations",
    "flavour_of_library",
    "incomplete",
    "inspect_all",
    "inspect_launcher",
    "inspect_prefix",
    "wheel_prefixes",
]


# The settings that a launcher reads, as they stand in its file, and the flavours that it can
# start; the first that fits counts, since Intel's Hydra holds all of MPICH's, and both hold
# texts with "orte" in them.
_OPEN_MPI = ("openmpi5", "openmpi4")
_LAUNCHER_SIGNS = (
    (b"I_MPI_", ("intel",)),
    (b"HYDRA_", ("mpich",)),
    (b"OPAL_PREFIX", _OPEN_MPI),
    (b"orte", _OPEN_MPI),
    (b"prte", _OPEN_MPI),
)

# Where systems name the files otherwise than the flavours' own builds: Debian has a suffix for
# each MPI, and libmpich for MPICH's library; Intel's older packages have a folder for it.
_MORE_LAUNCHERS = ("mpirun.openmpi", "orterun", "mpirun.mpich", "mpirun")
_MORE_LIBRARIES = ("libmpich.so.12", "release/libmpi.so.12", "libmpi.so")
_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpirun.mpich")

COMMON_PREFIXES = (
    "/usr",
    "/usr/local",
    "/usr/lib64/openmpi",
    "/usr/lib64/mpich",
    "/usr/lib64/mpi/gcc/openmpi*",
    "/usr/lib64/mpi/gcc/mpich*",
    "/usr/lib/*-linux-gnu*/openmpi",
    "/usr/local/openmpi*",
    "/usr/local/mpich*",
    "/opt/openmpi*",
    "/opt/mpich*",
    "/opt/amazon/openmpi*",
    "/opt/hpcx*/ompi",
    "/opt/intel/oneapi/mpi/latest",
    "/opt/intel/oneapi/mpi/20*",
    "/opt/homebrew",
    "/opt/local",
)
PREFIX_VARIABLES = ("I_MPI_ROOT", "CONDA_PREFIX", "MPI_HOME", "OPAL_PREFIX")


# ------------------------------------------------------------------------- one prefix


def inspect_prefix(prefix: str, origin: str = "system") -> Optional[Installation]:
    """Returns the MPI in a folder that holds bin/ and lib/, or None.

    Where there are several (Debian's /usr), it is the one that bin/mpirun belongs to.
    """
    return next(iter(inspect_all(prefix, origin)), None)


def inspect_all(prefix: str, origin: str = "system") -> List[Installation]:
    """Returns every MPI in a folder that holds bin/ and lib/, the one of bin/mpirun first."""
    prefix = os.path.abspath(prefix)
    folder = os.path.join(prefix, "bin")
    if not any(os.path.exists(os.path.join(folder, name)) for name in _LAUNCHERS):
        return []
    found = []
    for path, library in _libraries(prefix):
        launcher = _launcher(folder, library.flavour)
        if launcher is not None:
            version = library.version or _version_beside(prefix, library.flavour, launcher)
            found.append(Installation(library.flavour, version, prefix, launcher, path, origin))
    main = _startable(os.path.join(folder, "mpirun"))
    return sorted(found, key=lambda one: one.flavour not in main)


def inspect_launcher(path: str) -> Optional[Installation]:
    """Returns the MPI that a launcher belongs to (`/usr/bin/mpirun.mpich`), or None.

    The launcher of the result is the one asked for.
    """
    startable = _startable(path)
    for prefix in _prefixes_of_launcher(path):
        for one in inspect_all(prefix):
            if one.flavour in startable:
                return Installation(
                    one.flavour, one.version, one.prefix, os.path.abspath(path), one.library,
                    one.origin,
                )  # fmt: skip
    return None


def _libraries(prefix: str) -> Iterator[Tuple[str, Library]]:
    """Yields the best library of each flavour in a prefix."""
    lib = os.path.join(prefix, "lib")
    folders = [lib, lib + "64"]
    folders += [os.path.join(lib, name) for name in _listing(lib) if "-linux-" in name]
    looked_at: Dict[str, Optional[Library]] = {}
    for flavour, value in FLAVOURS.items():
        names = dict.fromkeys((*value.library_names, *_MORE_LIBRARIES))
        paths = [os.path.join(folder, name) for folder in folders for name in names]
        for path in filter(os.path.exists, paths):
            if path not in looked_at:
                looked_at[path] = flavour_of_library(path)
            library = looked_at[path]
            if library is not None and library.flavour == flavour:
                yield real_library(path), library
                break


def _launcher(folder: str, flavour: str) -> Optional[str]:
    for name in dict.fromkeys((*FLAVOURS[flavour].launcher_names, *_MORE_LAUNCHERS)):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and flavour in _startable(path):
            return path
    return None


def _startable(launcher: str) -> Tuple[str, ...]:
    """Returns the flavours that a launcher can start."""
    try:
        with (
            open(launcher, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return next((names for sign, names in _LAUNCHER_SIGNS if data.find(sign) >= 0), ())
    except (OSError, ValueError):  # ValueError: an empty file
        return ()


def _distribution(flavour: str) -> str:
    """Returns the name on PyPI of a flavour's wheel."""
    return re.split(r"[^\w-]", FLAVOURS[flavour].requirement)[0]


def _version_beside(prefix: str, flavour: str, launcher: str) -> str:
    """Finds the version of an MPI whose library does not show it: its wheel's, else by asking."""
    for wheel in _wheels(prefix):
        if wheel.name == _distribution(flavour):
            return wheel.version
    import subprocess  # here, since it takes longer to load than all that is above

    try:
        answer = subprocess.run(
            [launcher, "--version"],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    found = re.search(rb"\d+\.\d+(?:\.\d+)?\w*", answer.stdout)
    return found[0].decode() if found else "unknown"


# ------------------------------------------------------------- several in one environment


class _Wheel(NamedTuple):
    """An MPI that pip installed: its normalised name, its version, its dist-info folder."""

    name: str
    version: str
    folder: str


def clobbered(prefix: str) -> Optional[str]:
    """Says which MPI wheels in one environment overwrote each other's files, or None.

    Asked of pip's own records: of a file that two installed packages claim, only what the
    later one wrote is there.
    """
    wheels = {f"{wheel.name} {wheel.version}": wheel for wheel in _wheels(prefix)}
    if len(wheels) < 2:
        return None
    names = sorted(name for name, wheel in wheels.items() if _claims_launcher(wheel))
    if len(names) < 2:
        return None
    return (
        f"{', '.join(names[:-1])} and {names[-1]} are installed in one environment, {prefix}, "
        "and overwrote each other's bin/mpirun and lib/libmpi"
    )


def incomplete(prefix: str) -> Optional[str]:
    """Says which MPI wheel of an environment has lost its launcher, or None.

    Uninstalling one of two MPI wheels removes the files that both had.
    """
    if os.path.exists(os.path.join(prefix, "bin", "mpirun")):
        return None
    for wheel in _wheels(prefix):
        return f"{wheel.name} {wheel.version} is installed in {prefix}, but its bin/mpirun is gone"
    return None


def _wheels(prefix: str) -> Iterator[_Wheel]:
    known = {_distribution(flavour) for flavour in FLAVOURS}
    for kind in ("site-packages", "dist-packages"):
        for folder in glob.glob(os.path.join(glob.escape(prefix), "lib*", "python3*", kind)):
            for entry in _listing(folder):
                stem, ending = os.path.splitext(entry)
                name, _, version = stem.partition("-")
                name = name.replace("_", "-").lower()
                if ending == ".dist-info" and name in known:
                    yield _Wheel(name, version, os.path.join(folder, entry))


def _claims_launcher(wheel: _Wheel) -> bool:
    """Returns True when a wheel brought a bin/mpirun; all MPI wheels put it into the same place."""
    try:
        with open(os.path.join(wheel.folder, "RECORD"), encoding="utf-8") as file:
            return any(line.split(",", 1)[0].endswith("bin/mpirun") for line in file)
    except OSError:
        return False


# ------------------------------------------------------------------------- one machine


def find_installations(
    home: str, path: str, extra: Iterable[str] = (), environ: Optional[Mapping[str, str]] = None
) -> List[Installation]:
    """Returns every MPI of this machine, each once, in the order in which shanty would take them.

    `home` is shanty's folder, `path` a search path as in $PATH, `extra` further prefixes;
    `environ` is where $I_MPI_ROOT, $CONDA_PREFIX and such are looked up. Several paths that
    lead to one library through symbolic links are one MPI.
    """
    found: Dict[str, Installation] = {}

    def add(prefix: str, origin: str) -> None:
        for one in inspect_all(prefix, origin):
            found.setdefault(os.path.realpath(one.library), one)

    for prefix in wheel_prefixes():
        add(prefix, "wheel")
    own = os.path.join(home, "mpi")
    for name in sorted(_listing(own)):
        if not name.startswith("."):  # an installation that is being made
            add(os.path.join(own, name), "shanty")
    for prefix in extra:
        add(prefix, "system")
    for prefix in _system_prefixes(path, environ or {}):
        add(prefix, "system")
    return list(found.values())


def wheel_prefixes() -> List[str]:
    """Returns the prefixes of the running interpreter in which pip installed an MPI."""
    prefixes = [sys.prefix, os.path.join(sys.prefix, "local")]  # the latter on Debian
    if site.ENABLE_USER_SITE:
        prefixes.append(site.getuserbase())
    return [prefix for prefix in prefixes if next(_wheels(prefix), None)]


def _system_prefixes(path: str, environ: Mapping[str, str]) -> Iterator[str]:
    for folder in filter(os.path.isabs, path.split(os.pathsep)):
        for name in _LAUNCHERS:
            launcher = os.path.join(folder, name)
            if os.path.exists(launcher):
                yield from _prefixes_of_launcher(launcher)
    for name in PREFIX_VARIABLES:
        if os.path.isabs(environ.get(name, "")):
            yield environ[name]
    for pattern in COMMON_PREFIXES:
        yield from sorted(glob.glob(pattern), reverse=True)


def _prefixes_of_launcher(launcher: str) -> List[str]:
    """Returns the prefixes that a launcher may belong to: by its name, and by what it links to."""
    folders = (os.path.realpath(os.path.dirname(launcher)),
               os.path.dirname(os.path.realpath(launcher)))  # fmt: skip
    return list(dict.fromkeys(map(os.path.dirname, folders)))


def _listing(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
