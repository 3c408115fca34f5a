"""Finds the MPIs of a machine by their files, without starting any of them.

An MPI is a launcher and a libmpi that belong together. A library's flavour is seen from the names
in its symbol table, its version from a text in its read-only data; what a launcher can start, from
the names of the settings that it reads. No file name is trusted alone: MPICH and Intel MPI are both
`libmpi.so.12`, Open MPI 4 and 5 both `libmpi.so.40`, Debian keeps two MPIs in /usr, and two wheels
in one environment overwrite each other's files.
"""

from __future__ import annotations

import functools
import glob
import mmap
import os
import re
import site
import struct
import sys
from collections import Counter
from dataclasses import replace
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.hostfiles import read_file
from shanty.runtime.mpi.installation import Installation

# Flavour, a name that its symbol table holds, the shape of its version; the first that fits is
# taken. Open MPI 3 speaks 4's dialect and Open MPI 6 speaks 5's: the runtime below makes the
# difference, ORTE until 4 and PRRTE since 5, and only ORTE's library is linked into libmpi.
_SIGNS = (
    ("openmpi4", b"libopen-rte.", rb"[34]\.\d+\.\d+[a-z]*\d*"),
    ("openmpi5", b"ompi_mpi_comm_world", rb"[5-9]\.\d+\.\d+[a-z]*\d*"),
    ("intel", b"I_MPI_", rb"20\d\d\.\d+(?:\.\d+)?"),
    ("mpich", b"PMPI_Init", rb"[3-9]\.\d+(?:\.\d+)?(?:[a-z]+\d+)?"),
)

# Not the bindings beside it: libmpifort, libmpi_cxx, libmpi_usempi, libmpi_java.
_NAME = re.compile(r"libmpi(ch)?(_(abi|cray|gnu|intel|amd|nvidia)\w*)?\.(so|dylib|\d+)")

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
    *("/usr", "/usr/local", "/usr/lib64/openmpi", "/usr/lib64/mpich"),
    *("/usr/lib64/mpi/gcc/openmpi*", "/usr/lib64/mpi/gcc/mpich*", "/usr/lib/*-linux-gnu*/openmpi"),
    *("/usr/local/openmpi*", "/usr/local/mpich*", "/opt/openmpi*", "/opt/mpich*"),
    *("/opt/amazon/openmpi*", "/opt/hpcx*/ompi"),
    *("/opt/intel/oneapi/mpi/latest", "/opt/intel/oneapi/mpi/20*"),
    *("/opt/homebrew", "/opt/local"),
)
PREFIX_VARIABLES = ("I_MPI_ROOT", "CONDA_PREFIX", "MPI_HOME", "OPAL_PREFIX")


# ------------------------------------------------------------------------- one library


class Library(NamedTuple):
    """What a libmpi says of itself; `version` is None where no text in it looks like one."""

    flavour: str
    version: Optional[str]


