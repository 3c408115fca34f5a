"""A copy of this host's Python that runs in any image, also where that has none, or another libc.

The interpreter is started by a copy of this host's dynamic linker, which looks for libraries beside
itself first; so nothing of the image is loaded. What remains needed is /bin/sh.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
import sysconfig
from typing import Iterator, List, Set

from shanty.runtime.errors import PrepareError
from shanty.runtime.programs import run

# What agents never import; it is most of a standard library.
_LEFT_OUT = (
    "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo",
    "ensurepip", "lib2to3", "pydoc_data", "__pycache__", "config-*",
)  # fmt: skip
VARIABLE = "SHANTY_PORTABLE_PYTHON"  # the path of the script, for what runs by it
_SCRIPT = """#!/bin/sh
# Python with the libraries that it was made with, whatever the image has.
here=${{0%/*}}
export {variable}="$0"
exec "$here/../lib/{linker}" --library-path "$here/../lib" "$here/{name}" "$@"
"""


def name() -> str:
    """The name of a copy, which is another one for another interpreter."""
    status = os.stat(_interpreter())
    parts = (_interpreter(), str(status.st_size), str(status.st_mtime_ns), sys.version)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _interpreter() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def fill(folder: str) -> None:
    """Write a copy into an empty folder; its program is bin/python."""
    python = _interpreter()
    for part in ("bin", "lib"):
        os.mkdir(os.path.join(folder, part))
    stdlib = sysconfig.get_path("stdlib")
    version = "python{}.{}".format(*sys.version_info[:2])
    modules = os.path.join(folder, "lib", version)
    ignored = shutil.ignore_patterns(*_LEFT_OUT)
    shutil.copytree(stdlib, modules, ignore=ignored, symlinks=False, ignore_dangling_symlinks=True)
    dynload = os.path.join(modules, "lib-dynload")
    if not os.path.isdir(dynload):
        os.mkdir(dynload)  # Python looks for it
    shutil.copy2(python, os.path.join(folder, "bin", version))
    extensions = [os.path.join(dynload, file) for file in os.listdir(dynload)]
    linker = ""
    for path in _libraries([python, *extensions]):
        library = os.path.basename(path)
        if library.startswith(("ld-", "ld64")):
            linker = library
        shutil.copy2(os.path.realpath(path), os.path.join(folder, "lib", library))
    if not linker:
        raise PrepareError(
            "no Python can be brought into the image",
            f"{python} has no dynamic linker of its own",
            "take an image that has Python 3.9 or newer",
        )
    os.chmod(os.path.join(folder, "lib", linker), 0o755)
    program = os.path.join(folder, "bin", "python")
    with open(program, "w", encoding="utf-8") as file:
        file.write(_SCRIPT.format(variable=VARIABLE, linker=linker, name=version))
    os.chmod(program, 0o755)


def _libraries(files: List[str]) -> Set[str]:
    """All shared libraries that these files load."""
    done = run(["ldd", *files])
    return set(_paths(done.stdout if done is not None else ""))


def _paths(text: str) -> Iterator[str]:
    """The paths in what ldd says: `libz.so.1 => /lib/libz.so.1 (0x…)`, `/lib64/ld-….so (0x…)`."""
    for found in re.finditer(r"^\s+(?:\S+ => )?(/\S+) \(0x", text, re.MULTILINE):
        yield found[1]


def glibc_of_image() -> str:
    """The version of the C library around us, which is not ours; "" for none."""
    folders = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
    names = [f"{folder}/libc.so.6" for folder in folders]
    with contextlib.suppress(OSError):
        machine = os.uname().machine
        names += [f"{folder}/{machine}-linux-gnu/libc.so.6" for folder in folders]
    for name in names:
        with contextlib.suppress(OSError), open(name, "rb") as file:
            found = re.search(rb"GNU C Library [^\n]*version (\d+\.\d+)", file.read())
            if found:
                return found[1].decode("ascii")
    return ""
