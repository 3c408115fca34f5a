"""A package with one module and a build backend of its own, and environments that have it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

from shanty.launch.content import wheels

# Needs nothing to build what `source` has written.
_BACKEND = """
import pathlib, zipfile

def _wheel(folder, name, text):
    info = "%s-%s.dist-info/" % (NAME, VERSION)
    path = pathlib.Path(folder, "%s-%s-py3-none-any.whl" % (NAME, VERSION))
    metadata = "Metadata-Version: 2.1\\nName: %s\\nVersion: %s\\n" % (NAME, VERSION)
    files = {
        name: text,
        info + "METADATA": metadata,
        info + "WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    record = "".join("%s,,\\n" % one for one in [*files, info + "RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for one, content in {**files, info + "RECORD": record}.items():
            wheel.writestr(one, content)
    return path.name

def build_wheel(folder, config_settings=None, metadata_directory=None):
    return _wheel(folder, NAME + ".py", pathlib.Path(NAME + ".py").read_text())

def build_editable(folder, config_settings=None, metadata_directory=None):
    return _wheel(folder, NAME + ".pth", str(pathlib.Path().absolute()))
"""


def source(folder: Path, text: str, name: str = "gadget", version: str = "1.0") -> Path:
    """The source folder of a package whose module has this text."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    (folder / "backend.py").write_text(f"NAME, VERSION = {name!r}, {version!r}\n{_BACKEND}")
    (folder / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
        f"[project]\nname = '{name}'\nversion = '{version}'\n"
    )
    return folder


@functools.cache
def uv() -> str:
    found = wheels.local_uv()
    assert found is not None, "environments are made by uv, which `pip install shanty[dev]` brings"
    return found


def wheel(folder: Path, version: str) -> Path:
    """A gadget to install, which says its version."""
    place = source(folder / version, f"VERSION = {version!r}\n", version=version)
    command = [uv(), "build", "--quiet", "--offline", "--no-build-isolation", "--wheel", place]
    subprocess.run(command, check=True, timeout=60)
    return next((place / "dist").glob("*.whl"))


def environment(folder: Path) -> Path:
    """The interpreter of a new environment with nothing in it."""
    base = os.path.realpath(sys.executable)
    subprocess.run([uv(), "venv", "--quiet", "--python", base, folder], check=True, timeout=60)
    return folder / "bin" / "python"


def install(python: Path, *words: str | Path) -> None:
    """Install into an environment, from what is given alone."""
    options = ["--quiet", "--offline", "--no-cache", "--no-index", "--no-build-isolation"]
    command = [uv(), "pip", "install", *options, "--python", python, *words]
    subprocess.run(command, check=True, timeout=60)