def flavour_of_library(path: str) -> Optional[Library]:
    """Returns the flavour and version of a libmpi; None when the file is none or cannot be read.

    A linker script in its place (`libmpi.so` of the wheels) is followed. Takes a few
    milliseconds: of a library of 40 MB only the symbol names and the texts are looked at.
    """
    if not _NAME.match(os.path.basename(path)):
        return None
    try:
        with (
            open(real_library(path), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            names, texts = _regions(data)
            for flavour, name, version in _SIGNS:
                if data.find(name, *names) >= 0:
                    return Library(flavour, _version_in(data[texts[0] : texts[1]], version))
    except (OSError, ValueError, struct.error):  # ValueError: an empty file
        pass
    return None


def real_library(path: str) -> str:
    """Returns a path that dlopen takes: what a linker script names, else `path` itself."""
    with open(path, "rb") as file:
        named = re.match(rb"(?:INPUT|GROUP)\s*\(\s*([^\s)]+)", file.read(256))
    return os.path.join(os.path.dirname(path), os.fsdecode(named[1])) if named else path


def _version_in(texts: bytes, shape: bytes) -> Optional[str]:
    """Returns the text of that shape that occurs most often; of several, the first."""
    found: List[bytes] = re.findall(rb"\0(" + shape + rb")(?=\0)", texts)
    if not found:
        return None
    in_three_parts = [text for text in found if text.count(b".") == 2]
    return Counter(in_three_parts or found).most_common(1)[0][0].decode()


def _regions(data: mmap.mmap) -> Tuple[Tuple[int, int], Tuple[int, int]]:
    """Returns where a library's symbol names and read-only data lie: two pairs of offsets.

    Known for 64-bit little-endian ELF, which is every Linux that the wheels support; of other
    files (Mach-O) both are the whole file.
    """
    whole = (0, len(data))
    if data[:6] != b"\x7fELF\x02\x01":
        return whole, whole
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    sections = []
    for index in range(count):
        name, _, _, _, start, length = struct.unpack_from("<IIQQQQ", data, table + index * size)
        sections.append((name, start, start + length))
    found = {}
    for name, start, end in sections:
        at = sections[names_index][1] + name
        found[data[at : data.find(b"\0", at)]] = (start, end)
    return found.get(b".dynstr", whole), found.get(b".rodata", whole)


# ------------------------------------------------------------------------- one prefix


def inspect_prefix(prefix: str, origin: str = "system") -> Optional[Installation]:
    """Returns the MPI in a folder that holds bin/ and lib/, or None.

    Where there are several (Debian's /usr), it is the MPI of bin/mpirun.
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
    found = (one for prefix in _prefixes_of_launcher(path) for one in inspect_all(prefix))
    one = next((one for one in found if one.flavour in startable), None)
    return replace(one, launcher=os.path.abspath(path)) if one else None


def _libraries(prefix: str) -> Iterator[Tuple[str, Library]]:
    """Yields the best library of each flavour in a prefix."""
    lib = os.path.join(prefix, "lib")
    folders = [lib, lib + "64"]
    folders += [os.path.join(lib, name) for name in _listing(lib) if "-linux-" in name]
    identified = functools.lru_cache(maxsize=None)(flavour_of_library)
    for flavour, value in FLAVOURS.items():
        names = dict.fromkeys((*value.library_names, *_MORE_LIBRARIES))
        paths = [os.path.join(folder, name) for folder in folders for name in names]
        for path in filter(os.path.exists, paths):
            library = identified(path)
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
    for name, installed, _ in _wheels(prefix):
        if name == _distribution(flavour):
            return installed
    from shanty.runtime.programs import run  # it takes longer to load than all that is above

    done = run([launcher, "--version"], 5.0)
    found = re.search(r"\d+\.\d+(?:\.\d+)?\w*", done.stdout) if done is not None else None
    return found[0] if found else "unknown"


def clobbered(prefix: str) -> Optional[str]:
    """Says which MPI wheels in one environment overwrote each other's files, or None.

    Asked of pip's own records: of a file that two installed packages claim, only what the
    later one wrote is there. All MPI wheels put bin/mpirun into the same place.
    """
    launcher = re.compile(r"bin/mpirun(,|$)", re.MULTILINE)
    wheels = {f"{name} {version}": record for name, version, record in _wheels(prefix)}
    names = sorted(each for each in wheels if launcher.search(read_file(wheels[each]) or ""))
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
    for name, version, _ in _wheels(prefix):
        return f"{name} {version} is installed in {prefix}, but its bin/mpirun is gone"
    return None


def _wheels(prefix: str) -> Iterator[Tuple[str, str, str]]:
    """Yields the name, version and record of files of each MPI that pip installed."""
    known = {_distribution(flavour) for flavour in FLAVOURS}
    pattern = os.path.join(glob.escape(prefix), "lib*", "python3*", "*-packages", "*.dist-info")
    for folder in glob.glob(pattern):
        name, _, version = os.path.basename(folder)[: -len(".dist-info")].partition("-")
        name = name.replace("_", "-").lower()
        if name in known:
            yield name, version, os.path.join(folder, "RECORD")


def find_installations(
    home: str, path: str, environ: Optional[Mapping[str, str]] = None
) -> List[Installation]:
    """Returns every MPI of this machine, each once, in the order in which shanty would take them.

    `home` is shanty's folder, `path` a search path as in $PATH; `environ` is where $I_MPI_ROOT,
    $CONDA_PREFIX and such are looked up. Several paths that lead to one library through symbolic
    links are one MPI.
    """
    own = os.path.join(home, "mpi")
    prefixes = [(prefix, "wheel") for prefix in wheel_prefixes()]
    for name in sorted(_listing(own)):
        if not name.startswith("."):  # an installation that is being made
            prefixes.append((os.path.join(own, name), "shanty"))
    prefixes += [(prefix, "system") for prefix in _system_prefixes(path, environ or {})]
    found: Dict[str, Installation] = {}
    for prefix, origin in prefixes:
        for one in inspect_all(prefix, origin):
            found.setdefault(os.path.realpath(one.library), one)
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
