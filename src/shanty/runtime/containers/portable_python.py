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
import subprocess
import sys
import sysconfig
import tempfile
from typing import Iterator, List, Set

from shanty.runtime.errors import PrepareError

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


def make(store: str) -> str:
    """The program, in a folder of `store`; it is made where it is not there yet."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    real = os.path.realpath(base)
    status = os.stat(real)
    name = f"{real}\0{status.st_size}\0{status.st_mtime_ns}\0{sys.version}"
    target = os.path.join(store, hashlib.sha256(name.encode()).hexdigest()[:40])
    program = os.path.join(target, "bin", "python")
    if os.access(program, os.X_OK):
        with contextlib.suppress(OSError):
            os.utime(target)
        return program
    os.makedirs(store, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=".new-", dir=store)
    try:
        os.chmod(folder, 0o755)
        _fill(folder, real)
        with contextlib.suppress(OSError):  # somebody else has made it
            os.rename(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return program


def _fill(folder: str, python: str) -> None:
    for name in ("bin", "lib"):
        os.mkdir(os.path.join(folder, name))
    stdlib = sysconfig.get_path("stdlib")
    version = "python{}.{}".format(*sys.version_info[:2])
    library = os.path.join(folder, "lib", version)
    ignored = shutil.ignore_patterns(*_LEFT_OUT)
    shutil.copytree(stdlib, library, ignore=ignored, symlinks=False, ignore_dangling_symlinks=True)
    dynload = os.path.join(library, "lib-dynload")
    if not os.path.isdir(dynload):
        os.mkdir(dynload)  # Python looks for it
    shutil.copy2(python, os.path.join(folder, "bin", version))
    extensions = [os.path.join(dynload, name) for name in os.listdir(dynload)]
    linker = ""
    for path in _libraries([python, *extensions]):
        name = os.path.basename(path)
        if name.startswith(("ld-", "ld64")):
            linker = name
        shutil.copy2(os.path.realpath(path), os.path.join(folder, "lib", name))
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
    done = subprocess.run(
        ["ldd", *files], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, check=False, text=True,
    )  # fmt: skip
    return set(_paths(done.stdout))


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
